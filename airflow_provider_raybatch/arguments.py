# SPDX-License-Identifier: Apache-2.0
"""Objects with arguments of a batch inference that belong together, such as ``Limits(max_gpu_hours=8)``.

Each is a dictionary, so that Airflow renders templates and finds XComs in it, and a dictionary with the same
names is taken in its place. The names are those of the job's spec: messages, manifest and report use them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from os import PathLike
from typing import Any, Literal


class ArgumentGroup(dict[str, Any]):
    """What is given of some arguments."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """Take what is not ``None`` of the local variables of a subclass's ``__init__``."""
        own = {name: one for name, one in given.items() if one is not None and name not in _OF_PYTHON}
        # Lists at once, since a mapped operator looks at its arguments only when its tasks run.
        super().__init__({name: list(one) if isinstance(one, Iterator) else one for name, one in own.items()})


_OF_PYTHON = ("self", "__class__")


class Images(ArgumentGroup):
    """Images of each row, in place of their columns alone as `images`.

    :param images: a column with the images of each row, or several in the order in which the model sees them.
    :param keep_images: whether the dataset keeps the columns of `images` that hold bytes; default no.
    :param image_roots: folders, local or ``s3://``, below which references may lie; default: the folders of
        the source's files.
    :param image_hosts: host names from which ``https://`` references are fetched; default none.
    :param max_image_bytes: largest image as stored; a larger one fails its row; default 20 MiB.
    :param max_image_pixels: most pixels of an image; one with more fails its row before it is decoded;
        default 64 million.
    :param image_timeout: seconds or ``timedelta`` to fetch and decode one image, default 30.
    """

    def __init__(
        self,
        images: Sequence[str] | str | None = None,
        *,
        keep_images: bool | str | None = None,
        image_roots: Sequence[str] | str | None = None,
        image_hosts: Sequence[str] | str | None = None,
        max_image_bytes: int | str | None = None,
        max_image_pixels: int | str | None = None,
        image_timeout: timedelta | float | str | None = None,
    ) -> None:
        super().__init__(locals())


