# SPDX-License-Identifier: Apache-2.0
"""Ray's names of accelerators, and the one that another spelling means."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Annotated

from pydantic import AfterValidator

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
