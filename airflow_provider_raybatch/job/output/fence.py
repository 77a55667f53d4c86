# SPDX-License-Identifier: Apache-2.0
"""Which of a task's runs may still claim: an older one never after a newer one."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_raybatch.contract.run_token import run_number


def is_overtaken(token: str, claimed: Sequence[str]) -> bool:
    """Whether a newer run of the same task has claimed before the run `token` could.

    Runs are ordered by their numbers. A number is that of one run, so a second run of the same number belongs
    to a DAG run that was deleted and made again, whose tries Airflow counts from 1: with it a new order
    begins, and all runs before it are older ones. Runs of versions that gave no numbers have all 0, so each
    new one of them counts as newer.

    :param claimed: tokens of the task's entries in the journal, oldest first.
    """
    runs: dict[int, str] = {}  # of one DAG run, by number
    for one in dict.fromkeys([*claimed, token]):
        number = run_number(one)
        if number in runs:
            runs.clear()
        runs[number] = one
    return runs.get(run_number(token)) != token or run_number(token) < max(runs)
