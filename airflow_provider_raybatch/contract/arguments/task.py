# SPDX-License-Identifier: Apache-2.0
"""What kind of answer a row gets: text of a model that generates, or what a pooling model makes of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field, field_validator, model_validator

from airflow_provider_raybatch.contract.arguments.images import ImageArguments, ImageLimits
from airflow_provider_raybatch.contract.arguments.prompt import PROMPTS
from airflow_provider_raybatch.contract.base import SpecPart, shown
from airflow_provider_raybatch.contract.text import nearest

GENERATE = "generate"
_OF_GENERATION = (
    "sampling", "sampling_column", "response_format", "on_truncated", "tools", "tool_choice",
    "tool_call_parser",
)  # fmt: skip
_OF_CHATS = ("system_prompt", "messages", "messages_column", "chat_template", "chat_template_kwargs")
_OTHER_NAMES = {
    **dict.fromkeys(("normalize", "normalise", "activation", "softmax"), "use_activation"),
    "dimension": "dimensions",
}
"""What other systems call pooling parameters."""


@dataclass(frozen=True)
class TaskRules:
    """Which arguments a kind of task takes.

    :param does: what it does with a row, for messages.
    :param pooling: vLLM's pooling parameters that it takes, each with its type.
    :param without: arguments that have no effect, each with why, and what to do instead.
    :param compares: whether it takes a query and documents, and not one text or chat.
    """

    does: str
    pooling: Mapping[str, type] = field(default_factory=dict)
    without: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    compares: bool = False

    @property
    def pools(self) -> bool:
        """Whether a pooling model answers, which takes a text and generates none."""
        return bool(self.pooling)


_Rules = Mapping[str, tuple[str, str]]
_REMOVE = "remove it"
_NO_ADAPTERS: _Rules = dict.fromkeys(
    ("adapter", "adapters", "adapter_column"),
    ("it uses no LoRA adapter", "merge it into the model (PEFT's merge_and_unload), and give that as model"),
)
_NO_IMAGES: _Rules = dict.fromkeys(
    (*ImageArguments.model_fields, *ImageLimits.model_fields), ("it takes no images", _REMOVE)
)
_NO_TEXT: _Rules = {
    **dict.fromkeys(_OF_GENERATION, ("it generates no text", _REMOVE)), **_NO_ADAPTERS, **_NO_IMAGES,
    "steps": ("an engine either generates or pools", "use a task of its own for it"),
}  # fmt: skip
"""Arguments that no pooling task takes: they are about generated text, adapters, or images."""
_NO_CHAT: _Rules = dict.fromkeys(
    _OF_CHATS, ("it takes one text a row and no chat", "use prompt_column, or prompt for a template of it")
)
_NO_SYSTEM_PROMPT: _Rules = {
    "system_prompt": ("it takes a text, or a chat as it is", "put it into messages"),
}
_NO_VECTORS: _Rules = dict.fromkeys(
    ("embed_dtype", "chunk_tokens", "chunk_overlap_tokens"),
    ("it makes no vectors", "remove it, or set model_task to 'embed'"),
)
_NO_PAIRS: _Rules = dict.fromkeys(
    ("query", "document", "documents_column", "top_n"),
    ("it compares nothing with a query", "remove it, or set model_task to 'score'"),
)
_NO_POOLING: _Rules = {"pooling": ("it has no pooling parameters", "remove it, or set model_task")}
_NO_PROMPT: _Rules = dict.fromkeys(
    (*PROMPTS, "system_prompt"),
    ("it compares a query with documents", "give query, and document or documents_column"),
)

MODEL_TASKS: dict[str, TaskRules] = {
    GENERATE: TaskRules("generates text", without={**_NO_VECTORS, **_NO_PAIRS, **_NO_POOLING}),
    "embed": TaskRules(
        "makes vectors",
        {"dimensions": int, "use_activation": bool},
        without={**_NO_TEXT, **_NO_CHAT, **_NO_PAIRS},
    ),
    "classify": TaskRules(
        "classifies",
        {"use_activation": bool},
        without={**_NO_TEXT, **_NO_SYSTEM_PROMPT, **_NO_VECTORS, **_NO_PAIRS},
    ),
    "score": TaskRules(
        "scores documents for a query",
        {"use_activation": bool},
        without={**_NO_PROMPT, **_NO_TEXT, **_NO_VECTORS},
        compares=True,
    ),
}
"""By the name that a spec has in its field `model_task`; the job has a module for each."""


class TaskArguments(SpecPart):
    """What kind of answer a row gets.

    :param model_task: one of :data:`MODEL_TASKS`.
    :param pooling: vLLM's pooling parameters; `use_activation` is what other systems call normalising.
    :param top_n: documents that a ranking keeps; it is cut when it is published, so another number pays for
        nothing.
    """

    model_task: str = GENERATE
    pooling: dict[str, Any] = Field(default_factory=dict)
    top_n: int | None = Field(default=None, ge=1)

    @field_validator("model_task")
    @classmethod
    def _known_task(cls, name: str) -> str:
        if name not in MODEL_TASKS:
            raise ValueError(
                f"it must be one of {', '.join(map(repr, MODEL_TASKS))}, but it is {shown(name)}"
            )
        return name

    @model_validator(mode="after")
    def _known_pooling(self) -> TaskArguments:
        known = MODEL_TASKS[self.model_task].pooling
        for name, value in self.pooling.items():
            if name not in known:
                meant = _OTHER_NAMES.get(name) or nearest(name, known)
                remedy = f"write {meant!r}" if meant in known else f"it has {' and '.join(map(repr, known))}"
                raise ValueError(
                    f"pooling: model_task {self.model_task!r} has no parameter {name!r}; {remedy}"
                )
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 1
            if not (isinstance(value, bool) if known[name] is bool else is_number):
                must = "true or false" if known[name] is bool else "a whole number of at least 1"
                raise ValueError(f"pooling: {name}: it must be {must}, but it is {shown(value)}")
        return self

    @property
    def pools(self) -> bool:
        """Whether a pooling model answers, which takes a text and generates none."""
        return MODEL_TASKS[self.model_task].pools

    @property
    def compares(self) -> bool:
        """Whether a query is compared with documents."""
        return MODEL_TASKS[self.model_task].compares


class ChunkArguments(SpecPart):
    """How long texts become several vectors.

    :param chunk_tokens: of a chunk at most, with special tokens; ``None`` for one vector a text.
    :param chunk_overlap_tokens: tokens at the end of a chunk that begin the next one, too; at most half of a
        chunk.
    """

    chunk_tokens: int | None = Field(default=None, ge=1)
    chunk_overlap_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _chunks_go_forward(self) -> ChunkArguments:
        most, overlap = self.chunk_tokens, self.chunk_overlap_tokens
        if most is not None and overlap > most // 2:
            half = f"at most half of chunk_tokens ({most:,})"
            raise ValueError(f"chunk_overlap_tokens: it may be {half}, but it is {overlap:,}")
        return self
