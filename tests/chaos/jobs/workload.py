# SPDX-License-Identifier: Apache-2.0
"""Rows of each kind of job with their right answers, which follow from the echo engine's documentation."""

from __future__ import annotations

import itertools
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.numbered_pictures import Picture

Row = dict[str, Any]
BAD = "bad"
"""A request with this word fails."""
NAMES = ("acme", "umbrella")
"""Of the adapters."""
_LONG = "why " * 60
"""A prompt that is longer than the engine's context."""


class Work(NamedTuple):
    """The arguments of a job, and its rows, whose ids are their ordinals.

    :param right: returns the answers of each right outcome of a row, by all contents that its files have had;
        a dead letter has none.
    :param shares: whether rows that are equal to a row share its answer.
    :param change: replaces, mends, breaks or deletes a file.
    """

    fields: Row
    rows: list[Row]
    right: Callable[[Row], list[set[str]]]
    shares: Callable[[Row], bool]
    change: Callable[[], object] = bool


def _steps(chance: random.Random, root: Path) -> Work:
    """Three steps: a condition on the first one's answer, two drafts, and a judge of each."""

    def right(row: Row) -> list[set[str]]:
        read = f"read {row['text']}"
        drafts = [f"draft {read}", f"draft {read} #1"] if len(read.split()) > 3 else []
        return [set() if BAD in read else {read, *drafts, *(f"judge {draft}" for draft in drafts)}]

    when = ["read_output_tokens", ">", 3]
    steps = [
        {"name": "read", "prompt": "read {row.text}"},
        {"name": "draft", "prompt": "draft {row.read_response}", "sampling": {"n": 2}, "when": when},
        {"name": "judge", "prompt": "judge {row.draft_response}", "each": "draft", "when": when},
    ]
    texts = [*(f"{'long ' * (number % 3)}text {number}" for number in range(9)), f"a {BAD} text"]
    return Work({"steps": steps}, _rows(chance, [{"text": text} for text in texts]), right, lambda _: True)


def _adapters(chance: random.Random, root: Path) -> Work:
    """Each text is asked of several adapters and of the model alone; one name is not listed."""

    def right(row: Row) -> list[set[str]]:
        text, name = row["text"], row["customer"]
        is_failed = text == BAD or name == "unlisted"
        return [set() if is_failed else {f"[{name}] {text}" if name else text}]

    pairs = itertools.product([*(f"text {number}" for number in range(5)), BAD], [*NAMES, "unlisted", None])
    rows = _rows(chance, [{"text": text, "customer": name} for text, name in pairs])
    adapters = {name: f"s3://models/{name}" for name in NAMES}
    fields = {"prompt": "{row.text}", "adapter_column": "customer", "adapters": adapters}
    return Work(fields, rows, right, lambda _: True)


def _pictures(chance: random.Random, root: Path, in_steps: bool = False) -> Work:
    """Rows about pictures by reference; some can't be read, and some change meanwhile.

    :param in_steps: whether a second step shows the picture again.
    """
    numbers, contents = itertools.count(), defaultdict[str, list[Picture | None]](list)

    def put(name: str, how: str) -> None:
        one = Picture(next(numbers))
        good = one.content()
        broken = {"cut": good[:-30], "text": b"no picture", "large": good + bytes(5000)}
        (root / "new").write_bytes(broken.get(how, good))
        (root / "new").replace(root / name)  # a reader never finds half of it
        if how == "gone":
            (root / name).unlink()
        contents[name].append(one if how == "good" else None)

    def right(row: Row) -> list[set[str]]:
        found = contents[Path(row["scan"]).name] if row["ask"] != _LONG else [None]
        looks = [one and f"{one.said} {row['ask']}" for one in found]
        if not in_steps:
            return [{look} if look else set() for look in looks]
        pairs = itertools.product(looks, found)
        return [{look, f"{one.said} again {look}"} if one and look else set() for look, one in pairs]

    def shares(row: Row) -> bool:
        # Equal rows about a file that has changed may be asked apart.
        return len(contents[Path(row["scan"]).name]) == 1

    names = [*["good"] * 6, *["cut", "text", "large", "gone"] * 2]
    for number, how in enumerate(names):
        put(f"{number}.png", how)
    shutil.copy(root / "0.png", root / "same.png")
    contents["same.png"] = contents["0.png"]  # which don't change
    asked = [{"scan": str(root / name), "ask": "What is that?"} for name in contents]
    asked.append({"scan": str(root / "1.png"), "ask": _LONG})
    fields: Row = {"prompt": "{row.ask}", "images": "scan"}
    if in_steps:
        again = {"name": "again", "prompt": "again {row.look_response}", "images": "scan"}
        fields = {"steps": [{"name": "look", **fields}, again]}
    fields |= {"max_image_bytes": 5000, "image_roots": [str(root)]}

    def change() -> None:
        put(f"{chance.randrange(1, len(names))}.png", chance.choice(["good", "good", "cut", "gone"]))

    return Work(fields, _rows(chance, asked), right, shares, change)


KINDS = {
    "steps": _steps,
    "pictures": _pictures,
    "adapters": _adapters,
    "pictures in steps": partial(_pictures, in_steps=True),
}


def work(kind: str, seed: int, root: Path) -> Work:
    """Return the work of a seed; its files lie in `root`."""
    made = KINDS[kind](random.Random(seed), root)
    engine = {
        "seconds_per_token": 0.01,
        "max_num_seqs": 4,
        "max_model_len": 50,
        "max_loras": 1 + seed // 4 % 2,
    }
    made.fields["engine_args"] = {**engine, "fail_pattern": BAD, "request_log": str(root / "requests")}
    made.fields.update(rows_in_flight=8, flush_interval=0.1, max_error_fraction=1.0, id_column="id")
    made.fields["sampling"] = {"temperature": 0}
    return made


def _rows(chance: random.Random, asked: Sequence[Row]) -> list[Row]:
    """Return each of `asked` one to three times, in any order."""
    rows = [one for one in asked for _ in range(chance.randint(1, 3))]
    return [{"id": number, **one} for number, one in enumerate(chance.sample(rows, len(rows)))]
