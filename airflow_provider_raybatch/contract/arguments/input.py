# SPDX-License-Identifier: Apache-2.0
"""Where the rows come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.location import SOURCE_SCHEMES, check_location

SourceFormat = Literal["parquet", "jsonl", "csv"]


class InputArguments(ContractModel):
    """Where the rows come from.

    :param source: files, folders or globs: local paths, ``file://``, ``s3://`` or ``https://`` (files only).
    :param format: by default the file extension tells.
    :param limit: only the first so many rows, to try things out.
    :param id_column: a column whose values name the rows, each once; by default a row's name is its position
        in the input.
    """

    source: list[str] = Field(min_length=1)
    format: SourceFormat | None = None
    limit: int | None = Field(default=None, ge=1)
    id_column: str | None = Field(default=None, min_length=1)

    @field_validator("source")
    @classmethod
    def _readable_schemes(cls, paths: list[str]) -> list[str]:
        for path in paths:
            check_location(path, SOURCE_SCHEMES)
        return paths
