# SPDX-License-Identifier: Apache-2.0
"""Which batch a repeated create means: a log of the creates of one body, or of one idempotency key.

Entries are numbered without gaps, and each number is created once, so that all servers see one order. Clocks
of servers may differ by less than the half second after which official clients repeat a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from airflow_provider_raybatch.batch_api.store.ids import new_batch_id
from airflow_provider_raybatch.batch_api.store.records import opened, signed
from airflow_provider_raybatch.batch_api.store.store import BatchStore, new_nonce
from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.base import ContractModel
from airflow_provider_raybatch.storage.errors import TakenError

REPEAT_SECONDS = 15 * 60.0
"""For so long a repeated call means the batch of the call that it repeats."""


class CreateEntry(ContractModel):
    """A create, as its log keeps it. Signed.

    :param batch_id: the batch that it made, or was about to make.
    :param at: epoch seconds.
    :param repeats: how often the client had repeated the call; 0 for the first.
    :param body: digest of what was asked for.
    """

    batch_id: str
    at: float
    repeats: int
    body: str
    nonce: str


@dataclass(frozen=True)
class CreateCall:
    """A call that asks for a batch.

    :param arrived: when it did, in epoch seconds.
    :param repeats: how often the client has repeated it, as its ``x-stainless-retry-count`` says.
    :param body: digest of what it asks for.
    """

    arrived: float
    repeats: int
    body: str

    def entry(self, now: float) -> CreateEntry:
        """The entry of a new batch."""
        return CreateEntry(
            batch_id=new_batch_id(), at=now, repeats=self.repeats, body=self.body, nonce=new_nonce()
        )


Chooser = Callable[[Iterable[CreateEntry]], CreateEntry | None]
"""Of the entries of a log, newest first, the one whose batch a call means; ``None`` for a new batch."""


@dataclass(frozen=True)
class CreateLog:
    """The log of creates that may mean one batch.

    :param digest: of whose creates they are, and of what makes them the same.

    All methods raise :class:`StorageError` where the storage does not answer.
    """

    store: BatchStore
    digest: str

    def find(self, chosen: Chooser) -> CreateEntry | None:
        """The entry whose batch a call means, if there is one."""
        return chosen(self._newest_first(self._last()))

    def claim(self, chosen: Chooser, new: CreateEntry) -> CreateEntry:
        """The entry whose batch a call means; where there is none, `new` is appended."""
        while True:
            last = self._last()
            if (found := chosen(self._newest_first(last))) is not None:
                return found
            number = last + 1
            try:
                self.store.root.create(
                    layout.create_entry(self.digest, number),
                    signed(new, self._kind(number), self.store.secret),
                )
                return new
            except TakenError:  # by a concurrent call, which may be this one's repeat
                continue

    def _last(self) -> int:
        """The number of the newest entry; -1 where there is none."""
        names = [
            entry.path.rpartition("/")[2].partition(".")[0]
            for entry in self.store.root.list(layout.create_log(self.digest), depth=1)
        ]
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _newest_first(self, last: int) -> Iterator[CreateEntry]:
        for number in range(last, -1, -1):
            path = layout.create_entry(self.digest, number)
            if number < last and self.store.root.head(path) is None:
                return  # old ones are deleted
            yield opened(self.store.root.read(path), CreateEntry, self._kind(number), self.store.secret)

    def _kind(self, number: int) -> str:
        return f"create {self.digest}/{number}"


def by_body(call: CreateCall, now: float) -> Chooser:
    """Of calls without a key: a repeat means the batch of the call before it.

    A first call may be delayed, so that its repeat overtakes it; then it means the batch of its repeat.
    """

    def chosen(newest_first: Iterable[CreateEntry]) -> CreateEntry | None:
        for entry in newest_first:
            if call.repeats:
                return entry if now - entry.at < REPEAT_SECONDS else None
            if entry.at < call.arrived:
                return None
            if entry.repeats:
                return entry
        return None

    return chosen


def by_key(has_record: Callable[[str], bool], now: float) -> Chooser:
    """Of calls with a key: all mean one batch, for as long as it is kept.

    :param has_record: whether a batch of this id is recorded.
    """

    def chosen(newest_first: Iterable[CreateEntry]) -> CreateEntry | None:
        for entry in newest_first:
            is_kept = now - entry.at < REPEAT_SECONDS or has_record(entry.batch_id)
            return entry if is_kept else None
        return None

    return chosen
