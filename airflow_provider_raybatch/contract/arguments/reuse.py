# SPDX-License-Identifier: Apache-2.0
"""Which responses are not paid for again."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.contract.durations import Seconds
from airflow_provider_raybatch.contract.location import FolderLocation


class ReuseArguments(ContractModel):
    """Which responses are not paid for again."""

    reuse: FolderLocation | None = None
    reuse_max_age: Seconds | None = Field(default=None, gt=0)
    deduplicate: bool = True
    on_clear: Literal["keep", "regenerate"] = "keep"

    @model_validator(mode="after")
    def _max_age_of_a_store(self) -> ReuseArguments:
        if self.reuse_max_age is not None and self.reuse is None:
            raise ValueError(
                "reuse_max_age: it has no effect without reuse; name the folder of a response store"
            )
        return self
