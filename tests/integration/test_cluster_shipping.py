# SPDX-License-Identifier: Apache-2.0
"""Shipped packages arrive in driver and tasks, on the same Python version and on another one."""

from __future__ import annotations

import dataclasses
import json
import shlex
import uuid

from cryptography.fernet import Fernet

from airflow_provider_raybatch.cli.show import PrintedOfJob
from airflow_provider_raybatch.cluster.follow.control import Lease, LeaseTerms
from airflow_provider_raybatch.cluster.follow.loop import follow_to_the_end
from airflow_provider_raybatch.cluster.follow.poll import Followed, follow
from airflow_provider_raybatch.cluster.follow.preview import run_preview
from airflow_provider_raybatch.cluster.jobs_api.client import RayJobsClient
from airflow_provider_raybatch.cluster.submit import request as request_module
from airflow_provider_raybatch.cluster.submit.request import (
    build_batch_request,
    build_preview_request,
    build_warm_engines_request,
    with_source_digest,
)
from airflow_provider_raybatch.contract.preview import PreviewRequest
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission, TaskKey

PROBE = """
import importlib, json, os, sys
import ray
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

spec = BatchInferenceSpec.model_validate_json(open(sys.argv[1]).read())

def where(modules):
    import airflow_provider_raybatch.job
    files = [importlib.import_module(module).__file__ for module in modules]
    import team_prompts.build
    return files, team_prompts.build.prompt({"a": 1}), os.environ.get("LEVEL")

modules = ["airflow_provider_raybatch.contract.spec", "airflow_provider_raybatch.job", sys.argv[2]]
ray.init()
print("driver", json.dumps(where(modules)))
print("task", json.dumps(ray.get(ray.remote(num_cpus=0.5)(where).remote(modules))))

from airflow_provider_raybatch.job.control.private_package import fetch
name = spec.submission.secrets_package
package = fetch(name)
print("secrets", json.dumps(package.secrets().revealed()))
try:
    fetch(name)
except Exception as error:
    print("again", type(error).__name__)

# Each look of the follower replaces its order before.
import time
from airflow_provider_raybatch.job.control.control import orders_for
read, orders, until = orders_for(package.key), [], time.monotonic() + 60
while len(orders) < 3 and time.monotonic() < until:
    order = read()
    if order is not None and order not in orders:
        orders.append(order)
    time.sleep(0.05)
print("orders", json.dumps([[order.attempt, order.deadline, order.orphan_timeout] for order in orders]))
"""
KEY = "ab" * 32
CONTROL = LeaseTerms(KEY, attempt=3, deadline=4e9, orphan_timeout=1.0)
SECRETS = Secrets(aws=AwsCredentials(aws_access_key_id="AKIA", aws_secret_access_key="s3cret"))


def spec_of(submission_id):
    return BatchInferenceSpec.model_validate({
        "source": ["/in.jsonl"],
        "prompt_function": "team_prompts.build:prompt",
        "model": "m",
        "destination": "/out",
        "submission": Submission(
            task=TaskKey(dag_id="d", run_id="r", task_id="t"), run_token="x", submission_id=submission_id
        ),
    })


def write_prompts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "team_prompts").mkdir()
    (tmp_path / "team_prompts/__init__.py").write_text("")
    (tmp_path / "team_prompts/build.py").write_text("def prompt(row): return 'prompt of ' + str(row['a'])\n")


async def probe(cluster, tmp_path, monkeypatch, seal_key=None, wheel="obstore"):
    monkeypatch.setattr(request_module, "_WHEELS", (wheel,))
    write_prompts(tmp_path, monkeypatch)
    env_vars = {"LEVEL": "9", **({"RAYBATCH_SEAL_KEY": seal_key} if seal_key else {})}
    async with RayJobsClient(cluster.address) as client:
        request = await build_batch_request(
            client,
            with_source_digest(spec_of(f"test-{uuid.uuid4().hex[:12]}")),
            key=KEY,
            secrets=SECRETS,
            seal_key=seal_key,
            # On a real cluster the nodes have the key; here the job's environment has it.
            runtime_env={"env_vars": env_vars},
        )
        command, _, rest = request.entrypoint.partition(" ")
        assert (command, rest) == ("python", "-m airflow_provider_raybatch.job spec.json")
        probing = dataclasses.replace(request, entrypoint=f"python -c {shlex.quote(PROBE)} spec.json {wheel}")
        await client.submit(probing)
        lines = []
        job = Followed(request.submission_id, poll_interval=0.3, lease=Lease(CONTROL))
        outcome = await follow(client, job, lines.extend)
    logged = [line.text for line in lines]
    assert outcome.state == "succeeded", logged[-5:]
    return logged, {text.split(" ", 1)[0]: text.split(" ", 1)[1] for text in logged if " " in text}