class Embed(ArgumentGroup):
    """Vectors of texts, as `model_task`.

    :param chunk_tokens: cut each text into chunks of at most this many tokens, special ones included. Each
        chunk is a row with a vector, `chunk_index`, `chunk_text` and `chunk_start`. Default: one vector a
        row.
    :param chunk_overlap_tokens: most tokens that two chunks share, at most half of `chunk_tokens`; default 0.
    :param embed_dtype: type of the numbers in vectors: ``float32`` (default) or ``float16``.
    :param pooling: vLLM's pooling parameters: `dimensions`, if the model is trained for shorter vectors, and
        `use_activation`, ``False`` for vectors of any length.
    """

    def __init__(
        self,
        *,
        chunk_tokens: int | str | None = None,
        chunk_overlap_tokens: int | str | None = None,
        embed_dtype: Literal["float32", "float16"] | None = None,
        pooling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__({"model_task": "embed", **locals()})


class Classify(ArgumentGroup):
    """A label and the probability of each, as `model_task`.

    :param pooling: vLLM's pooling parameters: `use_activation`, ``False`` for raw scores.
    """

    def __init__(self, *, pooling: Mapping[str, Any] | None = None) -> None:
        super().__init__({"model_task": "classify", **locals()})


class Score(ArgumentGroup):
    """How well documents fit a query, as `model_task`.

    :param query: a row template of the query, or one text for all rows.
    :param document: a row template of the text that is scored for the query.
    :param documents_column: for a ranking: a column with a list of such texts, or that list as JSON.
    :param top_n: how many documents a row's ranking keeps; default all.
    :param pooling: vLLM's pooling parameters: `use_activation`, ``False`` for raw scores.
    """

    def __init__(
        self,
        *,
        query: str | None = None,
        document: str | None = None,
        documents_column: str | None = None,
        top_n: int | str | None = None,
        pooling: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__({"model_task": "score", **locals()})


class Adapters(ArgumentGroup):
    """LoRA adapters from which rows choose, in place of one location for all rows as `adapter`.

    :param adapters: locations by the names in `adapter_column`.
    :param adapter_column: a column with the name of each row's adapter; null or empty: the model alone.
    """

    def __init__(
        self, adapters: Mapping[str, str] | str | None = None, *, adapter_column: str | None = None
    ) -> None:
        super().__init__(locals())


class Tools(ArgumentGroup):
    """How the model calls functions, in place of their list alone as `tools`.

    :param tools: functions that the model may call, in OpenAI's form; not needed where steps have theirs.
    :param tool_choice: ``auto`` (default), ``required`` (each response calls a tool), a tool's name or
        OpenAI's form of it (each response calls that tool), or ``none``.
    :param tool_call_parser: vLLM's parser for the model's calls, such as ``hermes``.
    """

    def __init__(
        self,
        tools: Sequence[Mapping[str, Any]] | str | None = None,
        *,
        tool_choice: Mapping[str, Any] | str | None = None,
        tool_call_parser: str | None = None,
    ) -> None:
        super().__init__(locals())


class Output(ArgumentGroup):
    """How the dataset is written, as `output_options`.

    :param destination_format: ``parquet`` (default), ``jsonl``, or ``openai_batch`` for OpenAI's output and
        error files, if `format` is ``openai_batch``, too.
    :param response_column: name of the response's column; default ``response`` after `output_prefix`.
    :param postprocess: ``module:function``, called as ``function(row, response)`` for each good row on the
        cluster; returns a dictionary of columns to add. Its source is sent with the job; a changed function
        asks no row again.
    :param preserve_order: whether the dataset has the input's order; default no.
    :param rows_per_part: about how many rows a file has; default: files of about 128 MiB, at most 250,000
        rows.
    :param on_destination_owned: a folder with another run's dataset: ``refuse`` it (default) or
        ``take_over``.
    :param report_samples: how many good rows the report shows, 0 to 100, default 10. With 0, no log, event,
        result, manifest or report quotes a row: content is only in the dataset, its dead letters and error
        files.
    """

    def __init__(
        self,
        *,
        destination_format: Literal["parquet", "jsonl", "openai_batch"] | None = None,
        response_column: str | None = None,
        postprocess: str | None = None,
        preserve_order: bool | str | None = None,
        rows_per_part: int | str | None = None,
        on_destination_owned: Literal["refuse", "take_over"] | None = None,
        report_samples: int | str | None = None,
    ) -> None:
        super().__init__(locals())


class Reuse(ArgumentGroup):
    """Which answers are taken again, in place of the folder alone as `reuse`.

    :param reuse: a folder, local or ``s3://``, that keeps responses by request; default none.
    :param reuse_max_age: seconds or ``timedelta`` after which a kept response is not taken; default never.
    :param deduplicate: ask equal requests at temperature 0 once; default yes. ``ray_data_llm`` asks each row.
    :param on_clear: after a clear, ``keep`` the rows that still ask the same (default), or ``regenerate``
        all, also those in `reuse`.
    """

    def __init__(
        self,
        reuse: str | PathLike[str] | None = None,
        *,
        reuse_max_age: timedelta | float | str | None = None,
        deduplicate: bool | str | None = None,
        on_clear: Literal["keep", "regenerate"] | None = None,
    ) -> None:
        super().__init__(locals())


class Limits(ArgumentGroup):
    """How much a run may use, and how long it waits, as `limits`.

    :param max_row_attempts: how often a row that fails is asked, over all attempts; default 3.
    :param max_restarts: how often in a row a replica's engine may die without a finished row in between;
        default 3. The search for a row that kills it does not count.
    :param max_tokens_total: input and output tokens that all attempts may pay for; default: no limit.
    :param max_gpu_hours: GPU hours that the replicas of one attempt may hold; waiting for nodes costs none.
        Default: no limit.
    :param gpu_hour_price: price of a GPU hour: a number for any GPU, in place of the connection's prices, or
        a dictionary by Ray's accelerator type, such as ``{"H100": 3.9, "*": 1.2}`` (``*``: all others),
        merged over them. Default: the connection's.
    :param currency: currency of `gpu_hour_price` and `max_cost`, three letters as in ISO 4217; default: the
        connection's, else ``USD``.
    :param cluster_wait: seconds or ``timedelta`` to wait for missing nodes; default 900 if an autoscaler may
        bring them, 300 if an earlier attempt of the run had them, else 0. A cluster that is made for the job
        gets as long for its head, and its own `cluster_wait` is the default.
    :param no_progress_timeout: seconds or ``timedelta`` without a finished row, a generated token or a
        loading engine, after which the job fails; default 1,800.
    :param orphan_timeout: seconds or ``timedelta`` without a follower after which a job writes what is
        finished and ends; default 6 hours, at least three times `poll_interval`; 0: never.
    """

    def __init__(
        self,
        *,
        max_row_attempts: int | str | None = None,
        max_restarts: int | str | None = None,
        max_tokens_total: int | str | None = None,
        max_gpu_hours: float | str | None = None,
        gpu_hour_price: Mapping[str, float] | float | str | None = None,
        currency: str | None = None,
        cluster_wait: timedelta | float | str | None = None,
        no_progress_timeout: timedelta | float | str | None = None,
        orphan_timeout: timedelta | float | str | None = None,
    ) -> None:
        super().__init__(locals())


class Advanced(ArgumentGroup):
    """What is derived, or seldom needed, as `advanced`.

    :param on_blank: rows whose prompt values are all null, empty or white space: ``ask`` (default), though a
        null fails its row; ``"null"`` keeps the row without a request and an answer; ``error`` fails it.
    :param on_truncated: ``keep`` a truncated response (default), or fail its row (``error``), which the next
        attempt asks again.
    :param special_tokens_in_text: special tokens in a row's text, such as ``<|im_end|>``, act as turns of the
        chat: ``keep`` them (default), ``escape`` them, or fail the row (``error``).
    :param chat_template: replaces the tokenizer's; never templated by Airflow.
    :param sampling_column: a column, struct or JSON text, with sampling parameters that override `sampling`
        for its row.
    :param served_model_name: `model` in the lines of an OpenAI batch file; default: the operator's `model`.
    :param num_gpus: share of one GPU for each engine, such as 0.5, so that small models share it; default:
        whole GPUs, by the engine's parallel sizes.
    :param num_cpus: CPUs that each replica reserves; default 1, less if a GPU node has few.
    :param rows_in_flight: rows at once in a replica's engine; default: a little more than `max_num_seqs`.
    :param batch_size: rows that are rendered and tokenised together; default: derived.
    :param flush_interval: seconds or ``timedelta`` within which a finished row is written, default 10.
    :param processor: with ``ray_data_llm``: further fields of Ray's processor config.
    """

    def __init__(
        self,
        *,
        on_blank: Literal["ask", "null", "error"] | None = None,
        on_truncated: Literal["keep", "error"] | None = None,
        special_tokens_in_text: Literal["keep", "escape", "error"] | None = None,
        chat_template: str | None = None,
        sampling_column: str | None = None,
        served_model_name: str | None = None,
        num_gpus: float | str | None = None,
        num_cpus: float | str | None = None,
        rows_in_flight: int | str | None = None,
        batch_size: int | str | None = None,
        flush_interval: timedelta | float | str | None = None,
        processor: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(locals())
