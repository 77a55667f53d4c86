# SPDX-License-Identifier: Apache-2.0
"""Who may publish at a destination: an append-only journal (``docs/internals/commit.md``).

Entry n+1 is created, never overwritten, so exactly one writer gets it. A submission claims the destination
with an entry; its commit must be the very next one.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from typing import Literal

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.contract.layout import JOURNAL, PROBES, journal_entry
from airflow_provider_raybatch.contract.manifest import (
    BatchManifest,
    JournalEntry,
    Published,
    parse_entry,
    parse_manifest,
)
from airflow_provider_raybatch.contract.submission import Submission, run_number
from airflow_provider_raybatch.storage.errors import TakenError, error_prefix
from airflow_provider_raybatch.storage.file import in_order
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.operations import check_conditional_writes

_RACES = 20


def is_overtaken(token: str, claimed: Sequence[str]) -> bool:
    """Whether a newer run of the same task has claimed before the run `token` could.

    Runs are ordered by their numbers. If a second run has the same number, the DAG run was deleted and made
    again, and Airflow counts its tries from 1: a new order begins, and all runs before it are older.

    :param claimed: tokens of the task's entries in the journal, oldest first.
    """
    runs: dict[int, str] = {}  # of one DAG run, by number
    for one in dict.fromkeys([*claimed, token]):
        number = run_number(one)
        if number in runs:
            runs.clear()
        runs[number] = one
    return runs.get(run_number(token)) != token or run_number(token) < max(runs)


class SupersededError(RaybatchError):
    """A newer submission or a newer run of the task has claimed the destination."""

    failure_class = FailureClass.SUPERSEDED


class Journal:
    """The journal of one destination, for one submission.

    :param fingerprint: of the submission's spec; a dataset of the run with other arguments does not count.
    :ivar may_report: whether the destination is this task's and can be used, as far as was checked.
    """

    def __init__(
        self, folder: Folder, submission: Submission, take_over: bool, fingerprint: str = ""
    ) -> None:
        self.folder = folder
        self.submission = submission
        self._take_over = take_over
        self._fingerprint = fingerprint
        self.may_report = False
        self._mine: JournalEntry | None = None
        self._newest: tuple[str, bytes] | None = None

    def last(self) -> JournalEntry | None:
        """The newest entry."""
        found = self._entries(slice(-1, None))
        return found[0] if found else None

    def history(self) -> list[JournalEntry]:
        """All entries, oldest first."""
        return self._entries(slice(None))

    def _entries(self, wanted: slice) -> list[JournalEntry]:
        with error_prefix("destination"):
            files = self.folder.list(JOURNAL)
            paths = sorted([one.path for one in files if one.path.endswith(".json")])[wanted]
            contents = list(in_order(self.folder.read, paths))
            if paths:
                self._newest = paths[-1], contents[-1]
            return [parse_entry(one, self._file(path)) for path, one in zip(paths, contents, strict=True)]

    def _file(self, path: str) -> str:
        return f"destination: {self.folder.uri}/{path}"

    def committed(self) -> BatchManifest | None:
        """The published dataset, if this run made it with the same arguments."""
        return self._own(self.last())

    def _own(self, last: JournalEntry | None) -> BatchManifest | None:
        published = last.published if last is not None else None
        if published is None or published.run_token != self.submission.run_token:
            return None
        if published.fingerprint != self._fingerprint:
            return None
        with error_prefix("destination"):
            self.folder.sync(JOURNAL)  # it is about to be reported; its writer may have died before this
            content = self.folder.read(published.manifest)
        return parse_manifest(content, self._file(published.manifest))

    def replaced(self) -> BatchManifest | None:
        """The dataset that readers saw when this submission claimed the destination."""
        published = None if self._mine is None else self._mine.published
        if published is None:
            return None
        content = self.folder.read(published.manifest)
        return parse_manifest(content, self._file(published.manifest))

    def check_conditional_writes(self) -> None:
        """Check that the destination's store keeps claims apart; call it after :meth:`check_owner`."""
        self.may_report = False  # into a store that is refused
        with error_prefix("destination"):
            check_conditional_writes(self.folder, f"{PROBES}/{uuid.uuid4().hex}", self._newest)
        self.may_report = True

    def check_owner(self) -> None:
        """Check that this run may claim the destination.

        :raises PreflightError: it belongs to another task and may not be taken over.
        :raises SupersededError: a newer run of this task has claimed it.
        """
        self._check_owner(self.history())
        self.may_report = True

    def _check_owner(self, history: Sequence[JournalEntry]) -> None:
        mine = [entry for entry in history if entry.owner == self.submission.task]
        if is_overtaken(self.submission.run_token, [entry.run_token for entry in mine]):
            raise SupersededError(
                f"destination: {self.folder.uri} was claimed by {mine[-1].submission_id}, a job of a newer "
                "run of this task; clear the task to publish there again."
            )
        if history and history[-1].owner != self.submission.task and not self._take_over:
            raise PreflightError(
                f"destination: {self.folder.uri} belongs to {history[-1].owner}; choose a folder for each "
                "run (put {{ dag_run.run_after | ts_nodash }} into it), or set "
                "output_options={'on_destination_owned': 'take_over'}."
            )

    def claim(self) -> BatchManifest | None:
        """Take the destination for this submission.

        :returns: the dataset, if another submission of this run has published it since the call of
            :meth:`committed`; then nothing was claimed.
        :raises PreflightError: it belongs to another task and may not be taken over.
        :raises SupersededError: a newer run of this task has claimed it.
        """
        for _ in range(_RACES):
            history = self.history()
            last = history[-1] if history else None
            if (done := self._own(last)) is not None:
                return done
            self._check_owner(history)
            try:
                self._mine = self._append("claim", last, last.published if last else None)
            except TakenError:
                continue
            return None
        raise PreflightError(
            f"destination: {self.folder.uri} is being claimed by many jobs at once; give each its own folder."
        )

    def began_before(self) -> bool:
        """Whether an earlier submission of this run has claimed the destination."""
        last = self.last()
        return last is not None and last.run_token == self.submission.run_token

    def run_began(self) -> float | None:
        """When this run first claimed the destination, in epoch seconds; ``None`` if it has not."""
        if not self.began_before():
            return None
        mine = (entry.at for entry in self.history() if entry.run_token == self.submission.run_token)
        return min(datetime.datetime.fromisoformat(at).timestamp() for at in mine)

    def is_cleared(self) -> bool:
        """Whether the task was cleared: another run of it has an entry, not only the last one."""
        mine = self.submission
        return any(entry.owner == mine.task and entry.run_token != mine.run_token for entry in self.history())

    def check(self) -> None:
        """:raises SupersededError: another submission has claimed the destination since."""
        last = self.last()
        if self._mine is None or last is None or last.number != self._mine.number:
            raise self._superseded(last)

    def commit(self, manifest: str) -> None:
        """Publish the dataset of `manifest` (relative to the destination): readers see it from now on.

        :raises SupersededError: another submission has claimed the destination since; nothing was published.
        """
        if self._mine is None:
            raise ValueError("commit: the destination was never claimed")
        published = Published(
            manifest=manifest, run_token=self.submission.run_token, fingerprint=self._fingerprint
        )
        try:
            self._mine = self._append("commit", self._mine, published)
        except TakenError:
            raise self._superseded(self.last()) from None

    def _append(
        self, kind: Literal["claim", "commit"], last: JournalEntry | None, published: Published | None
    ) -> JournalEntry:
        entry = JournalEntry(
            number=last.number + 1 if last else 1,
            kind=kind,
            owner=self.submission.task,
            run_token=self.submission.run_token,
            submission_id=self.submission.submission_id,
            at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            nonce=uuid.uuid4().hex,
            published=published,
        )
        with error_prefix("destination"):
            self.folder.create(journal_entry(entry.number), entry.model_dump_json(indent=1).encode())
        return entry

    def _superseded(self, last: JournalEntry | None) -> SupersededError:
        by = f"{last.submission_id} of {last.owner}" if last else "an unknown job"
        return SupersededError(
            f"destination: {self.folder.uri} was claimed by {by} while this job ran; its rows are kept, "
            "but not published."
        )
