# SPDX-License-Identifier: Apache-2.0
"""The types of a row: request, response, failure and outcome."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.row_template import RowTemplateError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_LONGEST_REASON = 1000
_TEXT_MESSAGE = frozenset({"role", "content"})

IMAGE_PART: Mapping[str, str] = {"type": "image"}
"""The part of a message's content in whose place a model sees the next of a request's images."""


@dataclass(frozen=True)
class Image:
    """An image of a request, as its row has it: its content, or where that lies.

    :param uri: a path or URI that the job may read; empty where the row has the content.
    :param version: what tells this content from any other, by which requests are the same; empty for a
        reference until it is looked up.
    """

    content: bytes = field(default=b"", repr=False)
    uri: str = ""
    version: str = ""

    def as_json(self) -> dict[str, Any]:
        """What a dead letter says of it, without its content."""
        named = {"uri": self.uri} if self.uri else {"bytes": len(self.content)}
        return {**named, **({"version": self.version} if self.version else {})}


@dataclass(frozen=True)
class Request:
    """The request of one row: either `messages` (a chat) or `prompt` (raw text) is set, or `each`.

    :param sampling: vLLM sampling parameters of this row, merged over the job's by the engine.
    :param adapter: name of the adapter (LoRA) that answers; ``None`` for the model alone.
    :param images: in the order of the :data:`IMAGE_PART` parts of `messages`, one for each; or in that of the
        placeholders that a raw prompt has.
    :param each: requests that are asked together; their completions are those of the row.
    :param places: which completion of another step each of these is about.
    :param step: that asks it, and may offer tools of its own; empty without steps.
    """

    messages: list[dict[str, Any]] | None = None
    prompt: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    adapter: str | None = None
    images: tuple[Image, ...] = ()
    each: tuple[Request, ...] = ()
    places: tuple[int, ...] = ()
    step: str = ""

    def of_step(self, step: str, sampling: Mapping[str, Any]) -> Request:
        """This request for an engine that has the sampling parameters of the whole job, and not a step's."""
        if self.each:
            return replace(self, each=tuple(one.of_step(step, sampling) for one in self.each))
        return replace(self, step=step, sampling={**sampling, **self.sampling})

    @property
    def characters(self) -> int:
        """Length of its text."""
        if self.each:
            return sum(one.characters for one in self.each)
        if self.prompt is not None:
            return len(self.prompt)
        return sum(_length(message.get("content")) for message in self.messages or ())

    @property
    def has_texts_alone(self) -> bool:
        """Whether it is a chat whose messages have a role and a text each, and nothing else."""
        return self.messages is not None and all(map(_is_text, self.messages))

    @property
    def references(self) -> tuple[str, ...]:
        """Where its images lie; empty ones for those that the row has."""
        return tuple(image.uri for image in self.images)

    @property
    def has_versions(self) -> bool:
        """Whether the versions of all its images are known, so that it has a key."""
        return not self.images or all(image.version for image in self.images)

    def as_json(self) -> str:
        """Without the fields that are not set."""
        return json.dumps(self._fields(), ensure_ascii=False, default=str)

    def _fields(self) -> dict[str, Any]:
        content = {
            "messages": self.messages,
            "prompt": self.prompt,
            "sampling": dict(self.sampling) or None,
            "adapter": self.adapter,
            "images": [image.as_json() for image in self.images] or None,
            "each": [one._fields() for one in self.each] or None,
        }
        return {name: value for name, value in content.items() if value is not None}


def _is_text(message: Mapping[str, Any]) -> bool:
    return (
        message.keys() == _TEXT_MESSAGE
        and isinstance(message["role"], str)
        and isinstance(message["content"], str)
    )


def _length(content: Any) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(str(part.get("text", ""))) for part in content if isinstance(part, dict))
    return 0


class RenderError(ValueError):
    """A row makes no request."""


class BlankRowError(RenderError):
    """A row is left out, since all that the prompt takes from it is blank."""


