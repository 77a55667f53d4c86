# SPDX-License-Identifier: Apache-2.0
"""A query and its documents as a request: messages, whose roles say which is which.

Chat templates of rerankers know them by these roles, too.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.request.row_text import not_blank
from airflow_provider_raybatch.job.row import RenderError, Request

QUERY, DOCUMENT = "query", "document"
"""Roles of the messages."""


def pair_renderer(spec: BatchInferenceSpec) -> Callable[[Mapping[str, Any]], Request]:
    """The function that turns a row into a query with at least one document."""
    query, column = RowTemplate(str(spec.query)), spec.documents_column
    document = RowTemplate(spec.document or "")

    def render(row: Mapping[str, Any]) -> Request:
        texts = [not_blank(query.render(row), "the text of query")]
        if column is None:
            texts.append(not_blank(document.render(row), "the text of document"))
        else:
            texts += _documents(row.get(column), f"column {column!r}")
        roles = [QUERY, *[DOCUMENT] * (len(texts) - 1)]
        return Request([{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])

    return render


def pair_of(request: Request) -> tuple[str, list[str]]:
    """The query, and its documents."""
    query, *documents = [str(message["content"]) for message in request.messages or ()]
    return query, documents


def _documents(value: Any, what: str) -> list[str]:
    """The documents in a column's value: a list of texts, or that list as a JSON string.

    :raises RenderError: there is none.
    """
    if isinstance(value, str):
        with contextlib.suppress(ValueError):  # the message below says what it is instead
            value = json.loads(value)
    if not isinstance(value, list):
        raise RenderError(
            f"{what} has no list of texts, but {'null' if value is None else 'another value'}; for one text "
            "a row, use document"
        )
    if not value:
        raise RenderError(f"{what} has a list without documents")
    for number, one in enumerate(value):
        if not isinstance(one, str):
            kind = "null" if one is None else type(one).__name__
            raise RenderError(f"{what} has a list whose document {number} is {kind}, not a text")
        not_blank(one, f"document {number} in the list of {what}")
    return value
