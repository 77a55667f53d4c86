# SPDX-License-Identifier: Apache-2.0
"""`RayBatchInferenceOperator`: dataset + prompt + model -> dataset, as one Airflow task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from inspect import signature
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.argument_fields import GROUPS, check_names, fields_of
from airflow_provider_raybatch.arguments import (
    Adapters,
    Advanced,
    Classify,
    Embed,
    Images,
    Limits,
    Output,
    Reuse,
    Score,
    Tools,
)
from airflow_provider_raybatch.coercion import given_mapping, seconds
from airflow_provider_raybatch.contract.arguments.data import SourceFormat
from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchException
from airflow_provider_raybatch.operators.arguments import ARGUMENTS, FIELDS, TEXTS
from airflow_provider_raybatch.operators.base import TEMPLATED_OF_ALL, RayOperator
from airflow_provider_raybatch.operators.batch_plan import batch_plan, check_has_price
from airflow_provider_raybatch.operators.deadline import longest_pause
from airflow_provider_raybatch.operators.handover import (
    closing_line_of,
    failed_by_itself,
    failed_rows,
    publish_asset_events,
    result_of,
)
from airflow_provider_raybatch.operators.parse_check import (
    check_lease,
    known_fields,
    spec_of_known,
    unknown_names,
    warn_of_dag,
)
from airflow_provider_raybatch.operators.plan import JobPlan, TaskRun
from airflow_provider_raybatch.operators.rendering import ObjectsOperator, only_set

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
    from airflow_provider_raybatch.cluster.follow.outcome import Outcome
    from airflow_provider_raybatch.contract.arguments.openai_batch import ServedBatch


ModelTask = Literal["generate", "embed", "classify", "score"] | Embed | Classify | Score


class RayBatchInferenceOperator(ObjectsOperator, RayOperator):
    """Asks a model about each row of a dataset, and hands over a complete, validated dataset.

    Returns a small dictionary, see :func:`~airflow_provider_raybatch.operators.handover.result_of`; the event
    of each outlet ``Asset`` or ``AssetAlias`` has manifest and counts in its `extra`.

    Arguments that no template decides are checked while the DAG is parsed, the others when the task runs. All
    are template fields and take XComs, but a chat template stays as it is. Numbers, durations, booleans,
    lists and dictionaries may be text; ``None`` and empty text count as not given. ``{{ ... }}`` is
    Airflow's, but in ``airflow.sdk.literal``; ``{row.name}`` and ``{row['any name']}`` are filled in on the
    cluster, and every other brace is text.

    Objects take what belongs together: ``limits=Limits(max_gpu_hours=8)``, or the dictionary
    ``{"max_gpu_hours": 8}``. Over a dictionary of `default_args` they are merged name by name.

    Input:

    :param source: files, folders or globs (local, ``file://``, ``s3://``, ``https://``, ``hf://``), one or a
        list; or the result of another batch inference.
    :param format: default: by the file's extension. ``openai_batch``: OpenAI's batch files, whose lines are
        whole requests and replace the arguments of the request.
    :param csv_options: how CSV files are written: `delimiter` (default: comma), `encoding` (default: UTF-8)
        and `header`, ``False`` or a list of names if the first row is data.
    :param limit: read only the first N rows.
    :param id_column: a column whose values identify the rows; default: their positions in the input.

    Request; exactly one of `prompt`, `messages`, `prompt_column`, `prompt_function` and `steps`:

    :param prompt: a row template that becomes one user message.
    :param system_prompt: a row template that becomes the system message.
    :param messages: a chat as a list of ``{"role", "content"}``, each content a row template; or the name of
        a column that holds the chat: a list of structs or maps, or that list as JSON.
    :param prompt_column: a column that holds the raw prompt; no chat template is applied.
    :param prompt_function: ``module:function``, called with each row on the cluster; its source is sent with
        the job.
    :param steps: several questions about each row on one engine: a list of
        :class:`~airflow_provider_raybatch.steps.Step` or of dictionaries with the same names. Each step may
        read earlier answers; `postprocess` gets the last response.
    :param images: a column with the images of each row, or several in the order in which the model sees them:
        bytes, structs with ``bytes``, references (a path, ``file://``, ``s3://``, ``https://``, ``data:``),
        or lists of these. They fill the ``{"type": "image"}`` parts of a chat, else come before the text of
        its first user message. Or :class:`~airflow_provider_raybatch.arguments.Images`, with their bounds.
    :param on_overlong: a prompt that leaves no room for a response: ``error`` (default) fails the row,
        ``truncate`` cuts its longest values (with a pooling model, the end of the text).

    Model and sampling:

    :param model: Hugging Face id, or a folder or bucket prefix (``s3://``, ``gs://``, ``az://``) that the
        cluster's nodes can read by their own identity; not needed with ``echo``.
    :param model_task: ``generate`` text (default), ``embed`` (a vector), ``classify`` (a label and the
        probability of each), or ``score`` (how well a document fits a query); or
        :class:`~airflow_provider_raybatch.arguments.Embed`,
        :class:`~airflow_provider_raybatch.arguments.Classify` or
        :class:`~airflow_provider_raybatch.arguments.Score`, with what the task takes.
    :param adapter: a LoRA adapter for all rows: the folder that PEFT saved, its ``s3://`` prefix (read by the
        nodes' own identity), or a Hugging Face id, ``name@revision`` for one version. Or
        :class:`~airflow_provider_raybatch.arguments.Adapters`, from which rows choose.
    :param sampling: vLLM's sampling parameters, merged over the model's `generation_config`.
    :param response_format: ``text`` (default), ``json_object``, a JSON schema, or a Pydantic model as
        ``module:Model``, whose source is sent with the job. With a schema, vLLM generates only what fits, and
        the dataset has a typed column for each property.
    :param tools: functions that the model may call, in OpenAI's form; the chat template shows them, and the
        dataset gets the column ``tool_calls``. Or :class:`~airflow_provider_raybatch.arguments.Tools`, with
        vLLM's parser of the calls.
    :param chat_template_kwargs: passed to the chat template, such as ``{"enable_thinking": False}``.

    Engine and resources:

    :param engine: ``vllm`` (default), ``ray_data_llm``, or ``echo`` (a dry run without a model).
    :param engine_args: vLLM's engine arguments, such as `tensor_parallel_size`; ``echo`` has its own.
    :param replicas: number of engines, or a range ``(fewest, most)``, which grows as nodes come and shrinks
        as rows run out. Default: as many as the cluster's GPUs hold; one on CPUs.
    :param accelerator_type: Ray's accelerator type that a replica needs, such as ``H200``.
    :param keep_warm: seconds or ``timedelta``, up to a day: how long engines stay loaded for the next task of
        this Airflow with the same engine; released early if another job needs the GPU. 0: take a waiting
        engine, leave none. By default engines end with their job.

    Output:

    :param destination: a folder, local or ``s3://``.
    :param output_prefix: begins the names of the output columns; default none.
    :param output_options: :class:`~airflow_provider_raybatch.arguments.Output`: format, order and files.
    :param reuse: a folder, local or ``s3://``, that keeps responses by request: what any run with the same
        folder has paid for is not asked again. Default none. Or
        :class:`~airflow_provider_raybatch.arguments.Reuse`, also for what a clear asks again.

    Limits:

    :param max_error_fraction: share of rows that may fail, 0 to 1; default 0, or 1 if `max_errors` is given
        or failed rows become error lines (`destination_format` ``openai_batch``).
    :param max_errors: number of rows that may fail; the stricter of the two limits counts.
    :param max_cost: what the GPUs of all attempts since the last clear may cost, in `currency`; needs a
        price. Default: no limit.
    :param limits: :class:`~airflow_provider_raybatch.arguments.Limits`: attempts, tokens, GPU hours and their
        price, and waits.

    Advanced:

    :param advanced: :class:`~airflow_provider_raybatch.arguments.Advanced`: what is derived or seldom needed.

    Access and environment:

    :param aws_conn_id: an ``aws`` connection for the job; default: the cluster's own identity.
    :param hf_conn_id: a connection whose password is a Hugging Face token, for models and ``hf://`` sources.
    :param runtime_env: Ray's runtime environment of the job; `working_dir` is reserved and refused.

    The other parameters are those of :class:`~airflow_provider_raybatch.operators.base.RayOperator`.
    """

    template_fields: Sequence[str] = only_set((
        *ARGUMENTS, "runtime_env", "aws_conn_id", "hf_conn_id", *TEMPLATED_OF_ALL,
    ))  # fmt: skip
    text_fields: ClassVar[frozenset[str]] = frozenset({*TEXTS, "aws_conn_id", "hf_conn_id", "ray_conn_id"})
    has_key: ClassVar[bool] = True
    template_fields_renderers: ClassVar[dict[str, str]] = only_set(dict.fromkeys((
        "csv_options", "messages", "sampling", "engine_args", "chat_template_kwargs", "runtime_env", "steps",
        *GROUPS,
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
        messages: Sequence[Mapping[str, str]] | str | None = None,
        prompt_column: str | None = None,
        prompt_function: str | None = None,
        steps: Sequence[Mapping[str, Any]] | str | None = None,
        images: Images | Mapping[str, Any] | Sequence[str] | str | None = None,
        on_overlong: Literal["error", "truncate"] | None = None,
        model: str | None = None,
        model_task: ModelTask | Mapping[str, Any] | None = None,
        adapter: Adapters | Mapping[str, Any] | str | None = None,
        sampling: Mapping[str, Any] | None = None,
        response_format: Mapping[str, Any] | str | None = None,
        tools: Tools | Mapping[str, Any] | Sequence[Mapping[str, Any]] | str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        engine: Literal["vllm", "ray_data_llm", "echo"] = "vllm",
        engine_args: Mapping[str, Any] | None = None,
        replicas: int | tuple[int | str, int | str] | str | None = None,
        accelerator_type: str | None = None,
        keep_warm: timedelta | float | str | None = None,
        output_prefix: str | None = None,
        output_options: Output | Mapping[str, Any] | None = None,
        reuse: Reuse | Mapping[str, Any] | str | PathLike[str] | None = None,
        max_error_fraction: float | str | None = None,
        max_errors: int | str | None = None,
        max_cost: float | str | None = None,
        limits: Limits | Mapping[str, Any] | None = None,
        advanced: Advanced | Mapping[str, Any] | None = None,
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
        own = partial(self.over_default, kwargs.get("default_args"))
        self.source = source
        self.destination = destination
        self.format = format
        self.csv_options = csv_options
        self.limit = limit
        self.id_column = id_column
        self.prompt = prompt
        self.system_prompt = system_prompt
        self.messages = messages
        self.prompt_column = prompt_column
        self.prompt_function = prompt_function
        self.steps = steps
        self.images = own("images", images)
        self.on_overlong = on_overlong
        self.model = model
        self.model_task = own("model_task", model_task)
        self.adapter = own("adapter", adapter)
        self.sampling = sampling
        self.response_format = response_format
        self.tools = own("tools", tools)
        self.chat_template_kwargs = chat_template_kwargs
        self.engine = engine
        self.engine_args = engine_args
        self.replicas = replicas
        self.accelerator_type = accelerator_type
        self.keep_warm = keep_warm
        self.output_prefix = output_prefix
        self.output_options = own("output_options", output_options)
        self.reuse = own("reuse", reuse)
        self.max_error_fraction = max_error_fraction
        self.max_errors = max_errors
        self.max_cost = max_cost
        self.limits = own("limits", limits)
        self.advanced = own("advanced", advanced)
        self.aws_conn_id = aws_conn_id
        self.hf_conn_id = hf_conn_id
        self.runtime_env = runtime_env
        self._check_at_parse()

    @property
    def _served(self) -> ServedBatch | None:
        """The batch of the Batch API that the task answers."""
        return None

    def arguments(self) -> dict[str, Any]:
        """What shapes the job, as it is given or rendered."""
        return {
            "source": self.source,
            "format": self.format,
            "csv_options": self.csv_options,
            "limit": self.limit,
            "id_column": self.id_column,
            "prompt": self.prompt,
            "system_prompt": self.system_prompt,
            "messages": self.messages,
            "prompt_column": self.prompt_column,
            "prompt_function": self.prompt_function,
            "steps": self.steps,
            "images": self.images,
            "on_overlong": self.on_overlong,
            "model": self.model,
            "model_task": self.model_task,
            "adapter": self.adapter,
            "sampling": self.sampling,
            "response_format": self.response_format,
            "tools": self.tools,
            "chat_template_kwargs": self.chat_template_kwargs,
            "engine": self.engine,
            "engine_args": self.engine_args,
            "replicas": self.replicas,
            "accelerator_type": self.accelerator_type,
            "keep_warm": self.keep_warm,
            "destination": self.destination,
            "output_prefix": self.output_prefix,
            "output_options": self.output_options,
            "reuse": self.reuse,
            "max_error_fraction": self.max_error_fraction,
            "max_errors": self.max_errors,
            "max_cost": self.max_cost,
            "limits": self.limits,
            "advanced": self.advanced,
        }

    def check_known(self, unknown: Collection[str]) -> None:
        """See :meth:`RayOperator.check_known`."""
        given, unknown = known_fields(self.arguments(), unknown, self.depends_on_run)
        unknown |= self._given_later(given)
        spec = spec_of_known(given, unknown, self.depends_on_run)
        for text in unknown_names(spec):
            warn_of_dag(f"Task {self.task_id!r}: {text}")
        if not {"orphan_timeout", "poll_interval"}.intersection(unknown):
            check_lease(spec.orphan_timeout, self.poll_interval)
        if "gpu_hour_price" not in unknown:
            check_has_price(spec, self.ray_cluster)
        if "runtime_env" not in unknown:
            given_mapping(self.runtime_env, "runtime_env")

    def _given_later(self, given: Mapping[str, Any]) -> set[str]:
        """Fields of the spec that a subclass, or a decorated function, may give when the task runs.

        :param given: those that are given while the DAG is parsed.
        """
        if type(self) is RayBatchInferenceOperator:
            return set()
        return set(FIELDS) - (given.keys() - {"engine"})

    def plan(self, run: TaskRun) -> JobPlan:
        """See :meth:`RayOperator.plan`."""
        from airflow_provider_raybatch.hooks.credentials import job_secrets

        secrets = job_secrets(self.aws_conn_id, self.hf_conn_id)
        return batch_plan(self, fields_of(self.arguments()), self.runtime_env, secrets, run, self._served)

    def lease_terms(self, run: TaskRun, submission_id: str) -> LeaseTerms:
        """See :meth:`RayOperator.lease_terms`."""
        from airflow_provider_raybatch.cluster.follow.control import LeaseTerms

        orphan_timeout = seconds(fields_of({"limits": self.limits}).get("orphan_timeout"), "orphan_timeout")
        return LeaseTerms(
            key=run.key_of_job(submission_id),
            attempt=run.attempt,
            deadline=run.deadline.earlier,
            orphan_timeout=LimitArguments().orphan_timeout if orphan_timeout is None else orphan_timeout,
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