def assert_shipped(logged, found, wheel_from):
    for side in ("driver", "task"):
        files, prompt, level = json.loads(found[side])
        assert all("/py_modules_files/_ray_pkg_" in file for file in files[:2]), files
        assert wheel_from in files[2]
        assert (prompt, level) == ("prompt of 1", "9")
    assert json.loads(found["secrets"]) == SECRETS.revealed()
    assert found["again"] == "PreflightError"
    assert json.loads(found["orders"]) == [[3, 4e9, 1.0]] * 3
    echoed = [text for text in logged if not text.startswith("secrets ")]
    assert not any("s3cret" in text for text in echoed)


async def test_same_python(ray_cluster, tmp_path, monkeypatch):
    # This cluster has its own obstore, which takes precedence over the shipped one.
    assert_shipped(*await probe(ray_cluster, tmp_path, monkeypatch), wheel_from="/site-packages/obstore/")


async def test_sealed(ray_cluster, tmp_path, monkeypatch):
    assert_shipped(
        *await probe(ray_cluster, tmp_path, monkeypatch, Fernet.generate_key().decode()),
        wheel_from="/site-packages/obstore/",
    )


async def test_a_preview_runs_the_shipped_function(ray_cluster, tmp_path, monkeypatch):
    """In a task of its own, and leaves no trace. An engine that it starts is there for the next preview."""
    write_prompts(tmp_path, monkeypatch)
    rows, out = tmp_path / "in.jsonl", tmp_path / "out"
    rows.write_text("".join(f'{{"a": {number}}}\n' for number in range(30)))
    fields = {"source": [str(rows)], "engine": "echo", "destination": str(out)}
    judge = {"name": "judge", "prompt": "judge {row.draft_response}", "when": ["a", ">", 0]}
    steps = {"prompt_function": None, "steps": [{"name": "draft", "prompt": "draft {row.a}"}, judge]}

    said = []

    async def report(keep_warm=None, asked=fields, **wanted):
        said.clear()
        name = f"test-{uuid.uuid4().hex[:12]}"
        document = {**spec_of(name).model_dump(), **asked, "keep_warm": keep_warm}
        spec = with_source_digest(BatchInferenceSpec.model_validate(document))
        async with RayJobsClient(ray_cluster.address) as client:
            request = await build_preview_request(client, spec, PreviewRequest(**wanted), key=KEY)
            return await run_preview(client, request, KEY, 120, said.append)

    *shown, last, end = await report(verb="preview", rows=2, ask=1, keep_warm=120)
    assert [event.row.messages[0].text for event in shown] == ["prompt of 0", "prompt of 1"]
    assert last.answer.completions[0].text == "prompt of 0"
    none = "no warm engine is idle, so one must start for 1 row: it takes 1 CPU and no GPU"
    assert [one for one in said if one.startswith(none)]
    *_, last, end = await report(verb="preview", rows=2, ask=2)
    assert (last.answer.ordinal, last.answer.completions[0].text) == (1, "prompt of 1")
    assert "asking a warm engine for 2 rows" in said
    assert (end.preview.rows, end.preview.refusals) == (30, ())
    *_, first, draft, last, end = await report(verb="preview", rows=2, ask=2, asked={**fields, **steps})
    assert [(one.answer.ordinal, one.answer.step) for one in (first, draft, last)] == [
        (0, "draft"),
        (1, "draft"),
        (1, "judge"),
    ]
    assert last.answer.messages[0].text == last.answer.completions[0].text == "judge draft 1"
    assert end.preview.refusals == ()
    (planned,) = await report(verb="plan")
    assert (planned.report.prompt_tokens.rows, planned.report.prompt_tokens.total) == (30, 90)
    assert {size.name for size in planned.report.sizes} >= {"replicas", "rows_per_chunk"}
    assert not out.exists()
    async with RayJobsClient(ray_cluster.address) as client:
        job = await build_warm_engines_request(client, f"test-{uuid.uuid4().hex[:12]}", end=True)
        await client.submit(job)
    outcome = await follow_to_the_end(
        ray_cluster.address, Followed(job.submission_id, poll_interval=0.5), PrintedOfJob()
    )
    assert outcome.state == "succeeded"


async def test_another_python(other_python_ray_cluster, tmp_path, monkeypatch):
    # Ray does not include this distribution, so it is the shipped one.
    assert_shipped(
        *await probe(other_python_ray_cluster, tmp_path, monkeypatch, wheel="h11"),
        wheel_from="/raybatch_wheels/h11/",
    )
