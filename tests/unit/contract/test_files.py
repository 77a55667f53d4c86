# SPDX-License-Identifier: Apache-2.0
"""A document in storage that is broken, foreign or of another version is named by its path."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.layout import journal_entry
from airflow_provider_raybatch.dataset import Rows, open_dataset
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import LocalFolder, folder
from tests.support.publishing import failure, part, publish
from tests.support.specs import submitted

BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut off": lambda content: content[: len(content) // 2],
    "binary": lambda content: b"\xff\x00" + content,
    "another kind": lambda _: b'{"kind": "else"}',
    "a list": lambda _: b"[1, 2]",
    "of a newer version": lambda content: json.dumps({**json.loads(content), "added_later": 1}).encode(),
}


@pytest.fixture
def destination(tmp_path: Path) -> LocalFolder:
    place = folder(str(tmp_path / "out"))
    assert isinstance(place, LocalFolder)
    publish(place, [part(place, [{"text": "a"}])], 1)
    return place


def journal(place: LocalFolder) -> Journal:
    return Journal(place, submitted(9).submission, take_over=True)


def own_journal(place: LocalFolder) -> Journal:
    """Return the journal for the retry of the submission that has published."""
    whole = submitted(0, destination=place.uri)
    return Journal(place, whole.submission, take_over=False, fingerprint=whole.fingerprint)


def as_source(place: LocalFolder) -> object:
    return resolve(InputArguments(source=[place.uri]), None)


JOURNAL_READERS: dict[str, Callable[[LocalFolder], object]] = {
    "last entry": lambda place: journal(place).last(),
    "history": lambda place: journal(place).history(),
    "owner": lambda place: journal(place).check_owner(),
    "claim": lambda place: journal(place).claim(),
    "source": as_source,
}
MANIFEST_READERS: dict[str, Callable[[LocalFolder], object]] = {
    "committed": lambda place: own_journal(place).committed(),
    "claim": lambda place: own_journal(place).claim(),
    "source": as_source,
    "dataset": lambda place: open_dataset(f"{place.uri}/{manifest_of(place)}"),
    "newest dataset": lambda place: open_dataset(place.uri),
    "rows": lambda place: Rows(f"{place.uri}/{manifest_of(place)}"),
}


def manifest_of(place: LocalFolder) -> str:
    last = json.loads(place.read(journal_entry(2)))
    return str(last["published"]["manifest"])


def refusal(read: Callable[[LocalFolder], object], place: LocalFolder) -> str:
    with pytest.raises(RaybatchError) as caught:
        read(place)
    assert caught.value.failure_class is FailureClass.USER_ERROR
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("reader", JOURNAL_READERS)
def test_a_broken_entry_of_a_journal_is_named(destination: LocalFolder, reader: str, broken: str) -> None:
    path = journal_entry(2)
    destination.write(path, BROKEN[broken](destination.read(path)))
    said = refusal(JOURNAL_READERS[reader], destination)
    field = "source" if reader == "source" else "destination"
    assert said.startswith(f"{field}: {destination.uri}/{path}: it is not an entry of a journal that this")
    assert said.endswith("restore it, remove it if it came from elsewhere, or choose another destination.")


@pytest.mark.parametrize("reader", JOURNAL_READERS)
def test_a_copied_entry_of_a_journal_is_named(destination: LocalFolder, reader: str) -> None:
    destination.write(journal_entry(3), destination.read(journal_entry(2)))
    said = refusal(JOURNAL_READERS[reader], destination)
    assert f"{destination.uri}/{journal_entry(3)}: it holds entry 2, so it is a copy" in said


def test_a_time_that_is_none_is_named(destination: LocalFolder) -> None:
    path = journal_entry(1)
    destination.write(path, json.dumps({**json.loads(destination.read(path)), "at": "noon"}).encode())
    said = refusal(lambda place: own_journal(place).run_began(), destination)
    assert f"{destination.uri}/{path}" in said
    assert "at: it must be a time in ISO 8601, but it is 'noon'" in said


@pytest.mark.parametrize("broken", BROKEN)
@pytest.mark.parametrize("reader", MANIFEST_READERS)
def test_a_broken_manifest_is_named(destination: LocalFolder, reader: str, broken: str) -> None:
    path = "manifest.json" if reader == "newest dataset" else manifest_of(destination)
    destination.write(path, BROKEN[broken](destination.read(manifest_of(destination))))
    said = refusal(MANIFEST_READERS[reader], destination)
    assert f"{destination.uri}/{path}" in said
    assert "is not a manifest" in said


@pytest.mark.parametrize("line", [b"{", b"\xff\xfe", b"[]", b"3", b'{"step": "engine"}', b'{"reason": 1}'])
def test_a_broken_dead_letter_is_named(destination: LocalFolder, line: bytes) -> None:
    place = LocalFolder(f"{destination.root}2")
    publish(place, [part(place, [{"text": "a"}], [failure()])], 1)
    (letters,) = place.list("dead_letter")
    place.write(letters.path, place.read(letters.path) + line + b"\n")
    said = refusal(lambda _: open_dataset(place.uri).dead_letters(), place)
    assert said.startswith(
        f"dead_letter_uri: {place.uri}/{letters.path} has a line that is not a dead letter"
    )
