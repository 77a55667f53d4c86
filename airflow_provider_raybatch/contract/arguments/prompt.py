# SPDX-License-Identifier: Apache-2.0
"""What is asked of the model for each row: in one of five ways, or a query with what may answer it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.base import ContractModel, ImportPath, SpecPart, shown
from airflow_provider_raybatch.contract.row_template import RowTemplate, placeholder

PROMPTS = ("prompt", "messages", "messages_column", "prompt_column", "prompt_function")
PAIRS = ("document", "documents_column")
"""What a query is compared with, for `model_task` ``score``."""
_CHATS = frozenset({"messages", "messages_column"})
_WITH_PLACEHOLDERS = frozenset({"prompt", "messages"})
_WITH_SYSTEM_PROMPT = frozenset({"prompt", "messages_column", "prompt_function"})


class Message(ContractModel):
    """One message of a chat; its content is a row template."""

    role: str = Field(min_length=1)
    content: str


def name_of(field: str) -> str:
    """The operator's `messages` names the column, too."""
    return "messages" if field == "messages_column" else field


class PromptArguments(SpecPart):
    """What is asked for each row: exactly one of the five ways, and with three of them a system message.

    With `model_task` ``score`` it is `query`, and one of :data:`PAIRS`.

    :param on_blank: what becomes of rows whose values for the prompt are all null, empty or white space.
    :param prompt_function_digest: hash of the source that travels with the job, set at submission, so that
        changed code is a changed job.
    """

    prompt: str | None = Field(default=None, min_length=1)
    system_prompt: str | None = None
    messages: list[Message] | None = Field(default=None, min_length=1)
    messages_column: str | None = Field(default=None, min_length=1)
    prompt_column: str | None = Field(default=None, min_length=1)
    prompt_function: ImportPath | None = None
    query: str | None = Field(default=None, min_length=1)
    document: str | None = Field(default=None, min_length=1)
    documents_column: str | None = Field(default=None, min_length=1)
    special_tokens_in_text: Literal["keep", "escape", "error"] = "keep"
    on_overlong: Literal["error", "truncate"] = "error"
    on_blank: Literal["ask", "null", "error"] = "ask"
    prompt_function_digest: str | None = None

    @model_validator(mode="after")
    def _one_way_to_ask(self) -> PromptArguments:
        if self.asks_by_lines or self.asks_in_steps:
            return self  # whatever is given has its own message
        ways = PAIRS if self.compares else PROMPTS
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) != 1:
            what = f"{' and '.join(map(name_of, given))} are given together" if given else "none is given"
            others = "" if self.compares else ", or steps"
            named = ", ".join(dict.fromkeys(map(name_of, ways)))
            raise ValueError(f"{ways[0]}: exactly one of {named} is needed{others}, but {what}")
        if self.compares and self.query is None:
            raise ValueError(
                "query: documents are scored for one; give a template of it, or one text for all rows"
            )
        if self.system_prompt is not None and given[0] not in _WITH_SYSTEM_PROMPT:
            in_messages = given[0] == "messages"
            remedy = "put a system message into messages" if in_messages else "write it into the column"
            raise ValueError(f"system_prompt: it has no effect together with {given[0]}; {remedy}")
        if self.on_overlong == "truncate":
            self._check_cuts(given[0])
        return self

    def _check_cuts(self, way: str) -> None:
        name = name_of(way)
        if way in _CHATS if self.pools else way not in _WITH_PLACEHOLDERS:
            cuts = "the end of a text" if self.pools else "the values of placeholders"
            raise ValueError(f"on_overlong: 'truncate' cuts {cuts}, and not {name}; shorten the texts before")

    @property
    def pools(self) -> bool:
        """Whether a pooling model answers; the tokens of its texts are cut, and not values in them."""
        return False

    @property
    def compares(self) -> bool:
        """Whether a query is compared with documents."""
        return False

    @property
    def asks_by_lines(self) -> bool:
        """Whether each row is a whole request by itself, so that no prompt is given."""
        return False

    @property
    def asks_in_steps(self) -> bool:
        """Whether several steps ask about each row, each with a prompt of its own."""
        return False

    def row_templates(self) -> list[tuple[str, str]]:
        """The row templates, each after the argument that it comes from."""
        contents = [("messages", message.content) for message in self.messages or ()]
        pair = [("query", self.query), ("document", self.document)]
        texts = [("prompt", self.prompt), *contents, ("system_prompt", self.system_prompt), *pair]
        return [(argument, text) for argument, text in texts if text is not None]

    def column_arguments(self) -> dict[str, str]:
        """Columns that the prompt reads unless a function does, each with the argument that names it."""
        fields = ("messages_column", "prompt_column", *PAIRS[1:])
        read = {getattr(self, name): name_of(name) for name in fields}
        read.pop(None, None)
        for argument, text in self.row_templates():
            for column in RowTemplate(text).columns:
                read.setdefault(column, argument)
        return read

    def text_columns(self) -> list[str]:
        """Columns whose values become text: those of the row templates, and that of a raw prompt."""
        templated = [name for _, text in self.row_templates() for name in RowTemplate(text).columns]
        return templated if self.prompt_column is None else [*templated, self.prompt_column]


def check_placeholders(prompt: PromptArguments, of_row: bool) -> None:
    """Refuse a request that would be the same for each row, and braces that can't be meant as they stand.

    :param of_row: whether another part of the request depends on the row.
    :raises ValueError: one sentence, with the argument's name.
    """
    templates = prompt.row_templates()
    for field, text in templates:
        if doubled := RowTemplate(text).doubled:
            raise ValueError(
                f"{field}: {doubled[0]!r} has double braces, which are Airflow's; write {doubled[1]!r}"
            )
    has_own = prompt.asks_by_lines or prompt.asks_in_steps or prompt.prompt_function is not None
    if of_row or has_own or prompt.column_arguments():
        return
    field, text = templates[0]
    remedies = (
        f"write {braced} as {placeholder(name)} if it is a column"
        for template in (RowTemplate(each) for _, each in templates)
        for braced, name in template.braced.items()
        if braced in template.lookalikes or (name.isidentifier() and name != "row")
    )
    remedy = next(remedies, "name one as {row.name}, or set n in sampling for several answers to one request")
    raise ValueError(
        f"{field}: {shown(text)} names no column, so each row would pay for the same request; {remedy}"
    )
