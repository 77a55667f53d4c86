# SPDX-License-Identifier: Apache-2.0
"""Numbers of workers and of their GPUs."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.coercion import from_text, typed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError

MOST_GPUS = 16
"""Of one node, whatever the cloud."""


def check_gpus(name: str, value: Any) -> None:
    """Refuse what is not a number of GPUs of a node."""
    number = _whole(name, value)
    if not 0 <= number <= MOST_GPUS:
        raise SpecError(f"{name}: {shown(value)} is not a number of GPUs of a node; give 0 to {MOST_GPUS}.")


def check_range(name: str, value: Any) -> None:
    """Refuse what is neither a number of workers nor fewest and most."""
    worker_range(value, name)


def worker_range(value: Any, name: str) -> tuple[int, int | None]:
    """Fewest and most workers of a number, a pair or the text of one; most may be ``None``.

    :raises SpecError: it is something else.
    """
    value = from_text(value)
    if not isinstance(value, (list, tuple)):
        number = _at_least_0(name, value)
        return number, number
    if len(value) != 2:
        raise SpecError(f"{name}: {shown(value)} is not (fewest, most); give two numbers, or one.")
    fewest = _at_least_0(name, 0 if value[0] is None else value[0])
    if value[1] is None:
        return fewest, None
    most = _at_least_0(name, value[1])
    if fewest > most:
        raise SpecError(f"{name}: the fewest, {fewest}, are more than the most, {most}; exchange them.")
    return fewest, most


def _at_least_0(name: str, value: Any) -> int:
    number = _whole(name, value)
    if number < 0:
        raise SpecError(f"{name}: it must be at least 0, but it is {shown(value)}.")
    return number


def _whole(name: str, value: Any) -> int:
    number = typed(value, int, name)
    if isinstance(number, bool) or not isinstance(number, int):
        raise SpecError(f"{name}: it must be a whole number, but it is {shown(value)}.")
    return number
