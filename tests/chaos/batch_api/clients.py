# SPDX-License-Identifier: Apache-2.0
"""Users of the Batch API, each a thread with the official client, which go on through all kills."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import openai

from tests.support.openai_lines import CHAT, chat, line

from .checking import OVER, Seen
from .world import MODELS, SERVERS, BatchApiWorld

_PAUSE = 0.4
_LONGEST = 600.0
"""Seconds that a batch may take from its creation to its end."""
_AWAY = 120.0
"""Seconds for which a call may fail, because servers are away."""
_SLOW_PIECES = 12
"""Of an upload or a download that takes seconds."""


@dataclass
class Upload:
    """A file of a user.

    :param file_id: ``""`` where no call has succeeded.
    """

    rows: dict[str, str]
    content: bytes
    file_id: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass
class Story:
    """A batch from its upload to its end, as its user saw it.

    :param ids: of the batches that creates have returned, one for each call.
    :param cancel: ``""``, ``accepted`` or ``refused``.
    :param files: the content of ``output`` and ``error``, as it was read.
    :param broken: why it could not be followed to its end.
    """

    name: str
    upload: Upload
    ids: list[str] = field(default_factory=list)
    looks: list[Seen] = field(default_factory=list)
    cancel: str = ""
    files: dict[str, str] = field(default_factory=dict)
    broken: str = ""
    seconds: float = 0.0


class Users:
    """The users of a round.

    :param seed: of their choices.
    :ivar counts: of calls, by what became of them.
    """

    def __init__(self, world: BatchApiWorld, seed: int) -> None:
        self._world = world
        self._seed = seed
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._servers = itertools.cycle(SERVERS)
        self._threads: list[threading.Thread] = []
        self.stories: list[Story] = []
        self.uploads: list[Upload] = []
        self._uploaded: list[Upload] = []
        self.looks: list[Seen] = []
        self.acknowledged: dict[str, float] = {}
        self.counts: Counter[str] = Counter()
        self.flaws: list[str] = []
        hooks = {"request": [self._count_repeat]}
        self._client = openai.OpenAI(
            base_url=f"{world.balancer.url}/raybatch/v1",
            api_key=world.token,
            max_retries=30,  # of half a second to eight: both servers may take minutes to come back
            timeout=60,
            default_headers={"Connection": "close"},  # so that each call may go to another server
            http_client=openai.DefaultHttpx2Client(event_hooks=hooks),
        )
        self._http = httpx.Client(headers={"Authorization": f"Bearer {world.token}"}, timeout=60)

    def start(self, users: int) -> None:
        """Start as many users that make batch after batch, one that uploads slowly, and one that lists."""
        doings = [*[self._make_batches] * users, self._upload_slowly, self._list]
        for number, doing in enumerate(doings):
            thread = threading.Thread(target=self._guarded, args=(doing, number), name=doing.__name__)
            thread.start()
            self._threads.append(thread)

    def finish(self) -> None:
        """Make no further batches, and return when all have ended."""
        self._over.set()
        for thread in self._threads[:-1]:
            thread.join()
        self._ended.set()
        self._threads[-1].join()

    def close(self) -> None:
        self._over.set()
        self._ended.set()
        self._client.close()
        self._http.close()

    def _guarded(self, doing: Any, number: int) -> None:
        try:
            doing(random.Random(self._seed * 1000 + number))
        except Exception as error:
            self.flaws.append(f"{doing.__name__}: {type(error).__name__}: {error}")

    def _count_repeat(self, request: Any) -> None:
        if request.headers.get("x-stainless-retry-count", "0") != "0":
            path = request.url.path.rpartition("/v1/")[2].split("/")
            self.counts[f"repeated {request.method} {path[0]}"] += 1

    def _make_batches(self, chance: random.Random) -> None:
        time.sleep(chance.uniform(0, 4))
        for number in itertools.count(chance.randrange(2)):
            if self._over.is_set():
                return
            rows = 1 if chance.random() < 0.1 else int(3 ** chance.uniform(4, 6.5))  # 81 to 1262
            upload = self._rows(rows, MODELS[number % 2])
            if chance.random() < 0.15 and self._uploaded:
                upload = self._uploaded.pop()
            self._play(upload, chance)

    def _upload_slowly(self, chance: random.Random) -> None:
        for number in itertools.count():
            if self._over.is_set():
                return
            upload = self._rows(chance.randint(1000, 3000), MODELS[number % 2])
            self._retried("upload", lambda upload=upload: self._put(upload))
            self._uploaded.append(upload)
            self._over.wait(2)

    def _rows(self, count: int, model: str) -> Upload:
        name = f"{self._seed}-{next(self._numbers)}"
        rows = {f"{name}-{number}": f"batch {name} asks {number}" for number in range(count)}
        lines = [line(one, chat(text, model=model), CHAT) for one, text in rows.items()]
        upload = Upload(rows, "".join(json.dumps(one) + "\n" for one in lines).encode())
        with self._lock:
            self.uploads.append(upload)
        return upload

    def _put(self, upload: Upload) -> None:
        """Upload in pieces over some seconds, as over a slow line."""
        size = len(upload.content) // _SLOW_PIECES + 1
        head = (
            b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
            b'Content-Disposition: form-data; name="file"; filename="slow.jsonl"\r\n\r\n'
        )

        def pieces() -> Iterator[bytes]:
            yield head
            for start in range(0, len(upload.content), size):
                time.sleep(0.2)
                yield upload.content[start : start + size]
            yield b"\r\n--x--\r\n"

        with self._world.moments.during("upload"):
            answer = self._http.post(
                f"{self._world.balancer.url}/raybatch/v1/files",
                content=pieces(),
                headers={"Content-Type": "multipart/form-data; boundary=x", "Connection": "close"},
            )
        if answer.status_code >= 500:
            raise httpx.TransportError(f"{answer.status_code}")
        answer.raise_for_status()
        upload.file_id = answer.json()["id"]

    def _play(self, upload: Upload, chance: random.Random) -> None:
        story = Story(f"{self._seed}-{len(self.stories)}", upload)
        with self._lock:
            self.stories.append(story)
        try:
            if not upload.file_id:
                made = self._client.files.create(file=("a.jsonl", upload.content), purpose="batch")
                upload.file_id = made.id
            self._create(story, chance)
            self._follow(story, chance.uniform(0, 12) if chance.random() < 0.3 else None)
            self._read(story)
        except Exception as error:
            story.broken = f"{type(error).__name__}: {error}"

    def _create(self, story: Story, chance: random.Random) -> None:
        keyed = chance.random() < 0.3
        headers = {"Idempotency-Key": story.name} if keyed else {}
        for _ in range(2 if keyed else 1):
            with self._during("create"):
                made = self._client.batches.create(
                    input_file_id=story.upload.file_id,
                    endpoint=CHAT,
                    completion_window="24h",
                    metadata={"story": story.name},
                    extra_headers=headers,
                )
            story.ids.append(made.id)
            self.acknowledged.setdefault(made.id, time.monotonic())

    def _follow(self, story: Story, cancel_after: float | None) -> None:
        begun = time.monotonic()
        while time.monotonic() < begun + _LONGEST:
            is_time = cancel_after is not None and time.monotonic() > begun + cancel_after
            if not story.cancel and (is_time or self._world.moments.is_awaited("cancel")):
                self._cancel(story)
            with self._world.moments.during("poll"):
                batch = self._look(story, next(self._servers))
            if batch is not None and batch["status"] in OVER:
                story.seconds = time.monotonic() - begun
                return
            time.sleep(_PAUSE)
        last = story.looks[-1].batch["status"] if story.looks else "never seen"
        raise TimeoutError(f"{story.ids[0]} has not ended after {_LONGEST:.0f} s; it is {last}")

    def _cancel(self, story: Story) -> None:
        begun = time.monotonic()
        try:
            with self._during("cancel"):
                batch = self._client.batches.cancel(story.ids[0])
        except openai.BadRequestError as error:
            if error.code != "batch_not_cancellable":
                raise
            story.cancel = "refused"
            return
        story.cancel = "accepted"
        story.looks.append(Seen(begun, time.monotonic(), "balancer", batch.to_dict(mode="json")))

    def _look(self, story: Story, server: str) -> dict[str, Any] | None:
        """Ask one server, without another attempt."""
        begun = time.monotonic()
        self.counts["polls"] += 1
        try:
            answer = self._http.get(f"{self._world.url(server)}/batches/{story.ids[0]}")
        except httpx.TransportError:
            self.counts["polls without an answer"] += 1
            return None
        if answer.status_code >= 500:
            self.counts["polls with a 5xx"] += 1
            return None
        answer.raise_for_status()
        batch: dict[str, Any] = answer.json()
        story.looks.append(Seen(begun, time.monotonic(), server, batch))
        return batch

    def _read(self, story: Story) -> None:
        last = story.looks[-1].batch
        for kind in ("output", "error"):
            file_id = last[f"{kind}_file_id"]
            story.files[kind] = self._content(file_id) if file_id else ""

    def _content(self, file_id: str) -> str:
        found: str = self._retried("download", lambda: self._get(file_id))
        return found

    def _get(self, file_id: str) -> str:
        """Read a file in pieces over some time, as a slow reader does."""
        with self._during("download"):
            url = f"{self._world.balancer.url}/raybatch/v1/files/{file_id}/content"
            with self._http.stream("GET", url, headers={"Connection": "close"}) as answer:
                if answer.status_code >= 500:
                    raise httpx.TransportError(f"{answer.status_code}")
                answer.raise_for_status()
                found = b""
                for piece in answer.iter_bytes(16384):
                    found += piece
                    time.sleep(0.03)
        return found.decode()

    def _list(self, chance: random.Random) -> None:
        while not self._ended.wait(3):
            begun = time.monotonic()
            with self._lock:
                known = {one for one, at in self.acknowledged.items() if at < begun}
            try:
                found = [one.to_dict(mode="json") for one in self._client.batches.list(limit=100)]
            except (openai.APIConnectionError, openai.InternalServerError):
                self.counts["listings without an answer"] += 1
                continue
            ended = time.monotonic()
            self.counts["listings"] += 1
            self.looks += [Seen(begun, ended, "a listing", one) for one in found]
            self.flaws += [f"{one} is missing in a listing" for one in known - {one["id"] for one in found}]

    def _retried(self, what: str, call: Any) -> Any:
        """Call until servers answer."""
        deadline = time.monotonic() + _AWAY
        while True:
            try:
                return call()
            except httpx.TransportError:
                self.counts[f"{what}s cut off"] += 1
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)

    @contextmanager
    def _during(self, moment: str) -> Iterator[None]:
        self.counts[f"{moment}s"] += 1
        with self._world.moments.during(moment):
            yield