class ImageError(RenderError):
    """An image of a row can't be read or used; one sentence, with the remedy."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Log probabilities of tokens, in arrays: objects take about 30 times the memory.

    :param ids: a row for each token: its id, then those of its alternatives, likeliest first.
    :param logprobs: of `ids`, in nats; NaN for a token that has none, as the first of a prompt.
    :param ranks: of the tokens in the whole vocabulary; 1 is the likeliest, 0 stands for none.
    :param texts: of the ids, each token decoded alone.
    """

    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    ranks: npt.NDArray[np.int32]
    texts: Mapping[int, str]


@dataclass(frozen=True)
class Completion:
    """One completion.

    :param finish_reason: ``stop``, ``length`` or another word of the engine's.
    :param output_tokens: how many tokens were generated.
    :param filled_tokens: how many more the text has, which a choice forced.
    :param extra: what optional columns are made of, by the name of each; see
        :class:`~airflow_provider_raybatch.job.tasks.optional_columns.kinds.OptionalColumns`.
    """

    text: str
    finish_reason: str
    output_tokens: int
    filled_tokens: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Response:
    """The response to one request: completions of a model that generates, or what a pooling model gives.

    Only the task and the engines know what is in it; all other code carries it unread.

    :param truncated_prompt_tokens: how many tokens of the prompt were cut off.
    :param has_special_tokens: whether the row's text has special tokens of the model.
    :param extra: as in a completion, of optional columns that a row has once.
    :param pooled: the numbers of a pooling model: a vector, probabilities or scores; ``None`` where the model
        generates.
    :param labels: names of the numbers in `pooled`, where they have names.
    """

    completions: tuple[Completion, ...] = ()
    input_tokens: int = 0
    cached_tokens: int = 0
    truncated_prompt_tokens: int = 0
    has_special_tokens: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    pooled: npt.NDArray[np.float32] | None = None
    labels: Sequence[str] = ()

    @property
    def output_tokens(self) -> int:
        """Of all completions."""
        return sum(completion.output_tokens for completion in self.completions)

    @property
    def filled_tokens(self) -> int:
        """Of all completions."""
        return sum(completion.filled_tokens for completion in self.completions)


SKIPPED = Response()
"""The outcome of a row that `on_blank`, or the last of several steps, leaves out."""


@dataclass(frozen=True)
class RowFailure:
    """Why a row has no response.

    :param step: ``read``, ``template``, ``media``, ``tokenize``, ``engine``, ``parse``, ``length`` or
        ``postprocess``; ``cancelled``, ``expired`` or ``limit_reached`` where no request was made before
        its batch ended.
    :param input_tokens: of a response that was generated and rejected, as are `output_tokens`.
    :param is_of_reference: whether what an image refers to can't be read.
    """

    step: str
    reason: str
    input_tokens: int = 0
    output_tokens: int = 0
    is_of_reference: bool = False
    truncated_prompt_tokens: ClassVar[int] = 0
    has_special_tokens: ClassVar[bool] = False

    @classmethod
    def of(cls, step: str, error: BaseException) -> RowFailure:
        """From an exception: its truncated text, with its class unless the error is this package's own."""
        is_own = isinstance(error, (RowTemplateError, RenderError, RaybatchError))
        return cls(step, (str(error) if is_own else f"{type(error).__name__}: {error}")[:_LONGEST_REASON])


def lacks_images(result: object) -> bool:
    """Whether a row has failed since a reference can't be read; an equal row may have the image elsewhere."""
    return isinstance(result, RowFailure) and result.is_of_reference


NOT_ASKED = RowFailure("skipped", "the row is left out by the conditions of its step, or by on_blank")
"""In place of the request of a row that is left out, which does not fail."""


@dataclass(frozen=True)
class RowOutcome:
    """The result of one row.

    :param request: the request as JSON (or the raw text of an unreadable row); kept for failures only.
    :param key: the request key, ``None`` for a row that makes no request.
    :param row_id: the value of the id column as text, where one is declared.
    """

    ordinal: int
    result: Response | RowFailure
    request: str = ""
    key: bytes | None = None
    row_id: str | None = None
