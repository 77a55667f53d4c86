# SPDX-License-Identifier: Apache-2.0
"""Photographs with questions about them, and a vision-language model of real size without weights.

The photographs are JPEGs of five sizes, from 640 x 480 to 1600 x 1200, of coarse colours with some noise, so
that they have about as many bytes as real ones. All differ, so no cache of an engine helps the next job. The
model has the shape of Idefics3 8B: SigLIP's so400m before Llama 3 8B, 169 tokens for each tile of 364 pixels.
"""

from __future__ import annotations

import json
import random
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from tokenizers import Tokenizer
from workloads import LLAMA_8B, SEED, VOCABULARY, Text, write_model

SIZES = ((640, 480), (480, 640), (1024, 768), (1280, 960), (1600, 1200))
ROWS = "rows.parquet"
TILE, PATCH, SHUFFLE = 364, 14, 2
"""Pixels of a tile's edge and of a patch's, and how many patches along each edge become one token."""
PLACEHOLDER = "<image>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['content'] is string %}{{ m['content'] }}{% else %}"
    "{% for part in m['content'] %}{% if part['type'] == 'image' %}<image>{% else %}{{ part['text'] }}"
    "{% endif %}{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_SIGLIP = {
    "model_type": "idefics3_vision",
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": TILE,
    "patch_size": PATCH,
}
_TINY = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
_TINY_TEXT = {**_TINY, "num_key_value_heads": 2, "head_dim": 32}


def write_vision_model(tokenizer: Path, out: Path, edge: int, is_tiny: bool) -> None:
    """Write config, tokenizer and processor without weights.

    :param tokenizer: folder of any tokenizer's `tokenizer.json`.
    :param edge: pixels to which the longer edge of each image is resized, before it is cut into tiles.
    :param is_tiny: few layers and small ones, for a machine without a GPU.
    """
    write_model(tokenizer, out)
    placeholder = _add_tokens(out / "tokenizer.json")
    text = {**LLAMA_8B, **(_TINY_TEXT if is_tiny else {})}
    config = {
        "architectures": ["Idefics3ForConditionalGeneration"],
        "model_type": "idefics3",
        "text_config": text,
        "vision_config": {**_SIGLIP, **(_TINY if is_tiny else {})},
        "scale_factor": SHUFFLE,
        "image_token_id": placeholder,
        **{name: text[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id", "dtype")},
        "tie_word_embeddings": False,
    }
    size = {"size": {"longest_edge": edge}, "max_image_size": {"longest_edge": TILE}}
    steps = dict.fromkeys(
        ("do_convert_rgb", "do_resize", "do_image_splitting", "do_rescale", "do_normalize", "do_pad"), True
    )
    processor = {
        "image_processor_type": "Idefics3ImageProcessor",
        "processor_class": "Idefics3Processor",
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "rescale_factor": 1 / 255,
        "resample": 3,
        **size,
        **steps,
    }
    tokens = (TILE // PATCH // SHUFFLE) ** 2
    whole = {"processor_class": "Idefics3Processor", "image_seq_len": tokens}
    words = json.loads((out / "tokenizer_config.json").read_text())
    for name, document in {
        "config": config,
        "preprocessor_config": processor,
        "processor_config": whole,
        "tokenizer_config": {**words, "chat_template": TEMPLATE},
    }.items():
        (out / f"{name}.json").write_text(json.dumps(document))


def _add_tokens(file: Path) -> int:
    """Let the last entries of a vocabulary be the tokens around images; return the id of the placeholder."""
    tokenizer = json.loads(file.read_text())
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    tiles = [f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7)]
    added = [PLACEHOLDER, "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tiles]
    words = {number: word for word, number in vocabulary.items()}
    for number, token in enumerate(added, VOCABULARY - len(added)):
        del vocabulary[words[number]]
        vocabulary[token] = number
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        tokenizer["added_tokens"].append({"id": number, "content": token, "special": True, **flags})
    file.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return vocabulary[PLACEHOLDER]


def write_rows(model: Path, folder: Path, rows: int, seed: int) -> Path:
    """Write photographs, and a Parquet file with a row for each: `id`, `image` (its path) and `question`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{number:05d}.jpg" for number in range(rows)]
    with ProcessPoolExecutor() as pool:
        size = sum(pool.map(partial(_photograph, seed), range(rows), files, chunksize=8))
    text = Text(Tokenizer.from_file(str(model / "tokenizer.json")), SEED + seed)
    table = [
        {"id": number, "image": str(file), "question": text.between(18, 28)}
        for number, file in enumerate(files)
    ]
    pq.write_table(pa.Table.from_pylist(table), folder / ROWS)
    print(f"{folder.name}: {rows} images, {size / 1e6:.0f} MB", flush=True)
    return folder / ROWS


def _photograph(seed: int, number: int, file: Path) -> int:
    """Write one; return its number of bytes."""
    width, height = SIZES[random.Random(seed * 1_000_003 + number).randrange(len(SIZES))]
    pick = np.random.default_rng([SEED, seed, number])
    coarse = Image.fromarray(pick.integers(0, 255, (12, 16, 3), dtype=np.uint8))
    pixels = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), dtype=np.int16)
    grain = pick.integers(-12, 13, (height, width, 1), dtype=np.int16)
    Image.fromarray(np.clip(pixels + grain, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.stat().st_size


def chats(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What ``LLM.chat`` takes for these rows: it opens each file itself."""
    return [
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": Path(row["image"]).as_uri()}},
                    {"type": "text", "text": row["question"]},
                ],
            }
        ]
        for row in rows
    ]
