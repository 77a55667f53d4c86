# SPDX-License-Identifier: Apache-2.0
"""Requests with images: their text, with a placeholder of the model's for each, and the model's processors.

vLLM puts images in the places of placeholders. Of one too many it takes the first ones, in silence, and
where one is missing, its error does not say so. So they are counted here.

A processor resizes pictures, cuts them into tiles and normalises them. vLLM has one, for one request at a
time, and that one can take longer than the GPU. SGLang makes two by default (sgl-project/sglang#31438); in a
server of vLLM's, two gave 20 % more and six 70 % less, for the interpreter's lock (vllm-project/vllm#58266).
Here the front end has less to do besides: on 16 cores, a job with two was 1.7 times as fast as ``LLM.chat``
with one, with four 2.3 times, and with six no faster (`benchmarks/results/images_gpu.md`).
"""

from __future__ import annotations

import functools
import logging
import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.engine import vllm_compat_models
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
        if vllm_compat_models.most_images(self._renderer) < 1:
            return "it takes no images; choose a model with vision, or leave them out"
        if vllm_compat_models.needs_images_to_tokenise(self._renderer):
            return (
                "its tokenizer, of Mistral's own kind, needs whole images to make tokens; set tokenizer_mode "
                "to 'hf' in engine_args"
            )
        return ""

    @functools.cached_property
    def adds_special_tokens(self) -> bool:
        """Whether the tokenizer's special tokens come around a raw prompt."""
        return vllm_compat_models.adds_special_tokens(self._renderer)

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
        return len(vllm_compat_models.engine_input(self._renderer, ids, pixels)["prompt_token_ids"])

    def _surplus(self, count: int) -> RowFailure | None:
        """Why the model takes none of a row's images, or not so many."""
        has = f"the row has {count_of(count, 'image')}"
        if count and self.refusal:
            return RowFailure("media", f"{has}, and the model can't be given any: {self.refusal}")
        most = vllm_compat_models.most_images(self._renderer)
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
        shown = repr(vllm_compat_models.placeholder(self._config, 1))
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
        whole = vllm_compat_models.placeholder(self._config, number)
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
    return vllm_compat_models.stand_in() if part == IMAGE_PART else part


_log = logging.getLogger(__name__)

_FEWEST, _MOST = 2, 4


def at_once(cores: int) -> int:
    """How many requests with images are processed at once, of a node with so many cores.

    Half of the cores at most, since pictures are decoded beside it.
    """
    return max(_FEWEST, min(_MOST, cores // 2))


AT_ONCE = at_once(os.cpu_count() or 1)
"""On this node. Two replicas of one node share its cores, which such nodes have many of."""


class ImageProcessors:
    """VLLM's renderer, and copies with a processor of their own, each made when one more is wanted.

    :param renderer: of an engine.
    :param most: how many there are in all.
    """

    def __init__(self, renderer: Any, most: int = AT_ONCE) -> None:
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._free.put(renderer)
        self._renderer = renderer
        self._making = threading.Lock()
        self._left = most - 1

    @contextmanager
    def one(self) -> Iterator[Any]:
        """A renderer whose processor no other thread uses; waits until there is one."""
        renderer = self._found()
        try:
            yield renderer
        finally:
            self._free.put(renderer)

    def _found(self) -> Any:
        try:
            return self._free.get_nowait()
        except queue.Empty:
            return self._copied() or self._free.get()

    def _copied(self) -> Any:
        """Another renderer; ``None`` if there are enough, or the model's can't be copied."""
        with self._making:
            if not self._left:
                return None
            self._left -= 1
            try:
                return vllm_compat_models.with_own_processor(self._renderer)
            except Exception as error:  # the model's classes may do anything; one processor is enough
                self._left = 0
                _log.warning(
                    "The model's images are processed for one request at a time, since its processor can't "
                    "be copied (%s: %s).",
                    type(error).__name__,
                    error,
                )
                return None
