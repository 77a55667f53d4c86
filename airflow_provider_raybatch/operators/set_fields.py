# SPDX-License-Identifier: Apache-2.0
"""Template fields: a class names all of them, a task those that are set."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any


def only_set(fields: Sequence[str] | Mapping[str, str]) -> Any:
    """A class attribute with the names of template fields, or with a value for each name.

    Airflow writes the attribute, and each field that it names, into the serialised DAG for every task. So a
    task leaves out fields that have their defaults. Mapped tasks and subclasses read the class.
    """
    return _OnlySet(fields)


class _OnlySet:
    def __init__(self, fields: Sequence[str] | Mapping[str, str]) -> None:
        self._fields = fields

    def __set_name__(self, operator: type, _: str) -> None:
        self._operator = operator

    def __get__(self, task: Any, owner: type | None = None) -> Any:
        if task is None:
            return self._fields
        given = vars(task).get
        names = [
            name
            for name, default in self._defaults
            if (value := given(name)) is not default and _differs(value, default)
        ]
        if isinstance(self._fields, Mapping):
            return {name: self._fields[name] for name in names}
        return tuple(names)

    @cached_property
    def _defaults(self) -> list[tuple[str, Any]]:
        """Each field with the default of its argument, without a subclass's own, which may be a template."""
        defaults = {
            name: parameter.default
            for each in reversed(self._operator.__mro__)
            if "__init__" in vars(each)
            for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
        }
        return [(name, defaults.get(name)) for name in self._fields]


def _differs(value: Any, default: Any) -> bool:
    # An XCom or an array has comparisons of its own.
    return value.__class__ is not default.__class__ or bool(value != default)
