# SPDX-License-Identifier: Apache-2.0
"""Which of a task's runs may still claim: an older one never after a newer one."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_raybatch.contract.submission import run_number


def is_overtaken(token: str, claimed: Sequence[str]) -> bool:
    """Whether a newer run of the same task has claimed before the run `token` could.

    Runs are ordered by their numbers. If a second run has the same number, the DAG run was deleted and made
    again, and Airflow counts its tries from 1: a new order begins, and all runs before it are older.

    :param claimed: tokens of the task's entries in the journal, oldest first.
    """
    runs: dict[int, str] = {}  # of one DAG run, by number
    for one in dict.fromkeys([*claimed, token]):
        number = run_number(one)
        if number in runs:
            runs.clear()
        runs[number] = one
    return runs.get(run_number(token)) != token or run_number(token) < max(runs)
