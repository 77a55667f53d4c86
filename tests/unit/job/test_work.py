# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr
from ray.data._internal.metadata_exporter import sanitize_for_struct

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.input.listing import resolve
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.work import Job
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.specs import submitted


def test_ray_data_export_of_a_job_shows_no_secret(tmp_path: Path) -> None:
    """Ray Data writes its operators' arguments, including the job, to files and to its dashboard."""
    aws = AwsCredentials(aws_access_key_id=SecretStr("AKIA"), aws_secret_access_key=SecretStr("s3cret"))
    known = Secrets(aws=aws, hf_token=SecretStr("hf_canary"))
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n')
    spec = submitted(source=[str(source)])
    job = Job(
        spec=spec,
        listing=resolve(spec, None),
        folder=S3Folder("lake", "out", aws),
        part_folder="parts/0",
        keyer=Keyer(spec, {}, Digests()),
        credentials=aws,
        environment=credentials.environment(known),
    )
    exported = str(sanitize_for_struct({"_fn_constructor_args": (job, "coordinator")}, 10_000))
    assert "HF_TOKEN" in exported
    for secret in ("AKIA", "s3cret", "hf_canary"):
        assert secret not in exported
