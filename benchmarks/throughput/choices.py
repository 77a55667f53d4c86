# SPDX-License-Identifier: Apache-2.0
"""W1's prompts (`workloads.py`), answered by one of twelve labels of 3 to 8 tokens, on two GPUs.

The first GPU runs the normal job, which generates only the deciding tokens and fills in the others. The
second GPU runs the same job with a stop token that the labels can't reach, so that it generates all. Prints a
JSON line for each, and `ratios`.

usage: choices.py DATA_FOLDER OUT_FOLDER [ENGINE_ARGS_JSON]
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer
from two_gpus import measured
from workloads import Text

NAME = "W1"


def main() -> None:
    data, out, *rest = sys.argv[1:]
    engine = rest[0] if rest else '{"load_format": "dummy"}'
    text = Text(Tokenizer.from_file(str(Path(data) / "model/tokenizer.json")))
    labels = [label(text, 3 + number % 6) for number in range(12)]
    sampling = {"temperature": 0.0, "max_tokens": 256, "structured_outputs": {"choice": labels}}

    def seconds(gpu: str, **more: object) -> float:
        place = Path(out) / gpu
        place.mkdir(parents=True, exist_ok=True)
        fields = json.dumps({"sampling": {**sampling, **more}})
        return measured(data, str(place), NAME, 1, engine, gpu, fields)

    with ThreadPoolExecutor() as pool:
        filled = pool.submit(seconds, "0")
        whole = pool.submit(seconds, "1", stop_token_ids=[3])
    ratio = round(whole.result() / filled.result(), 3)
    print("RESULT", json.dumps({"ratios": {"all tokens to filled in": ratio}}), flush=True)


def label(text: Text, tokens: int) -> str:
    """Return the beginning of a text, with at least so many tokens."""
    made = text.of(100).strip()
    sizes = (size for size in range(1, len(made)) if made[size - 1] != " ")
    return next(made[:size] for size in sizes if len(text.tokenizer.encode(made[:size]).ids) >= tokens)


if __name__ == "__main__":
    main()
