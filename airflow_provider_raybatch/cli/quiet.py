# SPDX-License-Identifier: Apache-2.0
"""Keep Airflow's log lines and warnings out of a verb's output."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def quietly(call: Callable[[], Result]) -> Result:
    """Return or raise what `call` does, without anything that it logs."""
    from airflow.utils.cli import suppress_logs_and_warning

    results: list[Result] = []

    def keep(options: Namespace) -> None:
        results.append(call())

    suppress_logs_and_warning(keep)(Namespace(verbose=False))
    return results[0]
