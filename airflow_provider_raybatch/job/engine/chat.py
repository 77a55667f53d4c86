# SPDX-License-Identifier: Apache-2.0
"""Chat template and tokeniser, on batches; a row that fails fails alone."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.arguments.engine import ModelArguments
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.base import most_prompt_tokens, overlong
from airflow_provider_raybatch.job.engine.images import ImagePrompts
from airflow_provider_raybatch.job.engine.request_values import check_token_ids, within
from airflow_provider_raybatch.job.request.messages import text_of
from airflow_provider_raybatch.job.request.row_text import SpecialTokens, shortened, special_tokens_of
from airflow_provider_raybatch.job.row import Request, RowFailure

S = TypeVar("S")
T = TypeVar("T")
RenderChat = Callable[[list[dict[str, Any]]], "str | list[int]"]
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")


def prints_the_date(model: ModelArguments, tokenizer: Any) -> bool:
    """Whether the chat template may print the date."""
    return "strftime_now" in str(model.chat_template or getattr(tokenizer, "chat_template", None) or "")


def template_of(model: ModelArguments, tokenizer: Any) -> str | None:
    """The chat template that replaces the tokenizer's, if one has to.

    A date in it is that of the run, in UTC, however long the job takes. It is written into the template,
    since transformers hands a template no functions.
    """
    text = model.chat_template or getattr(tokenizer, "chat_template", None)
    if model.template_time is None or not isinstance(text, str) or "strftime_now" not in text:
        return model.chat_template
    now = datetime.datetime.fromtimestamp(model.template_time, datetime.timezone.utc)
    return _TODAY.sub(lambda found: json.dumps(now.strftime(found[2])), text)


def hf_renderer(tokenizer: Any, template: str | None, template_kwargs: Mapping[str, Any]) -> RenderChat:
    """A function that renders a chat without vLLM.

    :param tokenizer: a Hugging Face tokeniser.
    :param template: a Jinja chat template that replaces the tokeniser's own.
    :param template_kwargs: further variables for the template.
    """
    variables = {"add_generation_prompt": True, **template_kwargs}

    def render(messages: list[dict[str, Any]]) -> str:
        plain = [
            {**message, "content": text_of(message["content"])} if "content" in message else message
            for message in messages
        ]
        text = tokenizer.apply_chat_template(plain, chat_template=template, tokenize=False, **variables)
        return str(text)

    return render


class ChatEncoder:
    """Turns requests into token ids.

    As in vLLM, a chat is rendered to text and tokenised without special tokens, since its template writes
    BOS; a raw prompt gets the tokeniser's special tokens.

    :param tokenizer: a Hugging Face tokeniser.
    :param render: renders a chat to text, or to token ids.
    :param template: the chat template, in so far as it is text.
    :param special_tokens: what happens to special tokens in the text of rows, and `on_overlong` to prompts
        that leave no room for a response; see
        :class:`~airflow_provider_raybatch.contract.arguments.prompt.PromptArguments`.
    :param vocabulary: tokens of the model, if known: a prompt with another fails.
    :param images: renders requests that have some; ``None`` where none has.
    :param of_steps: renders the chats of steps that offer tools of their own.
    """

    def __init__(
        self,
        tokenizer: Any,
        render: RenderChat,
        template: str = "",
        special_tokens: str = "keep",
        on_overlong: str = "error",
        vocabulary: int | None = None,
        images: ImagePrompts | None = None,
        of_steps: Mapping[str, RenderChat] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.images = images
        self._render = render
        self._of_steps = of_steps or {}
        self._vocabulary = vocabulary
        self.special_tokens = special_tokens_of(tokenizer, template)
        self._special = SpecialTokens(self.special_tokens)
        self._in_text = special_tokens
        self._truncates = on_overlong == "truncate"

    def has_special_tokens(self, request: Request) -> bool:
        """Whether the row's text has special tokens, which a raw prompt may have on purpose."""
        return request.messages is not None and bool(self._special.found(request))

    def fitted(
        self, request: Request, ids: list[int], context: int, max_tokens: Any
    ) -> list[int] | RowFailure:
        """Token ids that leave room for a response: the row's own, those of a cut prompt, or a failure.

        :param ids: of the whole request.
        """
        if len(ids) < context:
            return ids
        if not self._truncates:
            return overlong(len(ids), context)

        def tokens_of(cut: Request) -> int:
            (made,) = self.encode([cut])
            return 0 if isinstance(made, RowFailure) else len(made)

        cut = shortened(request, tokens_of, len(ids), most_prompt_tokens(context, max_tokens))
        return overlong(len(ids), context) if cut is None else self.encode([cut])[0]

    def longest(self, ids: list[int]) -> int:
        """Tokens of the longest request that the engine gets for a row; most rows are one."""
        return len(ids)

    def encode(self, requests: Sequence[Request]) -> list[list[int] | RowFailure]:
        """Token ids of each request, or why it has none."""
        out: list[Any] = self.texts(requests)
        for special in (False, True):
            places = [
                place
                for place, request in enumerate(requests)
                if isinstance(out[place], str) and self._gets_special_tokens(request) is special
            ]
            made = self._tokenize([out[place] for place in places], special)
            for place, ids in zip(places, made, strict=True):
                out[place] = ids
        return [ids if isinstance(ids, RowFailure) else self.within(ids) for ids in out]

    def texts(self, requests: Sequence[Request]) -> list[str | list[int] | RowFailure]:
        """The text of each request that is tokenised, or what its template has made of it."""
        if self._in_text == "escape":
            requests = [self._special.escaped(request) for request in requests]
        return [self._rendered(request) for request in requests]

    def within(self, ids: list[int]) -> list[int] | RowFailure:
        """Token ids, or a failure if the model lacks one."""
        return ids if self._vocabulary is None else within(ids, self._tokenizer, self._vocabulary)

    def check_sampling(self, params: Any) -> None:
        """Check the token ids in a request's parameters for vLLM.

        :raises PreflightError: the model lacks one.
        """
        if self._vocabulary is not None:
            check_token_ids(params, self._tokenizer, self._vocabulary)

    def _gets_special_tokens(self, request: Request) -> bool:
        if request.messages is not None:
            return False
        return not request.images or self.images is None or self.images.adds_special_tokens

    def _rendered(self, request: Request) -> str | list[int] | RowFailure:
        if self._in_text == "error" and (failure := self._special.failure(request)) is not None:
            return failure
        render = self._of_steps.get(request.step, self._render)
        try:
            if self.images is not None and self.images.concern(request):
                return self.images.rendered(request, render)
            return (request.prompt or "") if request.messages is None else render(request.messages)
        except Exception as error:  # a template may raise anything, raise_exception() included
            return RowFailure.of("template", error)

    def _tokenize(self, texts: list[str], special: bool) -> list[list[int] | RowFailure]:
        return of_each(texts, lambda some: self._tokenizer(some, add_special_tokens=special)["input_ids"])


