# SPDX-License-Identifier: Apache-2.0
"""Four workloads with fixed seeds, and a model of real size without weights to run them.

W1 classify: 32,768 rows of about 84 prompt tokens, 64 of them a shared system prompt, and 8 output tokens.
W2 synthesize: 3,072 rows of 46 to 400 prompt tokens and, per row, 16 to 1,024 output tokens (lognormal,
median 200). W3 documents: four questions on each of 1,000 documents of 2,000 tokens, which come first in
the prompt, in random order; 16 output tokens. W2-unknown has W2's rows, but all may have 1,024 output
tokens, and end where W2's do by an end-of-sequence token: each is forbidden until then, and certain then.

The model has the shape of Llama 3.1 8B; vLLM fills it with random weights (``load_format="dummy"``), which
run at the speed of real ones. Requests of the others set ``ignore_eos``, so every system generates exactly
the same number of tokens. An engine that stays for several jobs has the prompts of the last one in its
prefix cache, so each job gets other words: with VARIANTS there are also W1-1, W2-1 and so on.

usage: workloads.py TOKENIZER_FOLDER OUT_FOLDER [ROWS_W1 ROWS_W2 DOCUMENTS_W3 [VARIANTS]]
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

SEED = 20261121
VOCABULARY = 128_256
END_OF_SEQUENCE = 2
MOST_TOKENS = 1024
"""Of a response of W2."""
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "max_position_embeddings": 131072,
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": END_OF_SEQUENCE,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "dtype": "bfloat16",
    "torch_dtype": "bfloat16",
}
SYLLABLES = (
    "ba",
    "ce",
    "di",
    "fo",
    "gu",
    "ha",
    "je",
    "ki",
    "lo",
    "mu",
    "na",
    "pe",
    "ri",
    "so",
    "tu",
    "bra",
    "cle",
    "dri",
)


def main() -> None:
    tokenizer_folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    rows_w1, rows_w2, documents = map(int, sys.argv[3:6]) if len(sys.argv) > 5 else (32768, 3072, 1000)
    variants = int(sys.argv[6]) if len(sys.argv) > 6 else 0
    write_model(tokenizer_folder, out / "model")
    tokenizer = Tokenizer.from_file(str(out / "model" / "tokenizer.json"))
    lengths = np.random.default_rng(SEED).normal(np.log(200), 0.8, rows_w2)
    outputs = np.clip(np.exp(lengths).astype(int), 16, MOST_TOKENS)
    for variant in range(variants + 1):
        text = Text(tokenizer, SEED + variant)
        system = text.of(62)
        write(out / variant_of("W1", variant), [w1(text, system, number) for number in range(rows_w1)])
        answers = [w2(text, number, int(outputs[number])) for number in range(rows_w2)]
        write(out / variant_of("W2", variant), answers)
        write(out / variant_of("W2-unknown", variant), [with_unknown_length(one) for one in answers])
        if not variant:
            write(out / "W3", w3(text, documents))


def variant_of(workload: str, number: int) -> str:
    """The name of a workload with other words; 0 is the workload itself."""
    return f"{workload}-{number}" if number else workload


def write_model(source: Path, out: Path) -> None:
    """Write config and tokenizer without weights; unreachable entries give each vocabulary id a text."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first = max([*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])]) + 1
    vocabulary.update({f"\u0120w{number:06d}": number for number in range(first, VOCABULARY)})
    # Without the post-processor that adds BOS, so that every system sees the same number of tokens.
    tokenizer["post_processor"] = None
    (out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "chat_template": TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(config))
    (out / "config.json").write_text(json.dumps(LLAMA_8B))
    ends = {"bos_token_id": 1, "eos_token_id": END_OF_SEQUENCE}
    (out / "generation_config.json").write_text(json.dumps(ends))


class Text:
    """Random words, by number of tokens."""

    def __init__(self, tokenizer: Tokenizer, seed: int = SEED) -> None:
        self.tokenizer = tokenizer
        self._random = random.Random(seed)
        choice = self._random.choice
        words = sorted({"".join(choice(SYLLABLES) for _ in range(1 + i % 3)) for i in range(6000)})
        self._words = [(word, len(tokenizer.encode(" " + word).ids)) for word in words]

    def between(self, low: int, high: int) -> str:
        """Return text of a random number of tokens."""
        return self.of(self._random.randint(low, high))

    def of(self, tokens: int) -> str:
        """Return text of `tokens` tokens, or a few fewer, because words stay whole."""
        out, used = [], 0
        while used < tokens:
            word, length = self._random.choice(self._words)
            if used + length > tokens:
                break
            out.append(word)
            used += length
        return " " + " ".join(out)


def w1(text: Text, system: str, number: int) -> dict[str, Any]:
    return row(text, number, system, text.between(18, 28), 8)


def w2(text: Text, number: int, output: int) -> dict[str, Any]:
    return row(text, number, "", text.between(47, 397), output)


def w3(text: Text, documents: int) -> list[dict[str, Any]]:
    asked = [document for document in [text.of(2000) for _ in range(documents)] for _ in range(4)]
    random.Random(SEED).shuffle(asked)
    return [row(text, number, document, text.between(8, 16), 16) for number, document in enumerate(asked)]


def with_unknown_length(answer: dict[str, Any]) -> dict[str, Any]:
    """The same row, but no parameter bounds its output tokens by their number."""
    ends = {"min_tokens": answer["max_tokens"] - 1, "logit_bias": {str(END_OF_SEQUENCE): 100}}
    return {**answer, "sampling": json.dumps({"temperature": 0.0, "max_tokens": MOST_TOKENS, **ends})}


def row(text: Text, number: int, system: str, user: str, output: int) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": user})
    turns = [f"<|{message['role']}|>{message['content']}<|end|>" for message in messages]
    prompt = "".join(turns) + "<|assistant|>"
    sampling = {"temperature": 0.0, "max_tokens": output, "ignore_eos": True}
    return {
        "id": number,
        "messages": messages,
        "sampling": json.dumps(sampling),
        "prompt_tokens": len(text.tokenizer.encode(prompt).ids),
        "max_tokens": output,
    }


def write(folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write eight Parquet files, as in a data lake."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(8):
        part = rows[number * len(rows) // 8 : (number + 1) * len(rows) // 8]
        pq.write_table(pa.Table.from_pylist(part), folder / f"part-{number:02d}.parquet", compression="zstd")
    tokens = sum(one["prompt_tokens"] for one in rows), sum(one["max_tokens"] for one in rows)
    print(f"{folder.name}: {len(rows)} rows, {tokens[0]} prompt and {tokens[1]} output tokens", flush=True)


if __name__ == "__main__":
    main()
