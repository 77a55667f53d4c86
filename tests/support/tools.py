# SPDX-License-Identifier: Apache-2.0
"""Tools in OpenAI's form."""

from __future__ import annotations

from typing import Any


def tool(name: str, parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


ADD = tool(
    "add",
    {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "minimum": 0}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
)
WEATHER = tool("weather", {"type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}})