def chat_encoder(spec: BatchInferenceSpec, tokenizer: Any, config: Any, renderer: Any) -> ChatEncoder:
    """The encoder of a job that generates.

    :param config: of the model, as vLLM has it; `renderer` is vLLM's.
    """
    template = template_of(spec, tokenizer)
    text = str(template or getattr(tokenizer, "chat_template", None) or "")
    renderers = {
        step: vllm_compat.chat_renderer(renderer, template, one.template_variables)
        for step, one in {"": spec, **spec.with_tools}.items()
    }
    render = renderers[""]
    known = special_tokens_of(tokenizer, text)
    return ChatEncoder(
        tokenizer,
        render,
        text,
        spec.special_tokens_in_text,
        spec.on_overlong,
        vllm_compat.vocabulary_size(config),
        ImagePrompts(render, renderer, config, known, in_each=bool(spec.image_columns)),
        renderers,
    )


def of_each(texts: list[S], tokenize: Callable[[list[S]], Iterable[T]]) -> list[T | RowFailure]:
    """What a tokeniser makes of each text, or pair of texts; where it fails for several, one by one."""
    if not texts:
        return []
    try:
        return list(tokenize(texts))
    except Exception as error:
        if len(texts) == 1:
            return [RowFailure.of("tokenize", error)]
        return [made for text in texts for made in of_each([text], tokenize)]
