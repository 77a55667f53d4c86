# SPDX-License-Identifier: Apache-2.0
"""The five ways to say what is asked of the model for each row."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown
from airflow_provider_raybatch.contract.row_template import RowTemplate, placeholder

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class TemplatePrompt(ContractModel):
    """One user message a row, from a row template, after an optional system message."""

    kind: Literal["template"] = "template"
    template: str = Field(min_length=1)
    system_prompt: str | None = None

    def templates(self) -> list[tuple[str, str]]:
        """Its row templates, each after the argument that it comes from."""
        return [("prompt", self.template), ("system_prompt", self.system_prompt or "")]

    def columns(self) -> list[str]:
        """Columns the prompt reads."""
        return _columns(self.templates())


class Message(ContractModel):
    """One message of a chat; its content is a row template."""

    role: str = Field(min_length=1)
    content: str


class MessagesPrompt(ContractModel):
    """A chat whose messages are row templates."""

    kind: Literal["messages"] = "messages"
    messages: list[Message] = Field(min_length=1)

    def templates(self) -> list[tuple[str, str]]:
        """See :meth:`TemplatePrompt.templates`."""
        return [("messages", message.content) for message in self.messages]

    def columns(self) -> list[str]:
        """Columns the prompt reads."""
        return _columns(self.templates())


class MessagesColumnPrompt(ContractModel):
    """A column that holds the chat: a list of ``{"role", "content"}``, or the same as a JSON string."""

    kind: Literal["messages_column"] = "messages_column"
    column: str = Field(min_length=1)
    system_prompt: str | None = None

    def templates(self) -> list[tuple[str, str]]:
        """See :meth:`TemplatePrompt.templates`."""
        return [("system_prompt", self.system_prompt or "")]

    def columns(self) -> list[str]:
        """Columns the prompt reads."""
        return [self.column, *(name for name in _columns(self.templates()) if name != self.column)]


class PromptColumnPrompt(ContractModel):
    """A column that holds the raw prompt: no chat template is applied."""

    kind: Literal["prompt_column"] = "prompt_column"
    column: str = Field(min_length=1)

    def templates(self) -> list[tuple[str, str]]:
        """See :meth:`TemplatePrompt.templates`."""
        return []

    def columns(self) -> list[str]:
        """Columns the prompt reads."""
        return [self.column]


class FunctionPrompt(ContractModel):
    """A user's function, ``module:name``, called with the row (``dict``) on the cluster.

    It returns a ``str`` (one user message), a ``list`` of messages, or a ``dict`` with either ``messages`` or
    ``prompt`` (raw) and optionally ``sampling``. Its module or package travels with the job as source;
    `source_digest` is the hash of that source, set at submission, so that changed code is a changed job.
    """

    kind: Literal["function"] = "function"
    function: str
    source_digest: str | None = None
    system_prompt: str | None = None

    @field_validator("function")
    @classmethod
    def _import_path(cls, value: str) -> str:
        return checked_import_path(value)

    def templates(self) -> list[tuple[str, str]]:
        """See :meth:`TemplatePrompt.templates`."""
        return [("system_prompt", self.system_prompt or "")]

    def columns(self) -> list[str]:
        """Columns the prompt is known to read; what the function reads is its own affair."""
        return _columns(self.templates())


PromptSpec = Annotated[
    TemplatePrompt | MessagesPrompt | MessagesColumnPrompt | PromptColumnPrompt | FunctionPrompt,
    Field(discriminator="kind"),
]


class ResponseFormat(ContractModel):
    """What a response must be to count as good.

    :param json_object: the text must parse as JSON; set by itself where `sampling` asks for a JSON schema.
    :param truncated: whether a response that `max_tokens` or the context cut off is good (``keep``) or a
        failure of its row (``error``).
    """

    json_object: bool = False
    truncated: Literal["keep", "error"] = "keep"

    @model_validator(mode="before")
    @classmethod
    def _none_is_default(cls, value: Any) -> Any:
        return {} if value is None else value


def checked_import_path(value: str) -> str:
    """The path of a user's function.

    :raises ValueError: it is none.
    """
    if not _IMPORT_PATH.fullmatch(value):
        raise ValueError(f"{value!r} is not an import path; write it as 'package.module:function'")
    return value


def check_placeholders(prompt: PromptSpec, of_row: bool) -> None:
    """Refuse a request that would be the same for each row, and braces that can't be meant as they stand.

    :param of_row: whether another part of the request depends on the row.
    :raises ValueError: one sentence, with the argument's name.
    """
    for field, text in prompt.templates():
        if doubled := RowTemplate(text).doubled:
            raise ValueError(
                f"{field}: {doubled[0]!r} has double braces, which are Airflow's; write {doubled[1]!r}"
            )
    if of_row or isinstance(prompt, FunctionPrompt) or prompt.columns():
        return
    field, text = prompt.templates()[0]
    braced = [name for _, each in prompt.templates() for name in RowTemplate(each).braced]
    meant = next((name for name in braced if name.isidentifier() and name != "row"), None)
    if meant is not None:
        remedy = f"write {{{meant}}} as {placeholder(meant)} if it is a column"
    else:
        remedy = "name one as {row.name}, or set n in sampling for several answers to one request"
    raise ValueError(
        f"{field}: {shown(text)} names no column, so each row would pay for the same request; {remedy}"
    )


def _columns(templates: list[tuple[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for _, text in templates for name in RowTemplate(text).columns))
