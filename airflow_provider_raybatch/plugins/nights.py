# SPDX-License-Identifier: Apache-2.0
"""The last nights of a task, from what Airflow knows: states, and the numbers that the task returned."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from airflow_provider_raybatch.contract.run_numbers import is_amount, numbers_in
from airflow_provider_raybatch.plugins.reading import TaskInstance

MOST_NIGHTS = 25
MOST_INSTANCES = 50
"""Of a mapped task, in all nights together."""

_ALL_ENDED = ("failed", "upstream_failed", "running", "deferred", "up_for_retry", "queued", "scheduled")
"""States of which one instance gives its state to a whole night, in this order."""


@dataclass(frozen=True)
class Numbers:
    """What a task returned about its run; ``None`` where it is not a number.

    Whoever may edit XComs can change it, so nothing else is taken out of there.
    """

    rows: float | None = None
    errors: float | None = None
    tokens_paid: float | None = None
    seconds: float | None = None
    gpu_seconds: float | None = None
    cost: float | None = None
    currency: str | None = None


@dataclass(frozen=True)
class Instance:
    """A task instance with its numbers.

    :param at: the run's logical date, or when it was due where it has none.
    :param duration: seconds, as Airflow measured them.
    """

    ti: TaskInstance
    at: datetime.datetime | None
    state: str
    duration: float | None = None
    numbers: Numbers = field(default_factory=Numbers)


@dataclass(frozen=True)
class Night:
    """A run of the DAG.

    :param instances: of the task; several where it is mapped.
    :param numbers: sums.
    """

    run_id: str
    at: datetime.datetime | None
    state: str
    seconds: float | None
    numbers: Numbers
    instances: Sequence[Instance]


def instance_of(found: Mapping[str, Any]) -> Instance | None:
    """What Airflow's API says of a task instance; ``None`` where that is not usable."""
    run_id, map_index = found.get("dag_run_id"), found.get("map_index")
    if not isinstance(run_id, str) or not isinstance(map_index, int):
        return None
    ti = TaskInstance(str(found.get("dag_id")), run_id, str(found.get("task_id")), map_index)
    state, duration = found.get("state"), found.get("duration")
    return Instance(
        ti=ti,
        at=_time(found.get("logical_date")) or _time(found.get("run_after")),
        state=state if isinstance(state, str) and state else "no state",
        duration=duration if is_amount(duration) else None,
    )


def numbers_of(result: Any) -> Numbers:
    """The numbers in what a task returned."""
    found = numbers_in(result)
    return Numbers(**{one.name: found.get(one.name) for one in fields(Numbers)})


def nights_of(instances: Sequence[Instance], cut: bool = False) -> list[Night]:
    """The nights, newest first.

    :param instances: newest first.
    :param cut: whether there are older ones, some maybe of the oldest night here; it is left out then,
        unless there is only one.
    """
    by_run: dict[str, list[Instance]] = {}
    for one in instances:
        by_run.setdefault(one.ti.run_id, []).append(one)
    nights = [_night(run_id, found) for run_id, found in by_run.items()]
    if cut and len(nights) > 1 and len(nights[-1].instances) > 1:
        nights.pop()
    return nights[:MOST_NIGHTS]


def _night(run_id: str, instances: Sequence[Instance]) -> Night:
    numbers = [one.numbers for one in instances]
    currencies = {one.currency for one in numbers if one.cost}
    states = {one.state for one in instances}
    # Amounts in several currencies have no sum, nor have some without those of other GPUs.
    has_cost = len(currencies) <= 1 and all(one.cost is not None for one in numbers if one.gpu_seconds)
    return Night(
        run_id=run_id,
        at=instances[0].at,
        state=next((state for state in _ALL_ENDED if state in states), instances[0].state),
        seconds=_longest([one.seconds for one in numbers]) or _longest([one.duration for one in instances]),
        numbers=Numbers(
            rows=_sum([one.rows for one in numbers]),
            errors=_sum([one.errors for one in numbers]),
            tokens_paid=_sum([one.tokens_paid for one in numbers]),
            gpu_seconds=_sum([one.gpu_seconds for one in numbers]),
            cost=_sum([one.cost for one in numbers]) if has_cost else None,
            currency=next(iter(currencies), None) if has_cost else None,
        ),
        instances=sorted(instances, key=lambda one: one.ti.map_index),
    )


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _longest(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _time(text: Any) -> datetime.datetime | None:
    try:
        made = datetime.datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return made if made.tzinfo else made.replace(tzinfo=datetime.UTC)
