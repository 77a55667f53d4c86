# SPDX-License-Identifier: Apache-2.0
"""What must hold for each batch and file, whatever was killed: functions of what clients saw."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Batch = Mapping[str, Any]

OVER = ("completed", "failed", "expired", "cancelled")
_ENDS = {*OVER}
_AFTER = {
    "validating": {"in_progress", "finalizing", "cancelling", *_ENDS},
    "in_progress": {"finalizing", "cancelling", *_ENDS},
    "finalizing": {"completed", "expired"},
    "cancelling": {"cancelled"},
    **{end: set[str]() for end in OVER},
}
"""The states, and those that a later look may find."""
_FIXED = (
    "id", "object", "endpoint", "model", "input_file_id", "completion_window", "created_at", "expires_at",
    "metadata",
)  # fmt: skip
_SET_ONCE = (
    "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at", "cancelling_at",
    "cancelled_at", "output_file_id", "error_file_id", "usage", "errors",
)  # fmt: skip
_COUNTS = ("total", "completed", "failed")


@dataclass(frozen=True)
class Seen:
    """A look at a batch.

    :param begun: when the call began, and `ended` when its answer was there (seconds of one clock).
    :param server: that answered.
    """

    begun: float
    ended: float
    server: str
    batch: Batch


def steps_back(looks: Sequence[Seen]) -> list[str]:
    """Say where a look shows less than another one that had ended before it began, at whichever server."""
    flaws = []
    earlier = sorted(looks, key=lambda one: one.ended)
    known: Seen | None = None
    place = 0
    for look in sorted(looks, key=lambda one: one.begun):
        while place < len(earlier) and earlier[place].ended <= look.begun:
            known = _further(known, earlier[place])
            place += 1
        if known is not None:
            flaws += _differences(known, look)
    return flaws


def _further(known: Seen | None, look: Seen) -> Seen:
    """The look that shows more of the two; it also has what only the other one has."""
    if known is None:
        return look
    before, after = known.batch, look.batch
    newest = after if after["status"] in _AFTER[before["status"]] else before
    merged = {
        **newest,
        **{name: before.get(name) if before.get(name) is not None else after.get(name) for name in _SET_ONCE},
        "request_counts": {
            name: max(before["request_counts"][name], after["request_counts"][name]) for name in _COUNTS
        },
    }
    return Seen(look.begun, look.ended, look.server, merged)


def _differences(known: Seen, look: Seen) -> list[str]:
    before, after = known.batch, look.batch
    flaws = []
    if after["status"] != before["status"] and after["status"] not in _AFTER[before["status"]]:
        flaws.append(f"{before['status']}, then {after['status']}")
    flaws += [
        f"{name}: {before.get(name)!r}, then {after.get(name)!r}"
        for name in (*_FIXED, *_SET_ONCE)
        if after.get(name) != before.get(name) and (name in _FIXED or before.get(name) is not None)
    ]
    flaws += [
        f"{name}: {before['request_counts'][name]}, then {after['request_counts'][name]}"
        for name in _COUNTS
        if after["request_counts"][name] < before["request_counts"][name]
    ]
    return [f"{before['id']}: {flaw} ({look.server})" for flaw in flaws]


def wrong_lines(
    rows: Mapping[str, str], output: str, errors: str, *, is_cancelled: bool
) -> tuple[list[str], int]:
    """Compare the files of a batch with its input.

    :param rows: the texts by custom id; an echo answers with the text.
    :param is_cancelled: whether lines may be there that were not answered.
    :return: the flaws, and how many lines have an answer.
    """
    good = [json.loads(line) for line in output.splitlines()]
    bad = [json.loads(line) for line in errors.splitlines()]
    times = Counter(line["custom_id"] for line in (*good, *bad))
    flaws = [f"{one} is there {count} times" for one, count in times.items() if count > 1]
    flaws += [f"{one} is lost" for one in rows if one not in times]
    flaws += [f"{one} is not of the input" for one in times if one not in rows]
    if len({line["id"] for line in (*good, *bad)}) < len(good) + len(bad):
        flaws.append("lines have the same id")
    for line in good:
        answer = line["response"]["body"]["choices"][0]["message"]["content"]
        if answer != rows.get(line["custom_id"]):
            flaws.append(f"{line['custom_id']} has the answer {answer!r}")
    for line in bad:
        if not is_cancelled or (line["error"] or {}).get("code") != "batch_cancelled":
            flaws.append(f"{line['custom_id']} has the error {line['error'] or line['response']!r}")
    return flaws, len(good)


def wrong_end(batch: Batch, rows: int, answered: int, *, was_cancelled: bool) -> list[str]:
    """Compare the end of a batch with its files.

    :param rows: of its input, and `answered` lines of its output.
    :param was_cancelled: whether the server has accepted that.
    """
    flaws = []
    expected = "cancelled" if was_cancelled else "completed"
    if batch["status"] != expected:
        flaws.append(f"it is {batch['status']}, not {expected}: {batch['errors']}")
    counts = batch["request_counts"]
    # A batch that is cancelled before its task begins has no lines.
    if (counts["completed"], counts["failed"]) != (answered, 0) or counts["total"] not in {rows, 0}:
        flaws.append(f"its counts are {counts}, with {answered} answers for {rows} lines")
    if counts["total"] == 0 and (answered or not was_cancelled):
        flaws.append("its total is 0")
    steps = [
        batch.get(name)
        for name in (
            "created_at", "in_progress_at", "cancelling_at" if was_cancelled else "finalizing_at",
            f"{expected}_at",
        )
    ]  # fmt: skip
    times = [at for at in steps if at is not None]
    if times != sorted(times) or steps[-1] is None or steps[-2] is None:
        flaws.append(f"its times are {steps}")
    return flaws
