# SPDX-License-Identifier: Apache-2.0
"""Where the rows come from."""

from __future__ import annotations

import codecs
import re
from typing import Literal

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown
from airflow_provider_raybatch.contract.location import SOURCE_SCHEMES, check_location
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


class InputArguments(ContractModel):
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
