# SPDX-License-Identifier: Apache-2.0
"""The calls of tools that a completion makes, checked against the tools' JSON schemas."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.tools import BROKEN_CALL, TOOL_CALLS_COLUMN, schemas_of
from airflow_provider_raybatch.job.request.json_schema import misfit
from airflow_provider_raybatch.job.row import Completion, Response
from airflow_provider_raybatch.job.tasks.optional_columns.base import CompletionColumns

CALL = pa.struct([("name", pa.string()), ("arguments", pa.string())])
_SHOWN = 200


class ToolCalls(CompletionColumns):
    """The column ``tool_calls``: a list of calls, each with its arguments as JSON text; null without any."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {TOOL_CALLS_COLUMN: pa.list_(CALL)}

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        reasons = (self._problem(completion) for completion in response.completions)
        return next(filter(None, reasons), None)

    def _problem(self, completion: Completion) -> str | None:
        shown = repr(completion.text[:_SHOWN])
        if completion.extra.get(BROKEN_CALL):
            return f"the tool_call_parser {self.spec.tool_call_parser!r} can't read the response: {shown}"
        calls = completion.extra.get(TOOL_CALLS_COLUMN) or ()
        if not calls and self.spec.must_call_tools:
            cut = ", cut off by max_tokens" if completion.finish_reason == "length" else ""
            return f"the response calls no tool, which tool_choice asks for{cut}: {shown}"
        schemas = schemas_of(self.spec.tools or ())
        return next(filter(None, (self._misfit(call, schemas) for call in calls)), None)

    def _misfit(self, call: Mapping[str, str], schemas: Mapping[str, Any]) -> str | None:
        name, arguments = call["name"], call["arguments"]
        if name not in schemas:
            return f"the response calls the tool {name[:_SHOWN]!r}, which is not among tools"
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments of {name!r} are not JSON ({error}): {arguments[:_SHOWN]!r}"
        # An echo knows simple schemas, and stands for a model that knows them all.
        why = "" if self.spec.engine == "echo" else misfit(value, {"json": schemas[name]})
        if not (why or isinstance(value, dict)):
            why = "it is not an object"
        return (
            f"the arguments of {name!r} do not fit its schema ({why}): {arguments[:_SHOWN]!r}"
            if why
            else None
        )
