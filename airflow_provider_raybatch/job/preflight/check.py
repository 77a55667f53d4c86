# SPDX-License-Identifier: Apache-2.0
"""Checks as values, and the two ways to make them: until the first that fails, or all that can be made.

A check is a function of facts. Its annotations say which ones it needs and which one it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any, TypeVar, cast, get_args, get_type_hints

Fact = TypeVar("Fact")


@dataclass(frozen=True)
class Check:
    """One check of a job.

    :param look: raises what is wrong. It gets a fact of the type of each parameter, and returns a fact or
        ``None``. A fact takes the place of an earlier one of its type.
    :param after: checks that must not have failed before, besides those that find its facts.
    """

    look: Callable[..., Any]
    after: tuple[Check, ...] = ()

    @cached_property
    def needs(self) -> tuple[type, ...]:
        """Types of the facts that it looks at."""
        hints = get_type_hints(self.look)
        del hints["return"]
        return tuple(hints.values())

    @cached_property
    def gives(self) -> type | None:
        """Type of the fact that it finds; ``None`` if it only refuses."""
        found = get_type_hints(self.look)["return"]
        return next((kind for kind in get_args(found) or (found,) if kind is not NoneType), None)


class Facts:
    """What is known of a job: one frozen value a type, and which checks have failed.

    :ivar failed: checks that failed; each left its facts as they were.
    """

    def __init__(self, *known: object) -> None:
        self._known: dict[type, Any] = {type(one): one for one in known}
        self.failed: set[Check] = set()

    def __getitem__(self, kind: type[Fact]) -> Fact:
        return cast(Fact, self._known[kind])

    def get(self, kind: type[Fact]) -> Fact | None:
        """The fact of a type; ``None`` if it is not known."""
        return cast("Fact | None", self._known.get(kind))

    def add(self, fact: object) -> None:
        """Take a fact."""
        self._known[type(fact)] = fact

    def allow(self, check: Check) -> bool:
        """Whether a check can be made by what is known."""
        return self.failed.isdisjoint(check.after) and self._known.keys() >= {*check.needs}

    def find(self, check: Check) -> None:
        """Make a check, and take the fact that it finds.

        :raises Exception: what is wrong.
        """
        found = check.look(*map(self._known.__getitem__, check.needs))
        if check.gives is not None and found is not None:
            self._known[check.gives] = found


def first_failure(checks: Iterable[Check], facts: Facts) -> None:
    """Make checks in their order, as a job does.

    :raises Exception: the first failure; the others are not made.
    """
    for check in checks:
        if facts.allow(check):
            facts.find(check)


def all_failures(
    checks: Iterable[Check], facts: Facts, caught: Callable[[], AbstractContextManager[object]]
) -> None:
    """Make each check that does not depend on one that failed, as a preview does.

    :param caught: keeps the failure of a check.
    """
    for check in checks:
        if facts.allow(check):
            facts.failed.add(check)
            with caught():
                facts.find(check)
                facts.failed.remove(check)
