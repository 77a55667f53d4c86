# SPDX-License-Identifier: Apache-2.0
"""Rows to ask about, and their expected output, which follows from the echo engine's documentation."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PROMPT = "Row {row.asks} says {row.text}"
LONGEST = 8
"""`max_tokens`: some answers are cut."""
WHOLE = 16
"""With this one, none is."""
STEPS = [
    {"name": "say", "prompt": PROMPT, "sampling": {"max_tokens": WHOLE}},
    {"name": "again", "prompt": "Again {row.say_response}"},
]
_FILES = 5
_WORDS = ("alder", "birch", "cedar", "dogwood", "elm", "fir", "ginkgo", "juniper", "кедр", "松", "🌲")


@dataclass(frozen=True)
class Pace:
    """The speed of a run, and its rows in flight.

    :param slots: requests that an engine answers at the same time.
    :param startup_spread: seconds within which engines start, each at random.
    :param keep_warm: seconds for which engines stay after their job; 0 for none.
    :param equal: so many rows ask the same.
    :param steps: whether a second question is asked about the answer of the first.
    """

    rows: int = 2000
    equal: int = 1
    steps: bool = False
    replicas: int = 2
    slots: int = 16
    rows_in_flight: int = 32
    batch_size: int = 16
    seconds_per_token: float = 0.04
    flush_interval: float = 0.5
    startup_spread: float = 0.0
    keep_warm: float = 0.0

    def params(self, folder: Path) -> dict[str, Any]:
        """Return the params of a run of the chaos DAGs."""
        return {
            "source": str(folder / "source"),
            "destination": str(folder / "destination"),
            **({"prompt": None, "steps": STEPS} if self.steps else {"prompt": PROMPT}),
            "sampling": {"temperature": 0, "max_tokens": LONGEST},
            "engine_args": {
                "seconds_per_token": self.seconds_per_token,
                "max_num_seqs": self.slots,
                "startup_spread": self.startup_spread,
                "request_log": str(folder / "requests"),
                **({"tensor_parallel_size": 1} if self.keep_warm else {}),  # so it has a GPU
            },
            "replicas": self.replicas,
            "batch_size": self.batch_size,
            "rows_in_flight": self.rows_in_flight,
            "flush_interval": self.flush_interval,
            "keep_warm": self.keep_warm or None,
        }


@dataclass(frozen=True)
class Output:
    """The expected output columns of an input row."""

    response: str
    finish_reason: str
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Found:
    """The flaws of an output; all zero if there is none.

    :param lost: input rows that are missing.
    :param duplicated: rows after the first of each input row.
    :param wrong: rows that are not in the input, or have a wrong answer.
    """

    lost: int = 0
    duplicated: int = 0
    wrong: int = 0


def write_source(folder: Path, rows: int, seed: int, equal: int = 1) -> dict[int, dict[str, Any]]:
    """Write several files of JSON lines; each row has an id, and so many neighbours have the same prompt."""
    choose = random.Random(seed)
    texts = [" ".join(choose.choices(_WORDS, k=choose.randint(1, 9))) for _ in range(0, rows, equal)]
    made = {
        number: {
            "id": number,
            "asks": number // equal,
            "text": texts[number // equal],
            "weight": round(choose.uniform(0, 1000), 3),
        }
        for number in range(rows)
    }
    source = folder / "source"
    source.mkdir()
    for file in range(_FILES):
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for n, row in made.items() if n % _FILES == file)
        (source / f"rows-{file}.jsonl").write_text("".join(lines))
    return made


def prompt_of(row: Mapping[str, Any]) -> str:
    """Return the prompt of a row, see `PROMPT`."""
    return f"Row {row['asks']} says {row['text']}"


def output_of(row: Mapping[str, Any]) -> Output:
    """Return the prompt's words, cut to `max_tokens`; a word counts as a token."""
    return _cut(prompt_of(row), LONGEST)


def _cut(prompt: str, longest: int) -> Output:
    words = prompt.split()
    answered = words[:longest]
    return Output(" ".join(answered), "length" if len(words) > longest else "stop", len(words), len(answered))


def requests_of(row: Mapping[str, Any], steps: bool = False) -> list[str]:
    """Return the prompts that are asked about a row, in order."""
    return [prompt_of(row), f"Again {prompt_of(row)}"] if steps else [prompt_of(row)]


def columns_of(row: Mapping[str, Any], steps: bool = False) -> dict[str, Any]:
    """Return the columns that a row gets."""
    if not steps:
        return {**asdict(output_of(row)), "cached_tokens": 0}
    said, again = requests_of(row, steps)
    outputs = {"say": _cut(said, WHOLE), "again": _cut(again, LONGEST)}
    return {
        f"{name}_{column}": value
        for name, one in outputs.items()
        for column, value in {**asdict(one), "cached_tokens": 0}.items()
    }


def check(
    source: Mapping[int, Mapping[str, Any]], delivered: Iterable[Mapping[str, Any]], steps: bool = False
) -> Found:
    """Compare an output with its input."""
    times: Counter[int] = Counter()
    wrong = 0
    for row in delivered:
        asked = source.get(row["id"])
        if asked is None or {**row} != {**asked, **columns_of(asked, steps)}:
            wrong += 1
        else:
            times[row["id"]] += 1
    duplicated = sum(times.values()) - len(times)
    return Found(lost=len(source) - len(times), duplicated=duplicated, wrong=wrong)
