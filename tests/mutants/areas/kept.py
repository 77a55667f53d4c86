# SPDX-License-Identifier: Apache-2.0
"""Engines that outlive their jobs: whose they are, and when they end."""

from __future__ import annotations

from ..mutant import Mutant

_KEEPER, _TENANCY, _DEMAND, _WANTED = (
    f"job/execution/kept/{name}.py" for name in ("keeper", "tenancy", "demand", "wanted")
)
_KEEPER_TESTS, _TENANCY_TESTS, _DEMAND_TESTS, _WANTED_TESTS = (
    f"job/execution/kept/test_{name}.py" for name in ("keeper", "tenancy", "demand", "wanted")
)

MUTANTS = (
    Mutant(
        "kept-for-another-airflow",
        _WANTED,
        '        task.namespace if task is not None else "",\n',
        "",
        "A task is answered by an engine of another Airflow.",
        (f"{_WANTED_TESTS}::test_what_decides_the_engine_and_its_owner_counts",),
    ),
    Mutant(
        "kept-with-anothers-token",
        _WANTED,
        "        {name: value.get_secret_value() for name, value in environment.items()},\n",
        "",
        "A task uses a model that another one's Hugging Face token has loaded.",
        (f"{_WANTED_TESTS}::test_what_decides_the_engine_and_its_owner_counts",),
    ),
    Mutant(
        "kept-while-others-wait",
        _TENANCY,
        "gives_way or now >= self._ends_at",
        "now >= self._ends_at",
        "A job waits for the GPUs of an engine that no job uses.",
        (f"{_TENANCY_TESTS}::test_it_makes_room_after_a_while_of_rest",),
    ),
    Mutant(
        "gone-before-its-like-could-take-it",
        _TENANCY,
        "is_wanted and now - self._since >= KEPT_FOR_ITS_LIKE",
        "is_wanted",
        "A job that waits for a warm engine makes it end.",
        (f"{_TENANCY_TESTS}::test_it_makes_room_after_a_while_of_rest",),
    ),
    Mutant(
        "kept-for-a-dead-user",
        _TENANCY,
        'return "kill" if now - self._heard > (LONGEST_START if self._waits else SILENT) else "stay"',
        'return "stay"',
        "An engine whose job was killed holds its GPUs without end.",
        (f"{_TENANCY_TESTS}::test_a_silent_user_is_dead",),
    ),
    Mutant(
        "kept-though-its-return-hangs",
        _TENANCY,
        'return "kill" if now - self._heard > LONGEST_RETURN else "stay"',
        'return "stay"',
        "An engine that does not come to rest holds its GPUs without end.",
        (f"{_TENANCY_TESTS}::test_a_return_that_hangs_is_ended",),
    ),
    Mutant(
        "taken-before-it-rests",
        _TENANCY,
        'self._phase, self._user, self._seconds = "returned", None, seconds',
        'self._phase, self._user, self._seconds = "free", None, seconds',
        "Requests of a job are cancelled as another's that had the engine before.",
        (f"{_TENANCY_TESTS}::test_one_user_at_a_time",),
    ),
    Mutant(
        "all-idle-engines-make-room",
        _DEMAND,
        "if any(amounts.get(name, 0) > room.get(name, 0) + _LEAST for name in one.amounts):",
        "if one.amounts:",
        "One request for a GPU ends all engines that wait.",
        (f"{_DEMAND_TESTS}::test_one_node",),
    ),
    Mutant(
        "engine-of-other-files",
        _KEEPER,
        "is_equal = resting is not None and identity == self._identity",
        "is_equal = resting is not None",
        "After a model's files were replaced, rows are answered by the old ones.",
        (f"{_KEEPER_TESTS}::test_an_engine_of_other_files_is_ended_with_its_process",),
    ),
    Mutant(
        "late-messages-pass",
        _KEEPER,
        "            self._check(user)\n            if self._front_end is not None:\n",
        "            if self._front_end is not None:\n",
        "A job's last messages reach the engine of the next one.",
        (f"{_KEEPER_TESTS}::test_what_comes_after_the_return_reaches_no_one",),
    ),
)
