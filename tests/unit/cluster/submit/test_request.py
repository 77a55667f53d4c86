# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import zipfile

import pytest
from cryptography.fernet import Fernet

from airflow_provider_raybatch.cluster.jobs_api.errors import PackageError
from airflow_provider_raybatch.cluster.submit import request as request_module
from airflow_provider_raybatch.cluster.submit.request import (
    ENTRYPOINT,
    build_batch_request,
    with_source_digest,
)
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets, unseal
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission, TaskKey

TASK = TaskKey(dag_id="d", run_id="r", task_id="t")
KEY = "ab" * 32
SECRETS = Secrets(aws=AwsCredentials(aws_access_key_id="AKIA", aws_secret_access_key="s3cret"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on Python's path."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def spec_of(prompt=None, submitted=True, **fields):
    submission = Submission(task=TASK, run_token="token", submission_id="raybatch-x-0") if submitted else None
    return BatchInferenceSpec.model_validate({
        "source": ["/in.jsonl"],
        **(prompt or {"prompt": "{row.a}"}),
        "model": "m",
        "destination": "/out",
        **fields,
        "submission": submission,
    })


def unpack(ray, uri):
    archive = zipfile.ZipFile(io.BytesIO(ray.packages[uri.removeprefix("gcs://")]))
    return {name: archive.read(name) for name in archive.namelist()}


def sent_spec(ray, request):
    return json.loads(unpack(ray, request.runtime_env["working_dir"])["spec.json"])


async def test_everything_the_job_needs_is_on_the_cluster(ray, client):
    spec = spec_of()
    request = await build_batch_request(client, spec, key=KEY)
    assert request.entrypoint == ENTRYPOINT == "python -m airflow_provider_raybatch.job spec.json"
    assert request.submission_id == "raybatch-x-0"
    assert set(request.body()) == {"entrypoint", "submission_id", "runtime_env", "metadata"}
    ours, obstore = (set(unpack(ray, uri)) for uri in request.runtime_env["py_modules"])
    assert "airflow_provider_raybatch/job/__main__.py" in ours
    assert any(path.endswith(".abi3.so") for path in obstore)
    sent = BatchInferenceSpec.model_validate(sent_spec(ray, request))
    name = sent.submission.secrets_package
    assert sent.model_copy(update={"submission": spec.submission}) == spec
    assert unpack(ray, f"gcs://{name}") == {"key": KEY.encode()}
    # A key alone is not pinned: Ray would drop it while a slow runtime env is still being made.
    assert ("GET", f"/api/packages/gcs/{name}") not in ray.requests
    assert request.metadata["raybatch.task_key"] == TASK.digest
    assert request.metadata["raybatch.run_token"] == "token"
    assert request.metadata["raybatch.fingerprint"] == spec.fingerprint


async def test_a_second_submission_uploads_only_its_spec(ray, client):
    await build_batch_request(client, spec_of(), key=KEY)
    first = ray.count("PUT")
    await build_batch_request(client, spec_of({"prompt": "{row.b}"}), key=KEY)
    # Two of the packages are the keys of the submissions.
    assert (first, ray.count("PUT")) == (4, 6)


@pytest.mark.parametrize("key", [None, Fernet.generate_key().decode()], ids=["open", "sealed"])
async def test_secrets_travel_alone(ray, client, key):
    request = await build_batch_request(client, spec_of(), key=KEY, secrets=SECRETS, seal_key=key)
    name = sent_spec(ray, request)["submission"]["secrets_package"]
    assert unseal(unpack(ray, f"gcs://{name}")["secrets"], key).revealed() == SECRETS.revealed()
    assert (b"s3cret" in unpack(ray, f"gcs://{name}")["secrets"]) is (key is None)
    assert "s3cret" not in json.dumps(request.body())
    assert name not in json.dumps(request.body())
    others = [unpack(ray, stored) for stored in ray.packages if stored != name]
    assert not any(b"s3cret" in content for other in others for content in other.values())
    # The GET before the PUT makes Ray delete the package after ten minutes.
    asked = ray.requests.index(("GET", f"/api/packages/gcs/{name}"))
    assert asked < ray.requests.index(("PUT", f"/api/packages/gcs/{name}"))


async def test_each_submission_has_a_secrets_package_of_its_own(ray, client):
    spec = spec_of()
    requests = [await build_batch_request(client, spec, key=KEY, secrets=SECRETS) for _ in range(2)]
    assert len({sent_spec(ray, each)["submission"]["secrets_package"] for each in requests}) == 2
    assert spec.submission.secrets_package is None


@pytest.mark.parametrize("argument", ["prompt_function", "postprocess", "response_format"])
async def test_changed_source_is_a_changed_job(client, folder, argument):
    (folder / "labels.py").write_text("def function(*row): return {}\n")
    named = {argument: "labels:function"}
    plain = spec_of(named) if argument == "prompt_function" else spec_of(**named)
    before = with_source_digest(plain)
    (folder / "labels.py").write_text("def function(*row): return {'a': 1}\n")
    after = with_source_digest(plain)
    assert len({plain.fingerprint, before.fingerprint, after.fingerprint}) == 3
    assert (before.response_digest == after.response_digest) is (argument != "prompt_function")
    with pytest.raises(SpecError, match=f"^{argument}: its source changed while the job was being submitted"):
        await build_batch_request(client, before, key=KEY)


async def test_source_shared_by_both_functions_travels_once(ray, client, folder):
    (folder / "labels.py").write_text("def ask(row): return 'x'\ndef parse(row, response): return {}\n")
    (folder / "other.py").write_text("def parse(row, response): return {}\n")
    prompt = {"prompt_function": "labels:ask"}
    for function, expected in (
        ("labels:parse", [{"labels.py"}]),
        ("other:parse", [{"labels.py"}, {"other.py"}]),
    ):
        spec = with_source_digest(spec_of(prompt, postprocess=function))
        assert spec.postprocess_digest
        request = await build_batch_request(client, spec, key=KEY)
        sent = [set(unpack(ray, uri)) for uri in request.runtime_env["py_modules"][2:]]
        assert sent == expected


def test_source_is_that_of_the_functions_there_are():
    assert with_source_digest(spec_of()) == spec_of()
    with pytest.raises(PackageError, match=r"^postprocess: there is no module 'no_labels' to ship for"):
        with_source_digest(spec_of(postprocess="no_labels:parse"))


async def test_refusals_come_before_anything_is_uploaded(ray, client, monkeypatch):
    function = spec_of({"prompt_function": "nowhere_at_all:build"})
    for call, kind in (
        (build_batch_request(client, spec_of(submitted=False), key=KEY), SpecError),
        (
            build_batch_request(client, spec_of(), key=KEY, runtime_env={"working_dir": "s3://x.zip"}),
            SpecError,
        ),
        (build_batch_request(client, function, key=KEY), PackageError),
    ):
        with pytest.raises(kind):
            await call
    monkeypatch.setattr(request_module, "_WHEELS", ("no-such",))
    with pytest.raises(PackageError):
        await build_batch_request(client, spec_of(), key=KEY, secrets=SECRETS, seal_key="no key")
    assert ray.count("PUT") == 0


async def test_the_users_runtime_env_is_merged_and_left_alone(client):
    given = {
        "env_vars": {"A": "1"},
        "py_modules": ["s3://b/theirs.zip"],
        "config": {"setup_timeout_seconds": 9},
    }
    request = await build_batch_request(client, spec_of(), key=KEY, runtime_env=given)
    assert request.runtime_env["env_vars"] == {"A": "1", "RAY_JOB_STOP_WAIT_TIME_S": "20"}
    assert request.runtime_env["config"] == {"setup_timeout_seconds": 9}
    assert request.runtime_env["py_modules"][-1] == "s3://b/theirs.zip"
    assert given["py_modules"] == ["s3://b/theirs.zip"]
    assert "working_dir" not in given
