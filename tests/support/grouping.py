# SPDX-License-Identifier: Apache-2.0
"""Fields of a job's spec as arguments of the operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.argument_fields import GROUPS, argument_of


def grouped(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of the operator, where those of an object may stand by themselves."""
    arguments: dict[str, Any] = {}
    for name, value in fields.items():
        argument = argument_of(name)
        if argument not in GROUPS or (name == argument and not isinstance(value, Mapping)):
            arguments[argument] = value
        else:
            known = arguments.get(argument)
            before = known if isinstance(known, Mapping) else {} if known is None else {argument: known}
            arguments[argument] = {**before, **(value if name == argument else {name: value})}
    return arguments
