# SPDX-License-Identifier: Apache-2.0
"""Which submission may publish, on disk and in S3, whichever process dies or comes back late."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.events import Committed, Event
from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError
from airflow_provider_raybatch.contract.layout import JOURNAL
from airflow_provider_raybatch.contract.submission import new_run_token
from airflow_provider_raybatch.job.output.journal import Journal, SupersededError, is_overtaken
from airflow_provider_raybatch.job.phases.driver import run
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import Fault, FaultyS3, first
from tests.support.publishing import part, publish
from tests.support.s3_server import S3Server
from tests.support.specs import TASK, submitted

OTHER = {**TASK, "run_id": "r2"}


def journal(folder: Folder, number: int = 0, *, take_over: bool = False, **fields: Any) -> Journal:
    whole = submitted(number, **{"destination": folder.uri, **fields})
    return Journal(folder, whole.submission, take_over, whole.fingerprint)


def entries(folder: Folder) -> list[str]:
    return [entry.path for entry in folder.list(JOURNAL)]


def published(one: Journal) -> str:
    """Return the path of the manifest that the last entry names."""
    last = one.last()
    assert last is not None
    assert last.published is not None
    return last.published.manifest


def is_superseded(folder: Folder, late: Callable[[], Any], why: str) -> None:
    """Check that `late` fails because submission 1 has claimed, and that no retry follows."""
    with pytest.raises(SupersededError) as caught:
        late()
    assert str(caught.value) == f"destination: {folder.uri} was claimed by raybatch-x-1{why}"
    assert not caught.value.failure_class.retryable


def test_a_claim_then_its_commit(folder: Folder) -> None:
    mine = journal(folder)
    assert mine.last() is None
    assert mine.committed() is None
    assert not mine.began_before()
    mine.claim()
    assert journal(folder, 1).began_before()
    assert not journal(folder, 1, token="cleared").began_before()
    assert journal(folder, 1, token="cleared").is_cleared()
    assert not journal(folder, 1).is_cleared()
    mine.check()
    mine.commit("manifests/x.json")
    last = mine.last()
    assert last is not None
    assert (last.number, last.kind, last.submission_id) == (2, "commit", "raybatch-x-0")
    assert published(mine) == "manifests/x.json"
    assert entries(folder) == [f"{JOURNAL}/00000001.json", f"{JOURNAL}/00000002.json"]


def test_a_cleared_run_stays_one_after_it_has_claimed(folder: Folder) -> None:
    publish(folder, [part(folder, [{"text": "a"}])], 1)
    cleared = journal(folder, 1, token="cleared")
    cleared.claim()
    assert cleared.is_cleared()
    assert journal(folder, 2, token="cleared").is_cleared()  # its retry, which must not reuse old responses


def test_runs_of_another_task_clear_nothing(folder: Folder) -> None:
    journal(folder, task=OTHER, token="other").claim()
    mine = journal(folder, take_over=True)
    mine.claim()
    assert not mine.is_cleared()


def test_second_submission_of_a_run_finds_its_dataset(folder: Folder) -> None:
    manifest = publish(folder, [part(folder, [{"text": "a"}])], 1)
    assert journal(folder, 1).committed() == manifest
    assert journal(folder, 1, token="cleared").committed() is None


class TestOtherArguments:
    """A run whose arguments change between two attempts, and whose first attempt has committed."""

    def test_dataset_is_not_the_runs_any_more(self, folder: Folder) -> None:
        publish(folder, [part(folder, [{"text": "a"}])], 1)
        changed = journal(folder, 1, prompt="Whisper {row.text}")
        assert changed.committed() is None
        assert changed.claim() is None
        changed.commit("manifests/changed.json")

    def test_a_job_begins_anew(self, tmp_path: Path) -> None:
        place = LocalFolder(str(tmp_path / "out"))
        fields = {"source": [str(tmp_path / "gone.jsonl")], "destination": place.uri}
        manifest = publish(place, [part(place, [{"text": "a"}])], 1, submitted(**fields))
        same, changed = submitted(1, **fields), submitted(1, **fields, sampling={"temperature": 1})
        emitted: list[Event] = []
        assert run(same, same.submission, emitted.append) == manifest.summary()
        assert emitted[-1] == Committed(summary=manifest.summary(), reused=True)
        with pytest.raises(PreflightError, match="source: nothing is at"):
            run(changed, changed.submission, print)


def test_commit_during_preflight_is_not_done_again(folder: Folder) -> None:
    late = journal(folder, 1)
    assert late.committed() is None
    manifest = publish(folder, [part(folder, [{"text": "a"}])], 1)
    before = entries(folder)
    assert late.claim() == manifest
    assert entries(folder) == before
    assert journal(folder, 1, token="cleared").claim() is None


def test_the_dataset_stays_published_while_a_new_run_claims(folder: Folder) -> None:
    manifest = publish(folder, [part(folder, [{"text": "a"}])], 1)
    journal(folder, 1, token="cleared").claim()
    assert journal(folder, 2).committed() == manifest


class TestOwner:
    def test_on_destination_owned_refuses_another_task_first(self, folder: Folder) -> None:
        journal(folder).claim()
        other = journal(folder, task=OTHER)
        for refused in (other.check_owner, other.claim):
            with pytest.raises(PreflightError) as caught:
                refused()
            assert str(caught.value) == (
                f"destination: {folder.uri} belongs to nightly.label of run r1; choose a folder for each run "
                "(put {{ dag_run.run_after | ts_nodash }} into it), or set "
                "output_options={'on_destination_owned': 'take_over'}."
            )
            assert caught.value.failure_class is FailureClass.USER_ERROR
        assert len(entries(folder)) == 1

    def test_task_may_take_over_if_the_spec_allows(self, folder: Folder) -> None:
        first = journal(folder)
        first.claim()
        second = journal(folder, task=OTHER, take_over=True)
        second.check_owner()
        second.claim()
        second.commit("manifests/second.json")
        with pytest.raises(SupersededError):
            first.commit("manifests/first.json")


class TestOlderRun:
    """A cleared run whose driver could not be stopped claims after its successor."""

    @pytest.fixture(params=["claimed", "committed"])
    def newer(self, request: pytest.FixtureRequest, folder: Folder) -> Journal:
        newer = journal(folder, 1, token=new_run_token(2))
        newer.claim()
        if request.param == "committed":
            newer.commit("manifests/newer.json")
        return newer

    def test_stale_submission_claims_no_more(self, folder: Folder, newer: Journal) -> None:
        before = entries(folder)
        older = journal(folder, 0, token=new_run_token(1))
        why = ", a job of a newer run of this task; clear the task to publish there again."
        for late in (older.check_owner, older.claim):
            is_superseded(folder, late, why)
        assert entries(folder) == before

    @pytest.mark.parametrize("third", [False, True], ids=["", "after a third task has taken over"])
    def test_nor_does_it_where_it_may_take_over(self, folder: Folder, newer: Journal, third: bool) -> None:
        if third:
            journal(folder, 0, task=OTHER, take_over=True).claim()
        with pytest.raises(SupersededError):
            journal(folder, 0, token=new_run_token(1), take_over=True).claim()

    def test_another_task_has_an_order_of_its_own(self, folder: Folder, newer: Journal) -> None:
        assert journal(folder, 0, task=OTHER, token=new_run_token(1), take_over=True).claim() is None


class TestZombie:
    def test_commit_fails_once_another_submission_has_claimed(self, folder: Folder) -> None:
        zombie, newer = journal(folder, 0), journal(folder, 1)
        zombie.claim()
        newer.claim()
        why = " of nightly.label of run r1 while this job ran; its rows are kept, but not published."
        for late in (zombie.check, lambda: zombie.commit("manifests/zombie.json")):
            is_superseded(folder, late, why)
        newer.commit("manifests/newer.json")
        assert published(newer) == "manifests/newer.json"


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.LOST_SILENT, Fault.CONFLICT, Fault.CUT_REQUEST])
def test_creations_whose_answers_were_lost_count_once(
    s3_server: S3Server, proxy: FaultyS3, fault: Fault
) -> None:
    bucket = s3_server.new_bucket()
    mine = journal(S3Folder(bucket, "out", proxy.api.credentials))
    proxy.choose = first(fault, method="PUT")
    mine.claim()
    mine.check()
    proxy.choose = first(fault, method="PUT")
    mine.commit("manifests/x.json")
    assert proxy.faults == {fault: 2}
    assert len(entries(S3Folder(bucket, "out", s3_server.credentials))) == 2


def test_two_processes_of_one_submission_id_are_two(folder: Folder) -> None:
    # A cluster that still runs after its client lost it, and the next one: both run submission 0.
    first_process, second_process = journal(folder), journal(folder)
    first_process.claim()
    first_entry = first_process.last()
    second_process.claim()
    second_entry = second_process.last()
    assert first_entry is not None
    assert second_entry is not None
    assert first_entry.nonce != second_entry.nonce
    with pytest.raises(SupersededError):
        first_process.commit("manifests/first.json")


def test_a_commit_needs_a_claim(folder: Folder) -> None:
    with pytest.raises(ValueError, match="never claimed"):
        journal(folder).commit("manifests/x.json")


ONE, TWO, THREE = (new_run_token(number) for number in (1, 2, 3))
AGAIN_ONE, AGAIN_TWO = new_run_token(1), new_run_token(2)


@pytest.mark.parametrize(
    ("claimed", "token", "overtaken"),
    [
        pytest.param([], ONE, False, id="the first"),
        pytest.param([ONE], ONE, False, id="its retry"),
        pytest.param([ONE], TWO, False, id="its clear"),
        pytest.param([ONE, TWO], ONE, True, id="the cleared one, which had claimed"),
        pytest.param([TWO], ONE, True, id="the cleared one, which had not"),
        pytest.param([ONE, THREE], TWO, True, id="the one in between"),
        pytest.param([ONE, TWO, TWO], TWO, False, id="the newest again"),
        pytest.param([new_run_token(9)], new_run_token(10), False, id="counted, not spelled"),
        pytest.param([ONE, TWO], AGAIN_ONE, False, id="DAG run deleted and made again"),
        pytest.param([ONE, TWO, AGAIN_ONE], AGAIN_ONE, False, id="its retry there"),
        pytest.param([ONE, TWO, AGAIN_ONE], AGAIN_TWO, False, id="its clear there"),
        pytest.param([ONE, TWO, AGAIN_ONE], TWO, True, id="the deleted one"),
        pytest.param([ONE, TWO, AGAIN_ONE], ONE, True, id="the first of the deleted one"),
        pytest.param([ONE, TWO, AGAIN_ONE, AGAIN_TWO], AGAIN_ONE, True, id="the cleared one there"),
        pytest.param([ONE, TWO, AGAIN_ONE, AGAIN_TWO], TWO, True, id="the deleted one after that"),
    ],
)
def test_older_run_is_distinguished_from_a_newer_one(claimed: list[str], token: str, overtaken: bool) -> None:
    assert is_overtaken(token, claimed) is overtaken
