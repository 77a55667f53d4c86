# SPDX-License-Identifier: Apache-2.0
"""Pictures in a bucket, asked about by a task that is cleared in the middle."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.dataset import open_dataset
from tests.support.numbered_pictures import Picture

from .lake import BUCKET, Lake
from .ray_jobs import RayJobs
from .rest import AirflowApi
from .waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.turn(3)]

ROWS = 80


@pytest.mark.usefixtures("as_airflow")
def test_a_clear_keeps_what_was_seen(api: AirflowApi, jobs: RayJobs, lake: Lake) -> None:
    lake.connect(api, "lake")
    pictures = [Picture(number) for number in range(ROWS)]
    for one in pictures:
        lake.client().put_object(Bucket=BUCKET, Key=f"pictures/{one.number}.png", Body=one.content())
    places = [f"s3://{BUCKET}/pictures/{one.number}.png" for one in pictures]
    lake.write_rows("rows.jsonl", [{"picture": place, "text": place[-6:]} for place in places])
    run = api.trigger(
        "pictures",
        aws_conn_id="lake",
        source=f"s3://{BUCKET}/rows.jsonl",
        destination=f"s3://{BUCKET}/said",
        image_roots=[f"s3://{BUCKET}/pictures"],
        engine_args={"seconds_per_token": 0.2, "max_num_seqs": 4},
        sampling={"temperature": 0},
    )
    task = run.task("infer")

    wait_for(
        "the first part",
        lambda: any(key.endswith(".parquet") for key in lake.contents("said/_raybatch/parts")),
        timeout=240,
        evidence=run.evidence,
    )
    task.clear()
    result = run.wait(timeout=300).task("infer").xcom()

    dataset = open_dataset(result, aws_conn_id="lake")
    assert {row["picture"]: row["response"] for row in dataset.to_arrow().to_pylist()} == {
        place: f"{one.said} Say {place[-6:]}" for place, one in zip(places, pictures, strict=True)
    }
    assert dataset.manifest.counts.resumed > 0
