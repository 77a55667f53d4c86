# SPDX-License-Identifier: Apache-2.0
"""What a GPU hour costs, and how much a job may cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown

Price = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
"""Of one GPU for one hour."""

ANY = "*"
"""Instead of an accelerator type: all that are not named."""


class CostArguments(ContractModel):
    """Prices and a limit; neither changes what is generated.

    :param gpu_hour_price: by Ray's accelerator type; a number is that of any, under :data:`ANY`. ``None``
        where it is not known.
    :param max_cost: in `currency`.
    :param currency: what prices are in, three letters of ISO 4217; of the connection.
    """

    gpu_hour_price: dict[str, Price] | None = None
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    currency: str = Field(default="USD", pattern="^[A-Z]{3}$")

    @field_validator("gpu_hour_price", mode="before")
    @classmethod
    def _of_any(cls, given: Any) -> Any:
        if given is None or isinstance(given, Mapping):
            return given
        try:
            return {ANY: float(given)}
        except (TypeError, ValueError):
            raise ValueError(
                "it must be a number, or a dictionary by accelerator type such as {'H100': 3.9}, but it is "
                f"{shown(given)}"
            ) from None
