# SPDX-License-Identifier: Apache-2.0
"""`Step`: one of several questions that a batch inference asks about each row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from airflow_provider_raybatch.arguments import ArgumentGroup


class Step(ArgumentGroup):
    """One question about each row, for `steps` of ``RayBatchInferenceOperator``.

    It is a dictionary of what is given, so Airflow renders templates in it, and ``{"name": ..., "prompt":
    ...}`` is taken in its place. Its columns in the dataset are those of a batch inference with its name and
    ``_`` as `output_prefix`: of a step ``draft``, ``draft_response``, ``draft_finish_reason`` and so on, and
    ``draft_title`` for the property `title` of a JSON schema. Later steps read them under these names.

    :param name: begins the names of the step's columns: a letter, then up to 39 letters, digits or ``_``.
    :param prompt: a row template that becomes one user message; this or `messages` is needed.
    :param system_prompt: a row template that becomes the system message.
    :param messages: a chat as a list of ``{"role", "content"}``, each content a row template.
    :param images: one or several columns of the source with images that this step shows to the model, as the
        operator's `images`; default none.
    :param each: an earlier step with several completions (`n` in its `sampling`). This step asks once about
        each good one, which its templates read in that step's columns. Its answers are this step's
        completions, in the same order.
    :param best: with `each`: a number or boolean property of this step's JSON schema. The completions of both
        steps are sorted by it, the largest first; ``<name>_response`` and the typed columns are those of the
        first.
    :param adapter: location of the LoRA adapter that answers this step; default: the operator's `adapter`.
    :param sampling: vLLM's sampling parameters, merged over the operator's `sampling`.
    :param sampling_column: a column of the source with sampling parameters that override `sampling` for its
        row; default: the operator's `sampling_column`.
    :param tools: functions that the model may call in this step, as the operator's `tools`. The calls are in
        ``<name>_tool_calls``; the operator's `tool_call_parser` reads them.
    :param tool_choice: as the operator's `tool_choice`, for this step.
    :param response_format: ``text`` (default), ``json_object``, or a JSON schema, whose properties become
        typed columns.
    :param on_truncated: ``keep`` a truncated response (default), or count it as an ``error``.
    :param on_rejected: a response that is not what was asked for (not the JSON, a call that fits no tool,
        truncated with `on_truncated` ``error``) lets its row ``fail`` (default) or ``continue``. Then
        ``<name>_response`` and ``<name>_tool_calls`` hold it, ``<name>_rejected`` the reason, and typed
        columns are null.
    :param when: a condition, or a list that must all hold, on columns of the source or of earlier steps:
        ``("draft_rejected", "is not null")`` or ``(column, operator, value)`` with ``==``, ``!=``, ``<``,
        ``<=``, ``>``, ``>=``, ``in`` or ``not in``. Other rows are not asked, and their columns of this step
        are null. Default: ask each row.
    """

    def __init__(
        self,
        name: str,
        *,
        prompt: str | None = None,
        system_prompt: str | None = None,
        messages: Sequence[Mapping[str, str]] | None = None,
        images: Sequence[str] | str | None = None,
        each: str | None = None,
        best: str | None = None,
        adapter: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        sampling_column: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Mapping[str, Any] | str | None = None,
        response_format: Mapping[str, Any] | str | None = None,
        on_truncated: Literal["keep", "error"] | None = None,
        on_rejected: Literal["fail", "continue"] | None = None,
        when: Sequence[Any] | None = None,
    ) -> None:
        super().__init__(locals())
