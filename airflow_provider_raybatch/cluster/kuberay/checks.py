# SPDX-License-Identifier: Apache-2.0
"""Mistakes in a KubeRayCluster, each as one sentence with the argument, its value and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_STARTS = ("{{", "{%", "{#", "[[", "<<", "${")
"""Of Jinja, and of delimiters that DAGs choose in its place."""


def may_be_template(value: Any) -> bool:
    """Whether Airflow may change a value, or a part of it, when the task runs."""
    if isinstance(value, str):
        return any(start in value for start in _STARTS)
    if isinstance(value, Mapping):
        return any(may_be_template(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return any(may_be_template(inner) for inner in value)
    return hasattr(value, "resolve") or callable(value)


def check_arguments(arguments: Mapping[str, Any], changes: Callable[[Any], bool]) -> None:
    """Refuse the first mistake in arguments that `changes` does not hold for.

    :param arguments: all of a cluster, by name.

    :raises SpecError: names argument, value and remedy.
    """
