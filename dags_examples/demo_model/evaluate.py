# SPDX-License-Identifier: Apache-2.0
"""Measure the stored demo model on held-out data and print the table of its model card.

Run with ``python -m demo_model.evaluate``.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast

from .corpus import (
    JSON_REQUEST,
    QUESTION_PROMPTS,
    SUM_PROMPTS,
    Conversation,
    conversations,
    facts,
    question_form,
    sum_is_held_out,
)
from .reviews import REVIEWS, reviews

MODEL_FOLDER = Path(__file__).with_name("model")
SMALL_FOLDER = Path(__file__).with_name("small_model")
BATCH_SIZE = 128
EVALUATION_SEED = 1_000_003
SAMPLING_TEMPERATURE = 0.8


def prompt_text(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> str:
    """Return the text before the answer, with BOS; tokenise it with ``add_special_tokens=False``."""
    if conversation.raw:
        return f"{tokenizer.bos_token}{conversation.prompt}\nAnswer:"
    text = tokenizer.apply_chat_template(conversation.messages(), tokenize=False, add_generation_prompt=True)
    assert isinstance(text, str)
    return text


def answer_text(conversation: Conversation) -> str:
    """Return the expected answer after ``prompt_text``, without its end token."""
    return f" {conversation.answer}" if conversation.raw else conversation.answer


def answers(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    asked: Sequence[Conversation],
    temperature: float = 0.0,
) -> list[str | None]:
    """Return the model's answer to each conversation, None if it did not end within 64 tokens."""
    texts = [prompt_text(tokenizer, conversation) for conversation in asked]
    found: list[str | None] = []
    for start in range(0, len(texts), BATCH_SIZE):
        batch = tokenizer(
            texts[start : start + BATCH_SIZE],
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        ).to(model.device)
        sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
        tokens = model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=64,
            top_p=1.0,
            **sampling,
        )
        for row in tokens[:, batch["input_ids"].shape[1] :].tolist():
            ended = tokenizer.eos_token_id in row
            found.append(tokenizer.decode(row[: row.index(tokenizer.eos_token_id)]) if ended else None)
    return found


def _sums(one_digit: bool, held_out_only: bool) -> list[Conversation]:
    size = 10 if one_digit else 100
    return [
        Conversation("sum", None, prompt.format(a=a, b=b), str(a + b))
        for a in range(size)
        for b in range(size)
        if (one_digit or max(a, b) > 9) and (sum_is_held_out(a, b) or not held_out_only)
        for prompt in SUM_PROMPTS
    ]


def _right_questions(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, as_json: bool
) -> list[bool]:
    """Return for each topic and phrasing whether a sampled answer is a pair of it in the requested form."""
    system = JSON_REQUEST if as_json else None
    asked = [(topic, prompt.format(topic=topic)) for topic in facts() for prompt in QUESTION_PROMPTS]
    conversations_asked = [Conversation("question", system, prompt, "") for _, prompt in asked]
    given = answers(model, tokenizer, conversations_asked, SAMPLING_TEMPERATURE)
    return [
        text in {question_form(question, answer, as_json) for question, answer in facts()[topic]}
        for (topic, _), text in zip(asked, given, strict=True)
    ]


def _right_repairs(asked: Sequence[Conversation], given: Sequence[str | None]) -> list[bool]:
    """Return whether each answer is a pair of the topic in JSON, as the refused one may not show which."""
    return [
        text in {question_form(question, answer, as_json=True) for question, answer in facts()[one.prompt]}
        for one, text in zip(asked, given, strict=True)
    ]


def evaluate(folder: Path = MODEL_FOLDER, device: str = "cpu") -> str:
    """Return the accuracy table of the model in ``folder``, in Markdown."""
    torch.manual_seed(EVALUATION_SEED)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    names = conversations("held_out", EVALUATION_SEED, ["industry"])
    two_digit = _sums(one_digit=False, held_out_only=True)
    exact = {
        "industry, unseen names": list(islice(names, 2000)),
        "one-digit sums, unseen pairs": _sums(one_digit=True, held_out_only=True),
        "one-digit sums, all": _sums(one_digit=True, held_out_only=False),
        "two-digit sums, unseen pairs": two_digit[:: len(two_digit) // 1000],
    }
    for skill in REVIEWS:
        exact[f"{skill}, unseen"] = list(islice(reviews("held_out", EVALUATION_SEED, [skill]), 500))
    results: dict[str, list[bool]] = {}
    with torch.inference_mode():
        for name, asked in exact.items():
            given = answers(model, tokenizer, asked)
            right = [text == answer_text(item) for text, item in zip(given, asked, strict=True)]
            results[name] = _right_repairs(asked, given) if asked[0].skill == "repair" else right
        for form, as_json in (("text", False), ("JSON", True)):
            name = f"question and answer as {form}, temperature {SAMPLING_TEMPERATURE}"
            results[name] = _right_questions(model, tokenizer, as_json)
    lines = [f"| {name} | {len(right)} | {sum(right) / len(right):.1%} |" for name, right in results.items()]
    return "\n".join(["| measured | prompts | right |", "|---|---:|---:|", *lines])


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(evaluate())
