# SPDX-License-Identifier: Apache-2.0
"""A round: users make batches, a plan kills, and at the end everything is compared with everything."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from airflow_provider_raybatch.batch_api.dags.sweep import STRAYS_KEPT, sweep
from airflow_provider_raybatch.contract import layout

from ..places import Disk
from .asked import Loss, asked
from .checking import OVER, Seen, steps_back, wrong_end, wrong_lines
from .clients import Story, Users
from .durable import answered_at
from .killing import Killer
from .plan import Kill
from .world import SERVERS, BatchApiWorld

USERS = 3
_MOST = 30
"""Flaws that a result names."""


@dataclass
class Result:
    """A line of the results file.

    :param kills: that have happened, and `missed` those without a victim.
    :param lines: of the inputs, and `answers` of the outputs.
    :param in_flight: requests that kills took; `again` is how many were made again.
    :param strays: objects without a record, which the sweep has deleted.
    :param slowest: seconds from the creation of a batch to its end.
    """

    seed: int
    version: str
    kills: list[dict[str, Any]] = field(default_factory=list)
    missed: int = 0
    batches: int = 0
    completed: int = 0
    cancelled: int = 0
    lines: int = 0
    answers: int = 0
    requests: int = 0
    again: int = 0
    in_flight: int = 0
    files: int = 0
    strays: int = 0
    looks: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0
    flaws: list[str] = field(default_factory=list)


def play(world: BatchApiWorld, seed: int, kills: list[Kill], version: str, users: int = USERS) -> Result:
    """Play a round, and check it."""
    result = Result(seed, version)
    began = time.monotonic()
    before = {run["dag_run_id"] for run in world.runs()}
    playing, killer = Users(world, seed), Killer(world)
    try:
        playing.start(users)
        try:
            killer.play(kills)
        finally:
            playing.finish()
        world.wait_until_whole()
        result.kills = [asdict(hit) for hit in killer.hits]
        result.missed = len(killer.missed)
        result.flaws += [f"no victim for {kill}" for kill in killer.missed]
        _check(world, playing, killer.losses, before, result)
    finally:
        playing.close()
    result.counts = dict(sorted(playing.counts.items()))
    result.seconds = round(time.monotonic() - began, 1)
    if len(result.flaws) > _MOST:
        result.flaws[_MOST:] = [f"and {len(result.flaws) - _MOST} more"]
    return result


def _check(world: BatchApiWorld, users: Users, losses: list[Loss], before: set[str], result: Result) -> None:
    result.flaws += users.flaws
    listed = _listed(world)
    by_name: dict[str, list[str]] = {}
    for batch in listed.values():
        by_name.setdefault(batch["metadata"]["story"], []).append(batch["id"])
    engines = world.engines()
    for story in users.stories:
        result.flaws += [
            f"batch {story.name}: {flaw}" for flaw in _story(world, users, story, by_name, result)
        ]
        for batch_id in set(story.ids):
            durable = answered_at(Disk(world.root / layout.batch_folder(batch_id) / layout.BATCH_DATASET))
            found = asked(engines, set(story.upload.rows.values()), durable, losses)
            result.requests += found.requests
            result.again += found.again
            result.in_flight += found.in_flight
            # A batch that is cancelled before a job has begun to write needs none, and has no lines.
            if found.requests and not any(story.files.values()):
                result.flaws.append(f"batch {story.name}: {found.requests} requests, and no lines")
            result.flaws += [
                f"batch {story.name}: {count} requests are {name.replace('_', ' ')}"
                for name in ("unexplained", "late", "side_by_side")
                if (count := getattr(found, name))
            ]
    runs = Counter(run["dag_run_id"] for run in world.runs() if run["dag_run_id"] not in before)
    made = {one for ids in by_name.values() for one in ids if one in runs or one in users.acknowledged}
    fewest = {one: int(listed[one]["status"] != "cancelled") for one in made if one in listed}
    result.flaws += [
        f"{one} has {runs[one]} DAG runs" for one, least in fewest.items() if not least <= runs[one] <= 1
    ]
    result.flaws += [f"DAG run {one} has no batch" for one in runs if one not in listed]
    result.batches = len(runs)
    result.flaws += _files(world, users, result)
    result.flaws += _strays(world, result)


def _story(
    world: BatchApiWorld, users: Users, story: Story, by_name: dict[str, list[str]], result: Result
) -> Iterable[str]:
    if story.broken:
        yield story.broken
    made = by_name.get(story.name, [])
    if len(made) > 1 or len(set(story.ids)) > 1:
        yield f"its create made {sorted({*made, *story.ids})}"
    if not story.ids:
        return
    (batch_id,) = set(story.ids) if len(set(story.ids)) == 1 else (story.ids[0],)
    if batch_id not in made:
        yield f"{batch_id} is not listed"
    looks = [*story.looks, *(one for one in users.looks if one.batch["id"] == batch_id)]
    result.looks += len(looks)
    ends = {server: _get(world, server, f"batches/{batch_id}") for server in SERVERS}
    if len(set(ends.values())) > 1:
        yield f"its end differs: {ends}"
    last = httpx.Response(200, content=ends[SERVERS[0]]).json()
    looks.append(Seen(time.monotonic(), time.monotonic(), "the end", last))
    yield from steps_back(looks)
    if last["status"] not in OVER:
        yield f"it is {last['status']}"
        return
    was_cancelled = story.cancel == "accepted"
    flaws, answers = wrong_lines(
        {} if not any(story.files.values()) and was_cancelled else story.upload.rows,
        story.files.get("output", ""),
        story.files.get("error", ""),
        is_cancelled=was_cancelled,
    )
    yield from flaws[:5]
    yield from wrong_end(last, len(story.upload.rows), answers, was_cancelled=was_cancelled)
    result.completed += last["status"] == "completed"
    result.cancelled += last["status"] == "cancelled"
    result.lines += len(story.upload.rows)
    result.answers += answers
    result.slowest = max(result.slowest, round(story.seconds, 1))


def _listed(world: BatchApiWorld) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    after = ""
    while True:
        page = httpx.Response(200, content=_get(world, SERVERS[0], f"batches?limit=100{after}")).json()
        found |= {batch["id"]: batch for batch in page["data"]}
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def _files(world: BatchApiWorld, users: Users, result: Result) -> Iterable[str]:
    """Read each listed file: no one is without its content, and each upload is as it was sent."""
    listed = httpx.Response(200, content=_get(world, SERVERS[1], "files?limit=10000")).json()["data"]
    sent = {upload.file_id: upload for upload in users.uploads if upload.file_id}
    result.files = len(listed)
    yield from (f"{file_id} is not listed" for file_id in {*sent} - {one["id"] for one in listed})
    for one in listed:
        content = _get(world, SERVERS[0], f"files/{one['id']}/content")
        if len(content) != one["bytes"]:
            yield f"{one['id']} has {len(content)} bytes of {one['bytes']}"
        upload = sent.get(one["id"])
        if upload is not None and hashlib.sha256(content).hexdigest() != upload.sha256:
            yield f"{one['id']} is not what was uploaded"


_KNOWN = re.compile(
    r"files/(?P<file>file-\w+)/(record\.json|content\.jsonl)"
    r"|batches/(?P<batch>batch_\w+)/(record|triggered|started|outcome|progress|ended)\.json"
    r"|batches/(?P<of>batch_\w+)/dataset/.+"
    r"|users/\w+/(files|batches)/[\w.-]+"
    r"|creates/\w+/\d+\.json"
)
"""What lies below the root."""


def _strays(world: BatchApiWorld, result: Result) -> Iterable[str]:
    """Sweep as after the time for which strays are kept; what is left belongs to something."""
    deleted = sweep(world.store, time.time() + STRAYS_KEPT + 60)
    result.strays = deleted["strays"]
    yield from (
        f"the sweep has deleted {count} {kind}"
        for kind, count in deleted.items()
        if count and kind != "strays"
    )
    paths = [str(path.relative_to(world.root)) for path in world.root.rglob("*") if path.is_file()]
    recorded = {path.rpartition("/")[0] for path in paths if path.endswith(f"/{layout.SIGNED_RECORD}")}
    for path in paths:
        found = _KNOWN.fullmatch(path)
        if found is None:
            yield f"{path} is a stray"
            continue
        owner = found["file"] and f"files/{found['file']}"
        batch = found["batch"] or found["of"]
        owner = owner or (batch and f"batches/{batch}")
        if owner and owner not in recorded:
            yield f"{path} has no record"


def _get(world: BatchApiWorld, server: str, path: str) -> bytes:
    headers = {"Authorization": f"Bearer {world.token}"}
    answer = httpx.get(f"{world.url(server)}/{path}", headers=headers, timeout=60)
    answer.raise_for_status()
    return answer.content
