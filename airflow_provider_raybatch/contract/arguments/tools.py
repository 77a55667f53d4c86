# SPDX-License-Identifier: Apache-2.0
"""Tools that a model may call, in OpenAI's form: what both sides check of them.

Whether the parameters are a valid JSON schema is checked on the cluster, and by the operator where it can.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown

TOOL_CALLS_COLUMN = "tool_calls"
BROKEN_CALL = "broken_tool_call"
"""In a completion's `extra`: true if the parser failed on it."""
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_WORDS = ("auto", "required", "none")
_FORM = '{"type": "function", "function": {"name": ..., "parameters": <JSON schema>}}'


class OfferedTools(ContractModel):
    """Tools that the model may call in its answer to a question.

    :param tool_choice: a word, or OpenAI's form that names one tool.
    """

    tools: list[dict[str, Any]] | None = Field(default=None, min_length=1)
    tool_choice: str | dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _in_one_form(cls, data: Any) -> Any:
        """Check the tools, and write the choice in one form, so that equal requests have equal keys."""
        if not isinstance(data, Mapping) or not isinstance(tools := data.get("tools"), (list, tuple)):
            return data
        try:
            check_tools(tools)
        except ValueError as error:
            raise ValueError(f"tools: {error}") from None
        try:
            choice = checked_choice(data.get("tool_choice"), list(schemas_of(tools)))
        except ValueError as error:
            raise ValueError(f"tool_choice: {error}") from None
        whole = [{"type": "function", "function": dict(tool["function"])} for tool in tools]
        return {**data, "tools": whole, "tool_choice": None if choice == "auto" else choice}

    @model_validator(mode="after")
    def _choice_among_tools(self) -> OfferedTools:
        if self.tools is None and self.tool_choice is not None:
            raise ValueError("tool_choice: it has no effect without tools; give them, or remove it")
        return self

    @property
    def calls_tools(self) -> bool:
        """Whether responses may call tools."""
        return self.tools is not None and self.tool_choice != "none"

    @property
    def must_call_tools(self) -> bool:
        """Whether each response has to call a tool."""
        return self.calls_tools and self.tool_choice is not None


class ToolArguments(OfferedTools):
    """Tools, and how calls are read.

    :param tool_call_parser: vLLM's name of it; one for all steps, since the model decides it.
    """

    tool_call_parser: str | None = Field(default=None, min_length=1)


def check_tools(tools: Sequence[Any]) -> None:
    """Refuse what is not a list of tools.

    :raises ValueError: one sentence, with the number of the tool but without the field's name.
    """
    names: set[str] = set()
    for number, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or tool.get("type", "function") != "function":
            raise ValueError(f"{number}: {shown(tool)} is not a tool; write it as {_FORM}")
        name = function.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"{number}: function: name: it must be 1 to 64 letters, digits, '_', '-' or '.', but it is "
                f"{shown(name)}"
            )
        if name in names:
            raise ValueError(f"{number}: function: name: {name!r} is also another tool's; rename one")
        names.add(name)
        _check_parameters(f"{number}: function: parameters", function.get("parameters"))


def _check_parameters(where: str, parameters: Any) -> None:
    if parameters is None:
        return  # a tool without arguments
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise ValueError(f"{where}: it must be the JSON schema of an object, but it is {shown(parameters)}")


def checked_choice(choice: Any, names: Sequence[str]) -> Any:
    """The choice in OpenAI's form: a word, or an object that names one tool.

    :param names: of the tools.
    :raises ValueError: one sentence without the field's name.
    """
    if choice is None or choice in _WORDS:
        return choice
    named = choice
    if isinstance(choice, Mapping):
        function = choice.get("function")
        named = function.get("name") if isinstance(function, Mapping) else None
    if named in names:
        return {"type": "function", "function": {"name": named}}
    raise ValueError(
        f"it must be {', '.join(map(repr, _WORDS))} or the name of a tool ({', '.join(names)}), but it is "
        f"{shown(choice)}"
    )


def schemas_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """The JSON schema of each tool's arguments, by its name."""
    return {
        tool["function"]["name"]: tool["function"].get("parameters") or {"type": "object"} for tool in tools
    }
