# SPDX-License-Identifier: Apache-2.0
"""What a version leaves: files of a task, a batch and a response store, and what Airflow keeps of a task.

``python -m tests.unit.upgrade.making`` writes it again. Do that only in a commit that changes a format on
purpose, and say in the changelog what users lose.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import tempfile
from pathlib import Path

import pytest

from airflow_provider_raybatch.cluster.follow.control import LeaseTerms
from airflow_provider_raybatch.cluster.follow.outcome import Outcome
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.operators.run_record import RunRecord
from airflow_provider_raybatch.storage.folder import LocalFolder
from airflow_provider_raybatch.triggers.ray_job import RayJobTrigger
from tests.support.repeated_task import RepeatedTask
from tests.support.served_batches import a_batch
from tests.support.whole_job import ended_while_writing, without_cluster

STATE = Path(__file__).with_name("state")
LAKE = "/lake"
"""Stands for the folder in which it was made."""
PUBLISHED = [f"published {number}" for number in range(6)]
WRITTEN = [f"written {number}" for number in range(6)]
"""Texts of a run that died before all of them were answered."""
STEPS = [{"name": "draft", "prompt": "{row.text}"}, {"name": "judge", "prompt": "Judge {row.draft_response}"}]
LINES = 12
SLOW = {
    "rows_in_flight": 2,
    "flush_interval": 0.01,
    "batch_size": 2,
    "engine_args": {"seconds_per_token": 0.005, "max_num_seqs": 2},
}
"""So that a run writes its rows in several parts."""
KEY = "ab" * 32
TERMS = LeaseTerms(key=KEY, attempt=1, deadline=4e9, orphan_timeout=60.0, retry_pause=300.0)
RECORD = RunRecord(
    token="t" * 8,
    max_tries=3,
    try_number=1,
    namespace="n" * 8,
    fingerprint="f" * 8,
    result={"rows": 6},
    earlier=("e" * 8,),
    earlier_keys={"e" * 8: KEY},
    key=KEY,
)
OUTCOME = Outcome("failed", FailureClass.TOO_MANY_ERRORS, "two rows failed", ended=True)


def trigger() -> RayJobTrigger:
    return RayJobTrigger(
        ray_conn_id="ray_default",
        submission_id="raybatch-x-0",
        session_name="session",
        deadline=4e9,
        deferred_at=1.0,
        handle={"submission_id": "raybatch-x-0", "dashboard_url": "", "run_token": "t" * 8},
        lease_terms=dataclasses.asdict(TERMS),
    )


def make(place: Path) -> None:
    """Write the state below `place`."""
    died = RaybatchError("the node is gone", FailureClass.NODE_LOST)
    with pytest.MonkeyPatch.context() as patch:
        without_cluster(patch)
        for name, asked in (("question", {}), ("steps", {"steps": STEPS})):
            (place / name).mkdir()
            task = RepeatedTask(place / name)
            task.input(PUBLISHED)
            task.run("first", reuse=str(place / name / "store"), **asked)
            task.input([*PUBLISHED, *WRITTEN])
            with ended_while_writing(1, died), pytest.raises(RaybatchError):
                task.run("second", **SLOW, **asked)
            shutil.rmtree(place / name / "requests")
        batch = a_batch(LocalFolder(f"{place}/batch"), place, LINES)
        with ended_while_writing(1, died), pytest.raises(RaybatchError):
            batch.run(**SLOW)
    kept = {
        "record": RECORD.model_dump(mode="json"),
        "trigger": trigger().serialize(),
        "outcome": OUTCOME.to_json(),
    }
    (place / "airflow.json").write_text(json.dumps(kept, indent=1))


def moved(source: Path, target: Path, names: tuple[str, str]) -> None:
    """Copy state, with the first of `names` replaced by the second in all documents."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.html"))
    for file in target.rglob("*"):
        if file.suffix in {".json", ".jsonl"}:
            file.write_text(file.read_text().replace(*names))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder))
        shutil.rmtree(STATE, ignore_errors=True)
        moved(Path(folder), STATE, (folder, LAKE))
