# SPDX-License-Identifier: Apache-2.0
"""Bounds of a job, and what an hour of each accelerator costs, under Ray's name of it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from airflow_provider_raybatch.contract.base import ContractModel, Seconds, SpecPart, shown

_NAMES = (
    "A10G", "A100", "A100-40G", "A100-80G", "B200", "B300", "GB200", "GB300", "H20", "H100", "H200", "K80",
    "L4", "L40S", "P4", "P100", "RTX-PRO-6000", "T4", "V100",
    "AMD-Instinct-MI100", "AMD-Instinct-MI210", "AMD-Instinct-MI250X", "AMD-Instinct-MI250X-MI250",
    "AMD-Instinct-MI300A", "AMD-Instinct-MI300X-HF", "AMD-Instinct-MI300X-OAM", "AMD-Instinct-MI308X",
    "AMD-Instinct-MI325X-OAM", "AMD-Instinct-MI350X-OAM", "AMD-Instinct-MI355X-OAM",
    "Intel-GAUDI", "Intel-GPU-Max-1100", "Intel-GPU-Max-1550",
    "TPU-V4", "TPU-V5LITEPOD", "TPU-V5P", "TPU-V6E", "TPU-V7X",
)  # fmt: skip
"""Of ``ray.util.accelerators``. Other GPUs go by their product's name, and nodes may have own types."""
_VENDOR = re.compile(r"^(nvidia|tesla|geforce)[\s_-]+")
_NOT_OF_A_NAME = re.compile(r"[^a-z0-9]|(?<=\dg)b$")


def _bare(name: str) -> str:
    bare = name.strip().lower()
    while (shorter := _VENDOR.sub("", bare)) != bare:
        bare = shorter
    return _NOT_OF_A_NAME.sub("", bare)


_BY_BARE_NAME = {_bare(name): name for name in _NAMES}


def checked_type(name: str) -> str:
    """The name itself.

    :raises ValueError: it misspells one of Ray's.
    """
    meant = _BY_BARE_NAME.get(_bare(name))
    if meant is not None and name not in _NAMES:
        raise ValueError(f"Ray calls {name!r} {meant!r}; write it so")
    return name


def knows(name: str) -> bool:
    """Whether Ray has such a name itself."""
    return name in _NAMES


AcceleratorType = Annotated[str, AfterValidator(checked_type)]
"""A field that holds an accelerator type; a known one must be written as Ray does."""


def close_types(name: str, others: Iterable[str]) -> list[str]:
    """Up to three accelerator types that `name` may mean: of `others` and of those that Ray knows."""
    by_bare_name = _BY_BARE_NAME | {_bare(other): other for other in others}
    close = difflib.get_close_matches(_bare(name), by_bare_name, n=3, cutoff=0.5)
    inside = [bare for bare in by_bare_name if _bare(name).startswith(bare) and bare not in close]
    return [by_bare_name[bare] for bare in (*sorted(inside, key=len, reverse=True), *close)][:3]


class LimitArguments(ContractModel):
    """Bounds of a job; none of them changes what is generated.

    :param deadline: epoch seconds at which the job ends itself, ``None`` for no deadline.
    """

    max_error_fraction: float | None = Field(default=None, ge=0.0, le=1.0)
    max_errors: int | None = Field(default=None, ge=0)
    max_row_attempts: int = Field(default=3, ge=1)
    max_tokens_total: int | None = Field(default=None, ge=1)
    max_gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    keep_warm: Seconds | None = Field(default=None, ge=0, le=86400)
    flush_interval: Seconds = Field(default=10.0, gt=0)
    no_progress_timeout: Seconds = Field(default=1800.0, gt=0)
    cluster_wait: Seconds | None = Field(default=None, ge=0)
    orphan_timeout: Seconds = Field(default=6 * 3600.0, ge=0)
    deadline: float | None = None


ANY = "*"
"""Instead of an accelerator type: all that are not named."""
DEFAULT_CURRENCY = "USD"
_CURRENCY = re.compile(r"[A-Z]{3}")


def _number(given: Any) -> Any:
    if isinstance(given, bool):
        raise ValueError(f"it must be a number, but it is {shown(given)}")
    return given


Price = Annotated[float, BeforeValidator(_number), Field(ge=0.0, allow_inf_nan=False)]
"""Of one GPU for one hour."""


def _of_any(given: Any) -> Any:
    """By type: a number is the price of any."""
    if given is None or isinstance(given, Mapping):
        return given
    try:
        return {ANY: float(_number(given))}
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            "it must be a number, or a dictionary by accelerator type such as {'H100': 3.9}, but it is "
            f"{shown(given)}"
        ) from None


def _with_known_types(prices: dict[str, float]) -> dict[str, float]:
    for name in prices:
        checked_type(name)
    return prices


GpuHourPrice = Annotated[dict[str, Price], AfterValidator(_with_known_types), BeforeValidator(_of_any)]
"""By Ray's accelerator type, and :data:`ANY`; a number is the price of any."""


def _of_iso_4217(name: str) -> str:
    if not _CURRENCY.fullmatch(name):
        raise ValueError(f"{shown(name)} is not a currency as in ISO 4217, such as USD or EUR")
    return name


Currency = Annotated[str, AfterValidator(_of_iso_4217)]
"""Three letters of ISO 4217."""


class CostArguments(SpecPart):
    """Prices and a limit; neither changes what is generated.

    :param gpu_hour_price: by Ray's accelerator type; a number is that of any, under :data:`ANY`. ``None``
        where it is not known.
    :param max_cost: in `currency`.
    :param currency: what prices are in, three letters of ISO 4217.
    """

    gpu_hour_price: GpuHourPrice | None = None
    max_cost: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    currency: Currency = DEFAULT_CURRENCY

    def price_of(self, accelerator_type: str | None) -> float | None:
        """Of a GPU for an hour; ``None`` where it is not known."""
        prices = self.gpu_hour_price or {}
        return prices.get(accelerator_type or "", prices.get(ANY))
