# SPDX-License-Identifier: Apache-2.0
"""`RayBatchInferenceOperator`: dataset + prompt + model -> dataset, as one Airflow task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.coercion import given_mapping, seconds
from airflow_provider_raybatch.contract.arguments.input import SourceFormat
from airflow_provider_raybatch.contract.arguments.limits import Limits
from airflow_provider_raybatch.contract.arguments.output import OutputFormat
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, TEMPLATED, TEXTS
from airflow_provider_raybatch.operators.base import TEMPLATED_OF_ALL, RayOperator
from airflow_provider_raybatch.operators.batch_plan import batch_plan, check_has_price
from airflow_provider_raybatch.operators.closing_line import closing_line_of, failed_by_itself, failed_rows
from airflow_provider_raybatch.operators.deadline import longest_pause
from airflow_provider_raybatch.operators.handover import publish_asset_events, result_of
from airflow_provider_raybatch.operators.misplaced import check_names
from airflow_provider_raybatch.operators.parse_check import (
    check_lease,
    spec_of_known,
    unknown_names,
    warn_of_dag,
)
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.set_fields import only_set

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch


class RayBatchInferenceOperator(RayOperator):
    """Asks a model about each row of a dataset, and hands over a complete, validated dataset.

    Returns a small dictionary, see :func:`~airflow_provider_raybatch.operators.handover.result_of`; the event
    of each outlet ``Asset`` or ``AssetAlias`` has manifest and counts in its `extra`.

    Arguments that no template decides are checked while the DAG is parsed, the others when the task runs. All
    but `chat_template` are template fields and take XComs. Numbers, durations, booleans, lists and
    dictionaries may be text; ``None`` and empty text count as not given. ``{{ ... }}`` is Airflow's, but in
    ``airflow.sdk.literal``; ``{row.name}`` and ``{row['any name']}`` are filled in on the cluster, and every
    other brace is text.

    Input:

    :param source: files, folders or globs (local, ``file://``, ``s3://``, ``https://``, ``hf://``), one or a
        list; or the result of another batch inference.
    :param format: default: by the file's extension. ``openai_batch``: OpenAI's batch files, whose lines are
        whole requests and replace the arguments of the request.
    :param csv_options: how CSV files are written: `delimiter` (default: comma), `encoding` (default: UTF-8)
        and `header`, ``False`` or a list of names if the first row is data.
    :param limit: read only the first N rows.
    :param id_column: a column whose values identify the rows; default: their positions in the input.

    Request; exactly one of `prompt`, `messages`, `messages_column`, `prompt_column`, `prompt_function` and
    `steps`:

    :param prompt: a row template that becomes one user message.
    :param system_prompt: a row template that becomes the system message.
    :param messages: a chat as a list of ``{"role", "content"}``, each content a row template.
    :param messages_column: a column that holds the chat: a list of structs or maps, or that list as JSON.
    :param prompt_column: a column that holds the raw prompt; no chat template is applied.
    :param prompt_function: ``module:function``, called with each row on the cluster; its source is sent with
        the job.
    :param steps: several questions about each row on one engine: a list of
        :class:`~airflow_provider_raybatch.steps.Step` or of dictionaries with the same names. Each step may
        read earlier answers; `postprocess` gets the last response.
    :param query: with `model_task` ``score``: a row template of the query, or one text for all rows.
    :param document: a row template of the text that is scored for the query.
    :param documents_column: for a ranking: a column with a list of such texts, or that list as JSON.
    :param special_tokens_in_text: special tokens in a row's text, such as ``<|im_end|>``, act as turns of the
        chat: ``keep`` them (default), ``escape`` them, or fail the row (``error``).
    :param on_overlong: a prompt that leaves no room for a response: ``error`` (default) fails the row,
        ``truncate`` cuts its longest values (with a pooling model, the end of the text).
    :param on_blank: rows whose prompt values are all null, empty or white space: ``ask`` (default), though a
        null fails its row; ``"null"`` keeps the row without a request and an answer; ``error`` fails it.
    :param images: a column with the images of each row, or several in the order in which the model sees them:
        bytes, structs with ``bytes``, references (a path, ``file://``, ``s3://``, ``https://``, ``data:``),
        or lists of these. They fill the ``{"type": "image"}`` parts of a chat, else come before the text of
        its first user message.
    :param keep_images: whether the dataset keeps the columns of `images` that hold bytes; default no.
    :param image_roots: folders, local or ``s3://``, below which references may lie; default: the folders of
        the source's files.
    :param image_hosts: host names from which ``https://`` references are fetched; default none.
    :param max_image_bytes: largest image as stored; a larger one fails its row; default 20 MiB.
    :param max_image_pixels: most pixels of an image; one with more fails its row before it is decoded;
        default 64 million.
    :param image_timeout: seconds or ``timedelta`` to fetch and decode one image, default 30.

    Model and sampling:

    :param model_task: ``generate`` text (default), ``embed`` (a vector), ``classify`` (a label and the
        probability of each), or ``score`` (how well a document fits a query).
    :param model: Hugging Face id, or a folder or bucket prefix (``s3://``, ``gs://``, ``az://``) that the
        cluster's nodes can read by their own identity; not needed with ``echo``.
    :param served_model_name: `model` in the lines of an OpenAI batch file; default: the value of `model`
        here.
    :param adapter: a LoRA adapter for all rows: the folder that PEFT saved, its ``s3://`` prefix (read by the
        nodes' own identity), or a Hugging Face id, ``name@revision`` for one version.
    :param adapters: LoRA adapters from which rows choose: locations as in `adapter`, by the names in
        `adapter_column`.
    :param adapter_column: a column with the name of each row's adapter; null or empty: the model alone.
    :param chat_template: replaces the tokenizer's; never templated by Airflow.
    :param chat_template_kwargs: passed to the chat template, such as ``{"enable_thinking": False}``.
    :param tools: functions that the model may call, in OpenAI's form; the chat template shows them, and the
        dataset gets the column ``tool_calls``.
    :param tool_choice: ``auto`` (default), ``required`` (each response calls a tool), a tool's name or
        OpenAI's form of it (each response calls that tool), or ``none``.
    :param tool_call_parser: vLLM's parser for the model's calls, such as ``hermes``.
    :param sampling: vLLM's sampling parameters, merged over the model's `generation_config`.
    :param sampling_column: a column, struct or JSON text, with sampling parameters that override `sampling`
        for its row.
    :param response_format: ``text`` (default), ``json_object``, a JSON schema, or a Pydantic model as
        ``module:Model``, whose source is sent with the job. With a schema, vLLM generates only what fits, and
        the dataset has a typed column for each property.
    :param pooling: vLLM's pooling parameters, for other tasks than ``generate``: `dimensions` for ``embed``,
        if the model is trained for shorter vectors, and `use_activation`, ``False`` for vectors of any length
        or raw scores.
    :param chunk_tokens: with `model_task` ``embed``: cut each text into chunks of at most this many tokens,
        special ones included. Each chunk is a row with a vector, `chunk_index`, `chunk_text` and
        `chunk_start`. Default: one vector a row.
    :param chunk_overlap_tokens: most tokens that two chunks share, at most half of `chunk_tokens`; default 0.
    :param top_n: how many documents a row's ranking keeps; default all.
    :param on_truncated: ``keep`` a truncated response (default), or fail its row (``error``), which the next
        attempt asks again.

    Engine and resources:

    :param engine: ``vllm`` (default), ``ray_data_llm``, or ``echo`` (a dry run without a model).
    :param engine_args: vLLM's engine arguments, such as `tensor_parallel_size`; ``echo`` has its own.
    :param replicas: number of engines, or a range ``(fewest, most)``, which grows as nodes come and shrinks
        as rows run out. Default: as many as the cluster's GPUs hold; one on CPUs.
    :param accelerator_type: Ray's accelerator type that a replica needs, such as ``H200``.
    :param num_cpus: CPUs that each replica reserves; default 1, less if a GPU node has few.
    :param num_gpus: share of one GPU for each engine, such as 0.5, so that small models share it; default:
        whole GPUs, by the engine's parallel sizes.
    :param rows_in_flight: rows at once in a replica's engine; default: a little more than `max_num_seqs`.
    :param batch_size: rows that are rendered and tokenised together; default: derived.
    :param processor: with ``ray_data_llm``: further fields of Ray's processor config.
    :param max_restarts: how often in a row a replica's engine may die without a finished row in between;
        default 3. The search for a row that kills it does not count.

    Output:

    :param destination: a folder, local or ``s3://``.
    :param destination_format: ``parquet`` (default), ``jsonl``, or ``openai_batch`` for OpenAI's output and
        error files, if `format` is ``openai_batch``, too.
    :param rows_per_part: about how many rows a file has; default: files of about 128 MiB, at most 250,000
        rows.
    :param on_destination_owned: a folder with another run's dataset: ``refuse`` it (default) or
        ``take_over``.
    :param output_prefix: begins the names of the output columns; default none.
    :param response_column: name of the response's column; default ``response`` after `output_prefix`.
    :param embed_dtype: type of the numbers in vectors: ``float32`` (default) or ``float16``.
    :param postprocess: ``module:function``, called as ``function(row, response)`` for each good row on the
        cluster; returns a dictionary of columns to add. Its source is sent with the job; a changed function
        asks no row again.
    :param preserve_order: whether the dataset has the input's order; default no.

    Reuse:

    :param reuse: a folder, local or ``s3://``, that keeps responses by request: what any run with the same
        folder has paid for is not asked again. Default none.
    :param reuse_max_age: seconds or ``timedelta`` after which a kept response is not taken; default never.
    :param deduplicate: ask equal requests at temperature 0 once; default yes. ``ray_data_llm`` asks each row.
    :param on_clear: after a clear, ``keep`` the rows that still ask the same (default), or ``regenerate``
        all, also those in `reuse`.

    Limits:

    :param max_error_fraction: share of rows that may fail, 0 to 1; default 0, or 1 if `max_errors` is given
        or failed rows become error lines (`destination_format` ``openai_batch``).
    :param max_errors: number of rows that may fail; the stricter of the two limits counts.
    :param max_row_attempts: how often a row that fails is asked, over all attempts; default 3.
    :param max_tokens_total: input and output tokens that all attempts may pay for; default: no limit.
    :param max_gpu_hours: GPU hours that the replicas of one attempt may hold; waiting for nodes costs none.
        Default: no limit.
    :param max_cost: what the GPUs of all attempts since the last clear may cost, in `currency`; needs a
        price. Default: no limit.
    :param keep_warm: seconds or ``timedelta``, up to a day: how long engines stay loaded for the next task of
        this Airflow with the same engine; released early if another job needs the GPU. 0: take a waiting
        engine, leave none. By default engines end with their job.
    :param flush_interval: seconds or ``timedelta`` within which a finished row is written, default 10.
    :param no_progress_timeout: seconds or ``timedelta`` without a finished row, a generated token or a
        loading engine, after which the job fails; default 1,800.
    :param cluster_wait: seconds or ``timedelta`` to wait for missing nodes; default 900 if an autoscaler may
        bring them, 300 if an earlier attempt of the run had them, else 0. A cluster that is made for the job
        gets as long for its head, and its own `cluster_wait` is the default.
    :param orphan_timeout: seconds or ``timedelta`` without a follower after which a job writes what is
        finished and ends; default 6 hours, at least three times `poll_interval`; 0: never.

    Report:

    :param gpu_hour_price: price of a GPU hour: a number for any GPU, in place of the connection's prices, or
        a dictionary by Ray's accelerator type, such as ``{"H100": 3.9, "*": 1.2}`` (``*``: all others),
        merged over them. Default: the connection's.
    :param currency: currency of `gpu_hour_price` and `max_cost`, three letters as in ISO 4217; default: the
        connection's, else ``USD``.
    :param report_samples: how many good rows the report shows, 0 to 100, default 10. With 0, no log, event,
        result, manifest or report quotes a row: content is only in the dataset, its dead letters and error
        files.

    Access and environment:

    :param aws_conn_id: an ``aws`` connection for the job; default: the cluster's own identity.
    :param hf_conn_id: a connection whose password is a Hugging Face token, for models and ``hf://`` sources.
    :param runtime_env: Ray's runtime environment of the job; `working_dir` is reserved and refused.

    The other parameters are those of :class:`~airflow_provider_raybatch.operators.base.RayOperator`.
    """

    template_fields: Sequence[str] = only_set((
        *TEMPLATED, "runtime_env", "aws_conn_id", "hf_conn_id", *TEMPLATED_OF_ALL,
    ))  # fmt: skip
    text_fields: ClassVar[frozenset[str]] = frozenset({*TEXTS, "aws_conn_id", "hf_conn_id", "ray_conn_id"})
    has_key: ClassVar[bool] = True
    template_fields_renderers: ClassVar[dict[str, str]] = only_set(dict.fromkeys((
        "csv_options", "messages", "pooling", "sampling", "engine_args", "processor", "chat_template_kwargs",
        "adapters", "tools", "gpu_hour_price", "runtime_env", "steps",
    ), "json"))  # fmt: skip

    def __init__(
        self,
        *,
        source: str | PathLike[str] | Mapping[str, Any] | Iterable[Any],
        destination: str | PathLike[str],
        format: SourceFormat | None = None,
        csv_options: Mapping[str, Any] | None = None,
        limit: int | str | None = None,
        id_column: str | None = None,
        prompt: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[Mapping[str, str]] | None = None,
        messages_column: str | None = None,
        prompt_column: str | None = None,
        prompt_function: str | None = None,
        steps: Sequence[Mapping[str, Any]] | str | None = None,
        query: str | None = None,
        document: str | None = None,
        documents_column: str | None = None,
        special_tokens_in_text: Literal["keep", "escape", "error"] | None = None,
        on_overlong: Literal["error", "truncate"] | None = None,
        on_blank: Literal["ask", "null", "error"] | None = None,
        images: Sequence[str] | str | None = None,
        keep_images: bool | str | None = None,
        image_roots: Sequence[str] | str | None = None,
        image_hosts: Sequence[str] | str | None = None,
        max_image_bytes: int | str | None = None,
        max_image_pixels: int | str | None = None,
        image_timeout: timedelta | float | str | None = None,
        model: str | None = None,
        served_model_name: str | None = None,
        model_task: Literal["generate", "embed", "classify", "score"] | None = None,
        pooling: Mapping[str, Any] | None = None,
        chunk_tokens: int | str | None = None,
        chunk_overlap_tokens: int | str | None = None,
        top_n: int | str | None = None,
        adapter: str | None = None,
        adapters: Mapping[str, str] | None = None,
        adapter_column: str | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Mapping[str, Any]] | str | None = None,
        tool_choice: Mapping[str, Any] | str | None = None,
        tool_call_parser: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        sampling_column: str | None = None,
        response_format: Mapping[str, Any] | str | None = None,
        on_truncated: Literal["keep", "error"] | None = None,
        engine: Literal["vllm", "ray_data_llm", "echo"] = "vllm",
        engine_args: Mapping[str, Any] | None = None,
        replicas: int | tuple[int | str, int | str] | str | None = None,
        accelerator_type: str | None = None,
        num_cpus: float | str | None = None,
        num_gpus: float | str | None = None,
        rows_in_flight: int | str | None = None,
        batch_size: int | str | None = None,
        processor: Mapping[str, Any] | None = None,
        max_restarts: int | str | None = None,
        destination_format: OutputFormat | None = None,
        rows_per_part: int | str | None = None,
        on_destination_owned: Literal["refuse", "take_over"] | None = None,
        output_prefix: str | None = None,
        response_column: str | None = None,
        embed_dtype: Literal["float32", "float16"] | None = None,
        postprocess: str | None = None,
        preserve_order: bool | str | None = None,
        reuse: str | PathLike[str] | None = None,
        reuse_max_age: timedelta | float | str | None = None,
        deduplicate: bool | str | None = None,
        on_clear: Literal["keep", "regenerate"] | None = None,
        max_error_fraction: float | str | None = None,
        max_errors: int | str | None = None,
        max_row_attempts: int | str | None = None,
        max_tokens_total: int | str | None = None,
        max_gpu_hours: float | str | None = None,
        max_cost: float | str | None = None,
        keep_warm: timedelta | float | str | None = None,
        flush_interval: timedelta | float | str | None = None,
        no_progress_timeout: timedelta | float | str | None = None,
        cluster_wait: timedelta | float | str | None = None,
        orphan_timeout: timedelta | float | str | None = None,
        gpu_hour_price: Mapping[str, float] | float | str | None = None,
        currency: str | None = None,
        report_samples: int | str | None = None,
        aws_conn_id: str | None = None,
        hf_conn_id: str | None = None,
        runtime_env: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        try:
            super().__init__(**kwargs)
        except TypeError:
            known = [*ARGUMENTS, *type(self).template_fields, *signature(BaseOperator.__init__).parameters]
            check_names(kwargs, known, f"Task {kwargs.get('task_id')!r}: ")
            raise
        self.source = source
        self.destination = destination
        self.format = format
        self.csv_options = csv_options
        self.limit = limit
        self.id_column = id_column
        self.prompt = prompt
        self.system_prompt = system_prompt
        self.messages = messages
        self.messages_column = messages_column
        self.prompt_column = prompt_column
        self.prompt_function = prompt_function
        self.steps = steps
        self.query = query
        self.document = document
        self.documents_column = documents_column
        self.special_tokens_in_text = special_tokens_in_text
        self.on_overlong = on_overlong
        self.on_blank = on_blank
        self.images = images
        self.keep_images = keep_images
        self.image_roots = image_roots
        self.image_hosts = image_hosts
        self.max_image_bytes = max_image_bytes
        self.max_image_pixels = max_image_pixels
        self.image_timeout = image_timeout
        self.model = model
        self.served_model_name = served_model_name
        self.model_task = model_task
        self.pooling = pooling
        self.chunk_tokens = chunk_tokens
        self.chunk_overlap_tokens = chunk_overlap_tokens
        self.top_n = top_n
        self.adapter = adapter
        self.adapters = adapters
        self.adapter_column = adapter_column
        self.chat_template = chat_template
        self.chat_template_kwargs = chat_template_kwargs
        self.tools = tools
        self.tool_choice = tool_choice
        self.tool_call_parser = tool_call_parser
        self.sampling = sampling
        self.sampling_column = sampling_column
        self.response_format = response_format
        self.on_truncated = on_truncated
        self.engine = engine
        self.engine_args = engine_args
        self.replicas = replicas
        self.accelerator_type = accelerator_type
        self.num_cpus = num_cpus
        self.num_gpus = num_gpus
        self.rows_in_flight = rows_in_flight
        self.batch_size = batch_size
        self.processor = processor
        self.max_restarts = max_restarts
        self.destination_format = destination_format
        self.rows_per_part = rows_per_part
        self.on_destination_owned = on_destination_owned
        self.output_prefix = output_prefix
        self.response_column = response_column
        self.embed_dtype = embed_dtype
        self.postprocess = postprocess
        self.preserve_order = preserve_order
        self.reuse = reuse
        self.reuse_max_age = reuse_max_age
        self.deduplicate = deduplicate
        self.on_clear = on_clear
        self.max_error_fraction = max_error_fraction
        self.max_errors = max_errors
        self.max_row_attempts = max_row_attempts
        self.max_tokens_total = max_tokens_total
        self.max_gpu_hours = max_gpu_hours
        self.max_cost = max_cost
        self.keep_warm = keep_warm
        self.flush_interval = flush_interval
        self.no_progress_timeout = no_progress_timeout
        self.cluster_wait = cluster_wait
        self.orphan_timeout = orphan_timeout
        self.gpu_hour_price = gpu_hour_price
        self.currency = currency
        self.report_samples = report_samples
        self.aws_conn_id = aws_conn_id
        self.hf_conn_id = hf_conn_id
        self.runtime_env = runtime_env
        self._check_at_parse()

    @property
    def _served(self) -> ServedBatch | None:
        """The batch of the Batch API that the task answers."""
        return None

    def _arguments(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ARGUMENTS}

    def check_known(self, unknown: Collection[str]) -> None:
        """See :meth:`RayOperator.check_known`."""
        values = vars(self)
        given = {name: values[name] for name in ARGUMENTS if values.get(name) is not None}
        unknown = {*unknown, *self._given_later(given)}
        spec = spec_of_known(given, unknown, self.depends_on_run)
        for text in unknown_names(spec):
            warn_of_dag(f"Task {self.task_id!r}: {text}")
        if not {"orphan_timeout", "poll_interval"}.intersection(unknown):
            check_lease(spec.orphan_timeout, self.poll_interval)
        if "gpu_hour_price" not in unknown:
            check_has_price(spec, self.ray_cluster)
        if "runtime_env" not in unknown:
            given_mapping(self.runtime_env, "runtime_env")

    def _given_later(self, given: Mapping[str, Any]) -> Collection[str]:
        """Arguments that a subclass, or a decorated function, may give when the task runs.

        :param given: those that are given while the DAG is parsed.
        """
        if type(self) is RayBatchInferenceOperator:
            return ()
        return set(ARGUMENTS) - (given.keys() - {"engine"})

    def plan(self, run: TaskRun) -> JobPlan:
        """See :meth:`RayOperator.plan`."""
        from airflow_provider_raybatch.hooks.credentials import job_secrets

        secrets = job_secrets(self.aws_conn_id, self.hf_conn_id)
        return batch_plan(self, self._arguments(), self.runtime_env, secrets, run, self._served)

    def lease_terms(self, run: TaskRun, submission_id: str) -> LeaseTerms:
        """See :meth:`RayOperator.lease_terms`."""
        from airflow_provider_raybatch.cluster.follow.control import LeaseTerms

        orphan_timeout = seconds(self.orphan_timeout, "orphan_timeout")
        return LeaseTerms(
            key=run.key_of_job(submission_id),
            attempt=run.attempt,
            deadline=run.deadline.earlier,
            orphan_timeout=Limits().orphan_timeout if orphan_timeout is None else orphan_timeout,
            retry_pause=longest_pause(self, run.attempt),
        )

    def hand_over(self, outcome: Outcome, handle: Mapping[str, Any]) -> dict[str, Any]:
        """See :meth:`RayOperator.hand_over`."""
        if outcome.summary is None:
            raise RayBatchException(
                f"Job {handle['submission_id']} succeeded, but its log is gone; a retry finds the dataset.",
                FailureClass.INTERNAL,
            )
        return result_of(outcome.summary, handle["submission_id"], handle["dashboard_url"])

    def announce(self, context: Context, result: Mapping[str, Any]) -> None:
        """See :meth:`RayOperator.announce`."""
        publish_asset_events(context, self.outlets, result)
        if failed_by_itself(result):
            self.log.warning("%s", failed_rows(result))

    def log_end(self, context: Context, result: Mapping[str, Any], outcome: Outcome | None = None) -> None:
        """See :meth:`RayOperator.log_end`."""
        self.log.info("%s", closing_line_of(context, result, outcome.summary if outcome else None))
