# SPDX-License-Identifier: Apache-2.0
"""Text of requests with images, in which each image has a placeholder of the model's.

vLLM puts images in the places of placeholders. Of one too many it takes the first ones, in silence, and
where one is missing, its error does not say so. So they are counted here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine import vllm_compat_media
from airflow_provider_raybatch.job.request.row_text import texts_of
from airflow_provider_raybatch.job.row import IMAGE_PART, Request, RowFailure

_RenderChat = Callable[[list[dict[str, Any]]], "str | list[int]"]
_ONE_IMAGE = [{"role": "user", "content": [dict(IMAGE_PART), {"type": "text", "text": "x"}]}]


class ImagePrompts:
    """Renders requests that have images.

    :param render: renders a chat, with vLLM's parts for images.
    :param renderer: vLLM's, of the model.
    :param config: the model's, as vLLM has it.
    :param special_tokens: of the tokenizer, by which a part of a placeholder is found, too.
    :param in_each: count placeholders in requests without images, too, as in a job whose rows should have
        some.
    """

    def __init__(
        self,
        render: _RenderChat,
        renderer: Any,
        config: Any,
        special_tokens: Sequence[str] = (),
        in_each: bool = False,
    ) -> None:
        self._render = render
        self._renderer = renderer
        self._config = config
        self._special_tokens = special_tokens
        self._in_each = in_each
        self._markers = functools.cache(self._made_markers)

    def concern(self, request: Request) -> bool:
        """Whether a request is rendered here."""
        return bool(request.images) or (self._in_each and not self.refusal)

    @functools.cached_property
    def refusal(self) -> str:
        """Why the model can't take any, and what helps; empty if it can."""
        if vllm_compat_media.most_images(self._renderer) < 1:
            return "it takes no images; choose a model with vision, or leave them out"
        if vllm_compat_media.needs_images_to_tokenise(self._renderer):
            return (
                "its tokenizer, of Mistral's own kind, needs whole images to make tokens; set tokenizer_mode "
                "to 'hf' in engine_args"
            )
        return ""

    @functools.cached_property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer's special tokens come around a raw prompt."""
        return vllm_compat_media.adds_special_tokens(self._renderer)

    def rendered(self, request: Request, render: _RenderChat | None = None) -> str | list[int] | RowFailure:
        """The text that is tokenised, or what the template has made of it.

        :param render: of a step that offers tools of its own.
        :raises Exception: the template refuses the chat.
        """
        if (failure := self._surplus(len(request.images))) is not None:
            return failure
        if request.messages is None:
            text: str | list[int] = request.prompt or ""
        else:
            try:
                text = (render or self._render)(with_stand_ins(request.messages))
            except Exception:
                # For a template that writes no images, vLLM places them, and refuses further placeholders.
                own = "\n".join(texts_of(request))
                if max(self._counts(request, own), default=0) <= len(request.images):
                    raise
                text = own
        return text if isinstance(text, list) else self._mismatch(request, text) or text

    def tokens_with(self, ids: list[int], pixels: Sequence[npt.NDArray[np.uint8]]) -> int:
        """Tokens of a prompt with its images, as the model's processor makes them.

        :param ids: of the rendered text, with a placeholder for each image.
        :raises Exception: vLLM, or the model's processor, can't use the images.
        """
        return len(vllm_compat_media.engine_input(self._renderer, ids, pixels)["prompt_token_ids"])

    def _surplus(self, count: int) -> RowFailure | None:
        """Why the model takes none of a row's images, or not so many."""
        has = f"the row has {count_of(count, 'image')}"
        if count and self.refusal:
            return RowFailure("media", f"{has}, and the model can't be given any: {self.refusal}")
        most = vllm_compat_media.most_images(self._renderer)
        if count <= most:
            return None
        remedy = "raise image in limit_mm_per_prompt of engine_args, as far as the model allows"
        return RowFailure("media", f"{has}, and the engine takes {most:,} a request; {remedy}")

    def _mismatch(self, request: Request, text: str) -> RowFailure | None:
        """Why the placeholders in a text are not those of the request's images."""
        count = len(request.images)
        found = next((number for number in self._counts(request, text) if number != count), count)
        if found == count:
            return None
        shown = repr(vllm_compat_media.placeholder(self._config, 1))
        has = f"has {count_of(found, 'placeholder')} {shown} and the row has {count_of(count, 'image')}"
        if request.messages is None:
            remedy = f"write {shown} once for each image, and set special_tokens_in_text to 'keep'"
            return RowFailure("media", f"the prompt {has}; {remedy}")
        remedy = "use a chat_template that writes one for each image"
        if found > count:
            remedy = "take it out of the row's text, or set special_tokens_in_text to 'escape'"
        return RowFailure("media", f"the chat {has}; {remedy}")

    def _counts(self, request: Request, text: str) -> list[int]:
        """How often each marker of a placeholder is in a text."""
        numbered = [self._markers(number) for number in range(1, len(request.images) + 2)]
        places: Sequence[int] = self._written or ()
        if request.messages is None and self._written is None:
            places = range(len(numbered[0]))
        return [sum(map(text.count, {markers[place] for markers in numbered})) for place in places]

    @functools.cached_property
    def _written(self) -> Sequence[int] | None:
        """Which markers the template writes once for one image; ``None`` where it refuses, or is missing."""
        try:
            text = self._render(with_stand_ins(_ONE_IMAGE))
        except Exception:  # a template may raise anything
            return None
        if not isinstance(text, str):
            return ()
        return [place for place, marker in enumerate(self._markers(1)) if text.count(marker) == 1]

    def _made_markers(self, number: int) -> Sequence[str]:
        """What shows the placeholder of an image: its special tokens, which act alone, too, or all of it."""
        whole = vllm_compat_media.placeholder(self._config, number)
        parts = sorted(token for token in self._special_tokens if token in whole)
        return parts or list(filter(None, [whole]))


def wrong_number(given: int, places: int) -> RowFailure:
    """The failure of a request that gets other images than it has placeholders for."""
    return RowFailure(
        "media",
        f"the engine got {count_of(given, 'image')} for a request with {count_of(places, 'placeholder')}, a "
        "bug of this provider; report it",
    )


def with_stand_ins(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chat with a part of vLLM's for each image."""
    return [
        {**message, "content": list(map(_rendered_part, message["content"]))}
        if isinstance(message.get("content"), list)
        else message
        for message in messages
    ]


def _rendered_part(part: Any) -> Any:
    return vllm_compat_media.stand_in() if part == IMAGE_PART else part
