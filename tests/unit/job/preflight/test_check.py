# SPDX-License-Identifier: Apache-2.0
"""Checks are values: a job stops at the first that fails, a preview makes all that do not need its fact."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.preflight.check import Check, Facts, all_failures, first_failure

ready = pytest.importorskip("airflow_provider_raybatch.job.preflight.ready")


@dataclass(frozen=True)
class Width:
    value: int


@dataclass(frozen=True)
class Area:
    value: int


def negative(width: Width) -> None:
    if width.value < 0:
        raise PreflightError(f"width: {width.value}.")


def area(width: Width) -> Area:
    if width.value > 9:
        raise PreflightError("area: too large.")
    return Area(width.value**2)


def odd(area: Area) -> Area | None:
    if area.value % 2:
        raise PreflightError("area: odd.")
    return None


def doubled(area: Area) -> Area:
    return Area(2 * area.value)


NEGATIVE = Check(negative)
CHECKS = (NEGATIVE, Check(area), Check(odd), Check(doubled, after=(NEGATIVE,)))


def refusals(width: int) -> tuple[list[str], Facts]:
    found: list[str] = []

    @contextmanager
    def caught() -> Iterator[None]:
        try:
            yield
        except PreflightError as error:
            found.append(str(error))

    facts = Facts(Width(width))
    all_failures(CHECKS, facts, caught)
    return found, facts


@pytest.mark.parametrize(
    ("width", "sentences", "known"),
    [
        (2, [], 8),
        (3, ["area: odd."], 18),
        (10, ["area: too large."], None),
        (-3, ["width: -3.", "area: odd."], 9),
    ],
    ids=["none", "later-ones-go-on", "without-its-fact", "after"],
)
def test_all_failures_skip_what_needs_a_failed_check(
    width: int, sentences: list[str], known: int | None
) -> None:
    found, facts = refusals(width)
    assert found == sentences
    assert facts.get(Area) == (None if known is None else Area(known))


def test_first_failure_ends_the_checks() -> None:
    facts = Facts(Width(3))
    with pytest.raises(PreflightError, match="odd"):
        first_failure(CHECKS, facts)
    assert facts[Area] == Area(9)


def test_each_fact_of_a_job_is_found_before_it_is_needed() -> None:
    """Else the check would be skipped in silence."""
    known = {BatchInferenceSpec}
    for check in ready.SOFTWARE:
        assert known.issuperset(check.needs)
    known.add(ready.Services)
    later = (ready.OWNER, ready.RESPONSE_MODEL, *ready.SOURCE, *ready.PROMPT, *ready.ENGINE, *ready.EARLIER)
    made = {*ready.SOFTWARE}
    for check in later:
        assert known.issuperset(check.needs), check
        assert made.issuperset(check.after), check
        made.add(check)
        if check.gives is not None:
            known.add(check.gives)
