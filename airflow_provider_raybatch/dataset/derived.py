# SPDX-License-Identifier: Apache-2.0
"""The manifest of a dataset that a task wrote; a batch inference has its own."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.location import s3_prefix
from airflow_provider_raybatch.contract.manifest import Column, ManifestFile


class DerivedManifest(ContractModel):
    """A complete, immutable dataset of Parquet files.

    :param uri: the folder that holds `files` and nothing else.
    :param files: in the order of the dataset; if partitioned, below ``<column>=<value>/``.
    :param partitioned_by: columns that are in the paths and not in the files, as in Hive.
    :param created_at: ISO 8601, in UTC.
    """

    schema_version: Literal[1] = 1
    kind: Literal["derived"] = "derived"
    uri: str
    manifest_uri: str
    format: Literal["parquet"] = "parquet"
    files: list[ManifestFile]
    columns: list[Column] = Field(alias="schema")
    partitioned_by: list[str] = Field(default_factory=list)
    rows: int = Field(ge=0)
    created_at: str

    def result(self) -> dict[str, Any]:
        """What a task returns: the same names as in a batch inference's result."""
        return {
            "uri": self.uri,
            **s3_prefix(self.uri),
            "manifest_uri": self.manifest_uri,
            "format": self.format,
            "rows": self.rows,
        }


def is_derived(content: bytes) -> bool:
    """Whether a document is such a manifest."""
    try:
        return bool(json.loads(content).get("kind") == "derived")
    except (ValueError, AttributeError):
        return False
