# SPDX-License-Identifier: Apache-2.0
"""The rows of a job: where they come from, and where the dataset goes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from typing import Literal

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import (
    ColumnName,
    ContractModel,
    ImportPath,
    Seconds,
    SpecPart,
    shown,
)
from airflow_provider_raybatch.contract.location import SOURCE_SCHEMES, FolderLocation, check_location
from airflow_provider_raybatch.contract.run_numbers import LastRun
from airflow_provider_raybatch.contract.text import shown_uri

_SEVERAL = re.compile(r"""[,;\s]\s*[a-z0-9]+://|^/.*,\s*/|^\[\s*['"]""")
"""A list of paths that was written as one text."""

SourceFormat = Literal["parquet", "jsonl", "csv", "arrow", "openai_batch"]


class CsvOptions(ContractModel):
    """How CSV files are written, where that is not as RFC 4180 says.

    :param delimiter: between fields: one ASCII character; by default a comma, and a tab in files whose names
        end in ``.tsv``.
    :param encoding: of the text, under Python's name for it, such as ``cp1252`` or ``utf-16``.
    :param header: whether the first row names the columns. Without one they are ``column_1``, ``column_2``
        and so on, or have the names of this list.
    """

    delimiter: str | None = None
    encoding: str = "utf-8"
    header: bool | tuple[str, ...] = True

    @field_validator("delimiter")
    @classmethod
    def _one_character(cls, value: str | None) -> str | None:
        if value is not None and (len(value) != 1 or not value.isascii() or value in '"\r\n\0'):
            raise ValueError(
                f"it must be one ASCII character and neither a quote nor a line end, but it is {shown(value)}"
            )
        return value

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            "".encode(value)
            return codecs.lookup(value).name
        except (LookupError, ValueError):
            raise ValueError(
                f"Python has no text encoding {shown(value)}; common ones are 'utf-8', 'utf-16', 'cp1252' "
                "and 'latin-1'"
            ) from None

    @field_validator("header")
    @classmethod
    def _names_apart(cls, value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        if isinstance(value, tuple) and (not value or len(set(value)) < len(value)):
            raise ValueError(f"it must name each column, each differently, not {shown(list(value))}")
        return value


class InputArguments(SpecPart):
    """Where the rows come from."""

    source: list[str] = Field(min_length=1)
    format: SourceFormat | None = None
    csv_options: CsvOptions | None = None
    limit: int | None = Field(default=None, ge=1)
    id_column: str | None = Field(default=None, min_length=1)

    @field_validator("source")
    @classmethod
    def _readable_schemes(cls, paths: list[str]) -> list[str]:
        for path in paths:
            if _SEVERAL.search(path):
                raise ValueError(
                    f"{shown_uri(path)!r} has a list in one text; write a list of paths, such as "
                    "['s3://a/x', 's3://a/y']"
                )
            check_location(path, SOURCE_SCHEMES)
        return paths


OutputFormat = Literal["parquet", "jsonl", "openai_batch"]

REUSED_COLUMN = "reused_from"
OUTPUT_COLUMNS = (
    "response", "finish_reason", "input_tokens", "cached_tokens", "output_tokens", "completions",
    REUSED_COLUMN,
)  # fmt: skip
"""Of text generation, before `output_prefix`; the last two are not in every dataset."""


class OutputArguments(SpecPart):
    """Where the dataset goes, and what it holds.

    :param postprocess: part of the fingerprint, and neither of the response digest nor of the request keys,
        so that changing it pays for no response.
    :param postprocess_digest: hash of the source that travels with the job, set at submission, so that
        changed code is a changed job.
    :param embed_dtype: of the numbers in vectors; engines make, and the response store keeps, ``float32``.
    """

    destination: FolderLocation
    destination_format: OutputFormat = "parquet"
    rows_per_part: int | None = Field(default=None, ge=1)
    on_destination_owned: Literal["refuse", "take_over"] = "refuse"
    output_prefix: str = ""
    response_column: ColumnName | None = None
    postprocess: ImportPath | None = None
    postprocess_digest: str | None = None
    preserve_order: bool = False
    embed_dtype: Literal["float32", "float16"] = "float32"

    def own_columns(self, optional: Iterable[str]) -> dict[str, str]:
        """Columns that a dataset may have of its own, in lower case, each with what to do for another's.

        :param optional: those that only some jobs have, before `output_prefix`.
        """
        names = [self.output_prefix + name for name in (*OUTPUT_COLUMNS, *optional)]
        names[0] = self.response_column or names[0]
        remedy = {name.lower(): "which the dataset has of its own; rename the property" for name in names}
        remedy[names[0].lower()] = "which has the text of the response; set response_column"
        return remedy


class ReuseArguments(SpecPart):
    """Which responses are not paid for again."""

    reuse: FolderLocation | None = None
    reuse_max_age: Seconds | None = Field(default=None, gt=0)
    deduplicate: bool = True
    on_clear: Literal["keep", "regenerate"] = "keep"


class ReportArguments(SpecPart):
    """What the report shows; nothing of it changes what is generated.

    :param report_samples: rows with prompt and answer; with 0, content of rows is in the dataset, its dead
        letters and error files alone: neither in the report nor in logs, events, manifest and failures.
    :param last_run: numbers of the task's last dataset, as Airflow knows them; where the destination has it,
        its manifest counts.
    """

    report_samples: int = Field(default=10, ge=0, le=100)
    last_run: LastRun | None = None

    @property
    def shows_rows(self) -> bool:
        """Whether reports, logs and failures may quote what rows hold."""
        return self.report_samples > 0
