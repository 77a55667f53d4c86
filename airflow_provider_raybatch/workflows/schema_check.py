# SPDX-License-Identifier: Apache-2.0
"""Check that a response is JSON that fits a schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.text import count_of, cut_to
from airflow_provider_raybatch.job.input.json_types import arrow_type
from airflow_provider_raybatch.job.request.json_schema import check_schema, misfit
from airflow_provider_raybatch.job.tasks.typed_columns import column_kinds, values_of
from airflow_provider_raybatch.workflows.errors import WorkflowError
from airflow_provider_raybatch.workflows.sift import Checked, Drop, text_column, with_column

_LONGEST_VALUE = 80
_LONGEST_RESPONSE = 1_000_000


class SchemaCheck:
    """Drops responses that are not JSON, or do not fit a schema.

    Rules: ``no_response``, ``too_long`` (more than a million characters), ``not_json``, ``schema``.

    :param schema: JSON schema of an object. It may be the one in `structured_outputs`: a response that was
        cut off, or generated without structured output, can violate it.
    :param column: of the responses.
    :param extract: whether each property becomes a column, with the type that it has with `response_format`.
    :param prefix: put before the names of these columns.
    :raises WorkflowError: `schema` is not a JSON schema, or `extract` finds no properties in it.
    """

    def __init__(
        self,
        schema: Mapping[str, Any],
        column: str = "response",
        extract: bool = True,
        prefix: str = "",
        name: str = "schema",
    ) -> None:
        self.name = name
        self._column = column
        self._structured = {"json": json.dumps(schema)}
        try:
            check_schema(self._structured)
        except ValueError as error:
            raise WorkflowError(f"schema: it {error}.") from error
        if extract and not schema.get("properties"):
            raise WorkflowError(
                "schema: it has no 'properties' that could become columns; add them or set extract=False."
            )
        try:
            self._kinds = column_kinds(schema) if extract else {}
        except ValueError as error:
            raise WorkflowError(f"schema: {error}.") from error
        self._prefix = prefix

    def __call__(self, batch: pa.RecordBatch) -> Checked:
        """See :class:`SiftStep`."""
        parsed = [self.check(text) for text in text_column(batch, self._column)]
        drops = [one if isinstance(one, Drop) else None for one in parsed]
        for key, kind in self._kinds.items():
            values = [None if isinstance(one, Drop) else one[key] for one in parsed]
            batch = with_column(batch, self._prefix + key, pa.array(values, arrow_type(kind)))
        return Checked(batch, drops)

    def check(self, text: str | None) -> dict[str, Any] | Drop:
        """The columns of one response, or its :class:`Drop`."""
        if text is None or not text.strip():
            return Drop("no_response", "the response is empty")
        if len(text) > _LONGEST_RESPONSE:
            return Drop("too_long", f"the response has {count_of(len(text), 'character')}")
        try:
            value = json.loads(text, parse_constant=_refuse)
            if "\\ud" in text.lower():
                json.dumps(value, ensure_ascii=False).encode()  # Half a surrogate pair is not a character.
        except UnicodeEncodeError:
            return Drop("not_json", "the response has half a character (a lone surrogate)")
        except (ValueError, RecursionError) as error:
            return Drop("not_json", f"the response is not JSON ({cut_to(_LONGEST_VALUE, str(error))})")
        if wrong := misfit(value, self._structured):
            return Drop("schema", f"the response does not fit the schema ({wrong})")
        try:
            return values_of(text, self._kinds) if self._kinds else {}
        except ValueError as error:
            return Drop("schema", f"the response does not fit its columns ({error})")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")
