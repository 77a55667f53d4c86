# SPDX-License-Identifier: Apache-2.0
"""Two processes run the same task at once: one publishes the dataset, the other one fails or returns it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.faulty_s3 import FaultyS3, by_seed
from tests.support.published import ROWS, published
from tests.support.s3_server import S3Server
from tests.support.specs import submitted

pytestmark = pytest.mark.slow

ROUNDS = 6
thorough = pytest.mark.thorough("races of two attempts in more stores; one runs always")

_RACER = f"""
import json, random, sys, time
from pydantic import SecretStr
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.storage import errors
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.folder import folder
from tests.support.publishing import commit_only, part
from tests.support.specs import submitted

errors.RETRY_LIMITS = errors.RetryLimits(answer=0.5, repeat=5, whole=30, first_pause=0.01, longest_pause=0.1)
number, url = int(sys.argv[1]), sys.argv[2]
key = AwsCredentials(
    aws_access_key_id=SecretStr("key"), aws_secret_access_key=SecretStr("secret"), endpoint_url=url or None
)
for line in sys.stdin:
    uri, pauses = json.loads(line)
    place = folder(uri, key)
    spec = submitted(number, destination=uri, rows_per_part=5)
    journal = Journal(place, spec.submission, take_over=False)
    try:
        time.sleep(pauses[0])
        if (known := journal.claim()) is not None:
            print(json.dumps(known.manifest_uri), flush=True)
            continue
        if pauses[1] < 0:
            print('"claimed"', flush=True)
            sys.stdin.readline()
        parts = []
        for first in range(0, {ROWS}, 3):
            time.sleep(max(0, pauses[1]))
            rows = [{{"id": first}}, {{"id": first + 1}}, {{"id": first + 2}}]
            parts.append(part(place, rows, first=first, submission=number))
        end = commit_only(journal, parts, {ROWS}, spec).manifest_uri
    except RaybatchError as error:
        end = error.failure_class.value
    print(json.dumps(end), flush=True)
"""


@pytest.fixture(
    params=[
        pytest.param("local", marks=thorough),
        "s3",
        pytest.param("faulty s3", marks=thorough),
    ]
)
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[list[Folder], str]:
    """A folder for each round, and the endpoint of S3."""
    if request.param == "local":
        return [LocalFolder(str(tmp_path / f"out{number}")) for number in range(ROUNDS)], ""
    server: S3Server = request.getfixturevalue("s3_server")
    bucket = server.new_bucket()
    folders: list[Folder] = [S3Folder(bucket, f"out{number}", server.credentials) for number in range(ROUNDS)]
    if request.param == "s3":
        return folders, server.url
    proxy: FaultyS3 = request.getfixturevalue("proxy")
    proxy.choose = by_seed(3, 0.05)
    return folders, proxy.api.url


def test_two_attempts_at_once_give_one_dataset(places: tuple[list[Folder], str]) -> None:
    folders, url = places
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", _RACER, str(number), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(Path(__file__).parents[3])},
        )
        for number in range(2)
    ]
    older, newer = racers

    def say(racer: subprocess.Popen[str], *told: object) -> None:
        assert racer.stdin is not None
        racer.stdin.write(json.dumps(told) + "\n")
        racer.stdin.flush()

    def heard(racer: subprocess.Popen[str]) -> str:
        assert racer.stdout is not None
        return str(json.loads(racer.stdout.readline()))

    ends: Counter[str] = Counter()
    try:
        for seed, place in enumerate(folders):
            chance = random.Random(seed)
            if seed == 0:  # the newer one comes and ends while the older one stands
                say(older, place.uri, [0, -1])
                assert heard(older) == "claimed"
                say(newer, place.uri, [0, 0])
                results = [heard(newer)]
                say(older)
                results.append(heard(older))
            else:
                for racer in racers:
                    # The second round starts both at once and lets them run at the same speed.
                    spread = 0 if seed == 1 else 0.03
                    say(racer, place.uri, [chance.uniform(0, spread), chance.uniform(0, spread)])
                results = [heard(racer) for racer in racers]
            manifest = published(place)
            assert manifest is not None
            entries = Journal(place, submitted().submission, take_over=False).history()
            assert [entry.kind for entry in entries].count("commit") == 1
            assert set(results) <= {"superseded", manifest.manifest_uri}
            ends.update(results)
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()
    assert ends["superseded"] >= 1
    assert len(ends) == len(folders) + 1
