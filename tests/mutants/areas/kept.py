# SPDX-License-Identifier: Apache-2.0
"""Engines that outlive their jobs: whose they are, and when they end."""

from __future__ import annotations

from ..mutant import Mutant

_KEEPER, _TAKING = "job/execution/kept/keeper.py", "job/execution/kept/taking.py"
_KEEPER_TESTS, _TAKING_TESTS = (f"job/execution/kept/test_{name}.py" for name in ("keeper", "taking"))

MUTANTS = (
    Mutant(
        "kept-for-another-airflow",
        _TAKING,
        '        task.namespace if task is not None else "",\n',
        "",
        "A task is answered by an engine of another Airflow.",
        (f"{_TAKING_TESTS}::test_what_decides_the_engine_and_its_owner_counts",),
    ),
    Mutant(
        "kept-with-anothers-token",
        _TAKING,
        "        {name: value.get_secret_value() for name, value in environment.items()},\n",
        "",
        "A task uses a model that another one's Hugging Face token has loaded.",
        (f"{_TAKING_TESTS}::test_what_decides_the_engine_and_its_owner_counts",),
    ),
    Mutant(
        "kept-while-others-wait",
        _KEEPER,
        "now >= self._ends_at or (waits and waited)",
        "now >= self._ends_at",
        "A job waits for the GPUs of an engine that no job uses.",
        (f"{_KEEPER_TESTS}::test_it_makes_room_while_it_has_no_user",),
    ),
    Mutant(
        "kept-for-a-dead-user",
        _KEEPER,
        "                    ends = now - self._heard_of_user > silent\n",
        "                    ends = False\n",
        "An engine whose job was killed holds its GPUs without end.",
        (f"{_KEEPER_TESTS}::test_it_ends_with_a_user_that_is_silent",),
    ),
    Mutant(
        "kept-though-its-replica-died",
        _KEEPER,
        "        if before is not None and before.actor == user.actor:\n",
        "        if False:\n",
        "A replica that died waits for the GPU that its own former engine holds.",
        (f"{_KEEPER_TESTS}::test_it_ends_when_its_user_has_died_and_starts_again",),
    ),
)
