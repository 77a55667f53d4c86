# SPDX-License-Identifier: Apache-2.0
"""Train the demo model from scratch on one CPU core and write it into ``model/``.

Run with ``python -m demo_model.train`` from the folder above; 20 to 30 minutes. Needs torch and
transformers 5 or newer. Seeds are fixed: the same versions on the same kind of CPU give the same weights.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from random import Random

import torch
from torch.nn import functional
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from .corpus import Conversation, Skill, conversations
from .evaluate import MODEL_FOLDER, answer_text, evaluate, prompt_text
from .tokenizer import CONTEXT_LENGTH, END, VOCABULARY_SIZE, save_tokenizer, train_tokenizer

SEED = 20_261
MIX: tuple[Skill, ...] = ("industry", "industry", "question", "question", "question", "sum", "sum")
STEPS = 3400
BATCH_SIZE = 64
PEAK_LEARNING_RATE = 5e-3
WARMUP_STEPS = 50
IGNORED = -100


def new_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A model with random weights.

    Heads of 64 suit the attention kernels of vLLM on CPU and GPU, and an even number of key-value heads lets
    tensor parallelism split them over two devices.
    """
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def new_optimizers(model: LlamaForCausalLM) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers and AdamW for the rest.

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
    """Token ids and labels of one conversation; only the answer and its end token are learned."""
    prompt = tokenizer.encode(prompt_text(tokenizer, conversation), add_special_tokens=False)
    answer = tokenizer.encode(answer_text(conversation) + END, add_special_tokens=False)
    return prompt + answer, [IGNORED] * len(prompt) + answer


def batches(tokenizer: PreTrainedTokenizerFast) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches (token ids, labels) of conversations of similar length, padded on the right."""
    stream = conversations("train", SEED, MIX)
    order = Random(SEED)
    while True:
        pool = [encoded(tokenizer, item) for item in islice(stream, BATCH_SIZE * 32)]
        pool.sort(key=lambda item: len(item[0]))
        starts = sorted(range(0, len(pool), BATCH_SIZE), key=lambda _: order.random())
        for start in starts:
            group = pool[start : start + BATCH_SIZE]
            width = len(group[-1][0])
            tokens = [ids + [tokenizer.pad_token_id] * (width - len(ids)) for ids, _ in group]
            labels = [marks + [IGNORED] * (width - len(marks)) for _, marks in group]
            yield torch.tensor(tokens), torch.tensor(labels)


def learning_rate(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine down to 2 % of the peak."""
    if step < WARMUP_STEPS:
        return PEAK_LEARNING_RATE * (step + 1) / WARMUP_STEPS
    progress = (step - WARMUP_STEPS) / max(1, steps - WARMUP_STEPS)
    return PEAK_LEARNING_RATE * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))


def loss_of(model: LlamaForCausalLM, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy over the learned tokens.

    Padding stands on the right, so the causal mask hides it. Logits are computed at the learned positions
    only, which saves a sixth of the work.
    """
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=tokens[:, :-1], use_cache=False).last_hidden_state
        targets = labels[:, 1:]
        learned = targets != IGNORED
        logits = model.lm_head(hidden[learned])
    return functional.cross_entropy(logits.float(), targets[learned])


def train(folder: Path, steps: int) -> None:
    """Learn tokenizer and model in ``steps`` batches and write both into ``folder``."""
    torch.manual_seed(SEED)
    sample = islice(conversations("train", SEED, MIX), 20_000)
    texts = (f"{item.system or ''}\n{item.prompt}\n{item.answer}" for item in sample)
    save_tokenizer(train_tokenizer(texts), folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = new_model(tokenizer)
    print(f"{model.num_parameters():,} parameters, {steps} steps", flush=True)
    optimizers = new_optimizers(model)
    began, mean_loss, seen = time.monotonic(), 0.0, 0
    for step, (tokens, labels) in enumerate(islice(batches(tokenizer), steps)):
        loss = loss_of(model, tokens, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(step, steps)
            optimizer.step()
            optimizer.zero_grad()
        mean_loss += loss.item() / 100
        seen += tokens.numel()
        if (step + 1) % 100 == 0:
            seconds = time.monotonic() - began
            speed = f"{seen / seconds:,.0f} tokens/s, {seconds:.0f} s"
            print(f"step {step + 1}: loss {mean_loss:.4f}, {speed}", flush=True)
            mean_loss = 0.0
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=0.7,
        top_p=0.95,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model.save_pretrained(folder)
    print(evaluate(folder), flush=True)


if __name__ == "__main__":
    os.nice(10)
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description="Train the demo model from scratch.")
    parser.add_argument("--out", type=Path, default=MODEL_FOLDER)
    parser.add_argument("--steps", type=int, default=STEPS)
    chosen = parser.parse_args()
    train(chosen.out, chosen.steps)
