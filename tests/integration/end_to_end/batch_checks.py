# SPDX-License-Identifier: Apache-2.0
"""What holds for each batch, whatever becomes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

Played = Mapping[str, Any]

_AFTER = {
    "validating": {"in_progress", "finalizing", "failed", "cancelling", "completed", "expired", "cancelled"},
    "in_progress": {"finalizing", "failed", "cancelling", "completed", "expired", "cancelled"},
    "finalizing": {"completed", "expired", "cancelled", "failed"},
    "cancelling": {"cancelled"},
    "completed": set[str](),
    "failed": set[str](),
    "expired": set[str](),
    "cancelled": set[str](),
}
"""The states, and what a poll may find next; a short state may fall between two polls."""
_TIMES = (
    "created_at", "in_progress_at", "finalizing_at", "completed_at", "failed_at", "expired_at",
    "cancelling_at", "cancelled_at",
)  # fmt: skip
_FIXED = (
    "id",
    "object",
    "endpoint",
    "input_file_id",
    "completion_window",
    "created_at",
    "expires_at",
    "model",
    "metadata",
)


def final(played: Played) -> dict[str, Any]:
    """The batch at its end, after all that holds for each batch was checked."""
    polls = [played["created"], *played["polls"]]
    for before, after in pairwise(polls):
        assert after["status"] == before["status"] or after["status"] in _AFTER[before["status"]], polls
        assert all(after.get(name) == before.get(name) for name in _FIXED), (before, after)
        # What is known stays so: times, and counts that only grow.
        assert all(before[name] in (None, after[name]) for name in _TIMES if name in before), (before, after)
        counts, later = before["request_counts"], after["request_counts"]
        assert all(later[name] >= counts[name] for name in ("completed", "failed", "total")), (before, after)
    last: dict[str, Any] = polls[-1]
    assert not _AFTER[last["status"]], polls
    assert last["object"] == "batch"
    times = [last[name] for name in _TIMES if last.get(name) is not None]
    assert times == sorted(times), last
    assert last[f"{last['status']}_at"] is not None
    counts = last["request_counts"]
    assert counts["completed"] + counts["failed"] <= counts["total"]
    _check_files(played, last)
    return last


def _check_files(played: Played, last: dict[str, Any]) -> None:
    output, errors = lines(played, "output"), lines(played, "errors")
    counts = last["request_counts"]
    assert (last["output_file_id"] is None, last["error_file_id"] is None) == (not output, not errors), last
    if last["status"] == "failed":
        assert (output, errors, counts["completed"]) == ([], [], 0)
        assert last["errors"]["object"] == "list"
        assert last["errors"]["data"]
        return
    assert (last["errors"] is not None) is ("batch_limit_reached" in codes(errors))
    assert len(output) == counts["completed"]
    assert len(output) + len(errors) == counts["total"]
    every = [*output, *errors]
    for key in ("id", "custom_id"):
        assert len({one[key] for one in every}) == len(every)
    for one in every:
        assert set(one) == {"id", "custom_id", "response", "error"}
        assert one["id"].startswith("batch_req_")
    for one in output:
        assert (one["error"], one["response"]["status_code"]) == (None, 200)
    assert usage_of(output) == {
        name: last["usage"][name] for name in ("input_tokens", "output_tokens", "total_tokens")
    }
    for name, of_file in (("output", "output_file_id"), ("errors", "error_file_id")):
        if (file := played[name]) is not None:
            assert file["file"]["id"] == last[of_file]
            assert (file["file"]["purpose"], file["file"]["bytes"]) == ("batch_output", file["bytes"])
            assert file["file"]["status"] == "processed"


def lines(played: Played, name: str) -> list[dict[str, Any]]:
    """The lines of the ``output`` or the ``errors``."""
    found: list[dict[str, Any]] = (played[name] or {"lines": []})["lines"]
    return found


def ids(found: Iterable[Mapping[str, Any]]) -> set[str]:
    return {one["custom_id"] for one in found}


def codes(found: Iterable[Mapping[str, Any]]) -> set[str | None]:
    """The codes of lines without an answer; ``None`` for those with one."""
    return {None if one["error"] is None else one["error"]["code"] for one in found}


def usage_of(output: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    used = [one["response"]["body"]["usage"] for one in output]
    asked = sum(one["prompt_tokens"] for one in used)
    generated = sum(one.get("completion_tokens", 0) for one in used)
    return {"input_tokens": asked, "output_tokens": generated, "total_tokens": asked + generated}
