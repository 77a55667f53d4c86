# SPDX-License-Identifier: Apache-2.0
"""Train the demo model from scratch and write it into ``model/``.

Run with ``python -m demo_model.train`` from the folder above. There are two lessons: companies, questions and
sums, and then also the requests of the example DAGs, which takes a GPU. ``--small`` makes ``small_model/``
for comparison, which adds badly, in two minutes of one CPU core. Needs torch, and transformers 5 or newer.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from .corpus import Conversation, Skill, conversations
from .evaluate import MODEL_FOLDER, SMALL_FOLDER, answer_text, evaluate, prompt_text
from .reviews import Review, reviews
from .tokenizer import CONTEXT_LENGTH, END, VOCABULARY_SIZE, save_tokenizer, train_tokenizer

SEED = 20_261
MIX: tuple[Skill, ...] = ("industry", "industry", "question", "question", "question", "sum", "sum")
REVIEW_MIX: tuple[Review, ...] = ("label", "label", "repair", "score", "score", "pair", "pair", "pair")
REVIEW_SHARE = 0.6
WARMUP_STEPS = 50
IGNORED = -100

Batch = tuple[torch.Tensor, torch.Tensor]
"""Token ids, and labels."""


@dataclass(frozen=True)
class Lesson:
    """Steps and learning rate for one part of the data."""

    steps: int
    batch_size: int
    peak_learning_rate: float

    def learning_rate(self, step: int) -> float:
        """Return the learning rate: linear warm-up, then a cosine down to 2 % of the peak."""
        if step < WARMUP_STEPS:
            return self.peak_learning_rate * (step + 1) / WARMUP_STEPS
        progress = (step - WARMUP_STEPS) / max(1, self.steps - WARMUP_STEPS)
        return self.peak_learning_rate * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


FIRST = Lesson(3400, 64, 5e-3)
SECOND = Lesson(12_200, 128, 3e-3)
SMALL = Lesson(600, 64, 5e-3)


def plain(seed: int) -> Iterator[Conversation]:
    """Companies, questions and sums."""
    return conversations("train", seed, MIX)


def everything(seed: int) -> Iterator[Conversation]:
    """The requests of the example DAGs, and the first lesson, which would be forgotten otherwise."""
    rng, known, asked = Random(seed), plain(seed), reviews("train", seed, REVIEW_MIX)
    while True:
        yield next(asked if rng.random() < REVIEW_SHARE else known)


def sums(seed: int) -> Iterator[Conversation]:
    """Sums alone."""
    return conversations("train", seed, ["sum"])


def new_model(tokenizer: PreTrainedTokenizerFast, heads: int = 4, layers: int = 3) -> LlamaForCausalLM:
    """Make a model with random weights.

    Heads of 64 suit the attention kernels of vLLM on CPU and GPU, and an even number of key-value heads lets
    tensor parallelism split them over two devices.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=64 * heads,
        intermediate_size=128 * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(1, heads // 2),
        head_dim=64,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def new_optimizers(model: LlamaForCausalLM) -> tuple[torch.optim.Optimizer, ...]:
    """Make optimizers: Muon for the matrices of the layers, AdamW for the rest.

    In one minute of training Muon reached a loss of 0.8 where AdamW alone reached 2.2.
    """
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    vectors = [weight for weight in model.model.layers.parameters() if weight.ndim != 2]
    rest = [*vectors, *model.model.norm.parameters(), *model.model.embed_tokens.parameters()]
    return (
        torch.optim.Muon(matrices, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),
    )


def encoded(tokenizer: PreTrainedTokenizerFast, conversation: Conversation) -> tuple[list[int], list[int]]:
    """Return token ids and labels of one conversation; only the answer and its end token are learned."""
    prompt = tokenizer.encode(prompt_text(tokenizer, conversation), add_special_tokens=False)
    answer = tokenizer.encode(answer_text(conversation) + END, add_special_tokens=False)
    return prompt + answer, [IGNORED] * len(prompt) + answer


class Batches(IterableDataset[Batch]):
    """Endless batches of conversations of similar length, padded on the right.

    :param stream: makes the conversations of a seed; each drawing process has its own.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, stream: Callable[[int], Iterator[Conversation]], size: int
    ) -> None:
        self._tokenizer, self._stream, self._size = tokenizer, stream, size

    def __iter__(self) -> Iterator[Batch]:
        process = get_worker_info()
        seed = SEED + (process.id if process else 0)
        order, stream = Random(seed), self._stream(seed)
        while True:
            pool = [encoded(self._tokenizer, item) for item in islice(stream, self._size * 32)]
            pool.sort(key=lambda item: len(item[0]))
            starts = sorted(range(0, len(pool), self._size), key=lambda _: order.random())
            for start in starts:
                yield self._padded(pool[start : start + self._size])

    def _padded(self, group: list[tuple[list[int], list[int]]]) -> Batch:
        width = len(group[-1][0])
        tokens = [ids + [self._tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in group]
        labels = [marks + [IGNORED] * (width - len(marks)) for _, marks in group]
        return torch.tensor(tokens), torch.tensor(labels)


def loss_of(model: LlamaForCausalLM, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy over the learned tokens.

    A token of a long answer counts less, by the root of the answer's length. Otherwise a verdict of one token
    would hardly be learned beside long copied answers. Padding is on the right, so the causal mask hides it.
    Logits are computed only at the learned positions, which saves a sixth of the work.
    """
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        targets = labels[:, 1:]
        learned = targets != IGNORED
        logits = model.lm_head(hidden[learned])
    weights = learned.sum(1, keepdim=True).rsqrt().expand_as(targets)[learned]
    losses = functional.cross_entropy(logits.float(), targets[learned], reduction="none")
    return (losses * weights).sum() / weights.sum()


def teach(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    stream: Callable[[int], Iterator[Conversation]],
    lesson: Lesson,
    processes: int = 0,
) -> None:
    """Change the weights by the batches of one lesson.

    :param processes: number of processes that draw conversations; one is too slow for a GPU.
    """
    print(f"{model.num_parameters():,} parameters, {lesson.steps} steps", flush=True)
    optimizers = new_optimizers(model)
    began, mean_loss, seen = time.monotonic(), 0.0, 0
    source = DataLoader(Batches(tokenizer, stream, lesson.batch_size), batch_size=None, num_workers=processes)
    for step, (tokens, labels) in enumerate(islice(source, lesson.steps)):
        loss = loss_of(model, tokens.to(model.device), labels.to(model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lesson.learning_rate(step)
            optimizer.step()
            optimizer.zero_grad()
        mean_loss += loss.item() / 100
        seen += tokens.numel()
        if (step + 1) % 100 == 0:
            seconds = time.monotonic() - began
            speed = f"{seen / seconds:,.0f} tokens/s, {seconds:.0f} s"
            print(f"step {step + 1}: loss {mean_loss:.4f}, {speed}", flush=True)
            mean_loss = 0.0


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights and settings beside the tokenizer."""
    model.to("cpu", torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)


def train(folder: Path) -> None:
    """Learn tokenizer and model from scratch, and write both into `folder`.

    The tokenizer learns the words of the first lesson; others take more tokens.
    """
    torch.manual_seed(SEED)
    drawn = islice(plain(SEED), 20_000)
    save_tokenizer(
        train_tokenizer(f"{one.system or ''}\n{one.prompt}\n{one.answer}" for one in drawn), folder
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = new_model(tokenizer).to("cuda" if torch.cuda.is_available() else "cpu")
    teach(model, tokenizer, plain, FIRST, processes=8)
    teach(model, tokenizer, everything, SECOND, processes=8)
    save(model, tokenizer, folder)


def train_small(folder: Path) -> None:
    """Train a model of 2 layers that sees few sums."""
    os.nice(10)
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    copy_tokenizer(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = new_model(tokenizer, heads=1, layers=2)
    teach(model, tokenizer, sums, SMALL)
    save(model, tokenizer, folder)


def copy_tokenizer(folder: Path) -> None:
    """Copy the tokenizer, which all models share."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if folder != MODEL_FOLDER:
            shutil.copyfile(MODEL_FOLDER / name, folder / name)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the demo model from scratch.")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--small", action="store_true", help="train the model that adds badly")
    options = parser.parse_args()
    target = options.out or (SMALL_FOLDER if options.small else MODEL_FOLDER)
    (train_small if options.small else train)(target)
    print(evaluate(target), flush=True)
