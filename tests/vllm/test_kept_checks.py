# SPDX-License-Identifier: Apache-2.0
"""The check of a model by name is found by other processes, which import no vLLM for it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.hub import Hub, serving

pytest.importorskip("vllm")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "dags_examples/demo_model/model"
GOOD, OTHER = "hf_good", "hf_other"
PROGRAM = """
import json, os, sys
from pydantic import SecretStr, TypeAdapter
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight import known_models, model_check
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.row import Request
from tests.support.specs import spec

CHECKED = TypeAdapter(model_check.ModelCheck)
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # vLLM's log
requests = [Request(messages=[{"role": "user", "content": "What is 3 + 4?"}])]
for line in sys.stdin:
    module, function, token, fields = json.loads(line)
    try:
        asked = AskedModel(spec(engine="vllm", **fields), requests, {"HF_TOKEN": SecretStr(token)})
        found = getattr(globals()[module], function)(asked)
        answer = found and CHECKED.dump_python(found, mode="json", exclude={"needed", "is_kept"})
    except PreflightError as error:
        answer = str(error)
    print(json.dumps([answer, [name for name in ("vllm", "torch", "transformers") if name in sys.modules]]),
          file=answers, flush=True)
"""


class Process:
    """A process of a job, on a node whose caches are below one folder."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        self._running = running
        self.imported: list[str] = []

    def check(self, model: str, token: str = GOOD, **engine_args: Any) -> Any:
        """What was found, as JSON, or the sentence of a refusal."""
        return self._ask("known_models", "check_unless_kept", model, token, engine_args)

    def check_anew(self, model: str, token: str = GOOD, **engine_args: Any) -> Any:
        """The same where no checks are kept."""
        return self._ask("model_check", "check_model", model, token, engine_args)

    def kept(self, model: str, token: str = GOOD, **engine_args: Any) -> Any:
        """What is kept, ``None`` if nothing is."""
        return self._ask("known_models", "kept", model, token, engine_args)

    def _ask(self, module: str, function: str, model: str, token: str, engine_args: dict[str, Any]) -> Any:
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        fields = {"model": model, "engine_args": engine_args}
        self._running.stdin.write(json.dumps([module, function, token, fields]) + "\n")
        self._running.stdin.flush()
        answer, self.imported = json.loads(self._running.stdout.readline())
        return answer


@contextmanager
def process(hub: Hub, folder: Path) -> Iterator[Process]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_CACHE": str(folder / "hub"),
        "XDG_CACHE_HOME": str(folder),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-c", PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, **pipes) as running:  # type: ignore[call-overload]
        yield Process(running)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def served() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture(scope="module")
def first(served: Hub, folder: Path) -> Iterator[Process]:
    """That of the jobs that make checks."""
    with process(served, folder) as first:
        yield first


@pytest.fixture
def hub(served: Hub) -> Hub:
    served.tokens, served.is_private, served.is_down = None, False, False
    return served


@pytest.fixture
def second(hub: Hub, folder: Path) -> Iterator[Process]:
    """That of a later job."""
    with process(hub, folder) as second:
        yield second
        assert second.imported == []


def test_a_check_by_name_is_found_without_vllm(hub: Hub, first: Process, second: Process) -> None:
    commit = hub.push("acme/once", MODEL)
    assert second.kept("acme/once") is None
    found = first.check("acme/once")
    assert found["revisions"] == {"revision": commit, "tokenizer_revision": commit}
    assert found["generation_defaults"]
    assert found["digests"]["tokenizer"]
    hub.asked.clear()
    assert second.check("acme/once") == second.kept("acme/once") == found
    assert hub.asked == ["HEAD /acme/once/resolve/main/config.json"] * 2
    assert second.kept("acme/once", max_model_len=100) is None


def test_a_new_commit_is_checked_anew(hub: Hub, first: Process, second: Process) -> None:
    before = hub.push("acme/moves", MODEL)
    found = first.check("acme/moves")
    shorter = {**json.loads((MODEL / "config.json").read_text()), "max_position_embeddings": 512}
    after = hub.push("acme/moves", MODEL, config=json.dumps(shorter).encode())
    assert second.kept("acme/moves") is None
    anew = first.check("acme/moves")
    assert (found["context"], anew["context"]) == (1024, 512)
    assert anew["revisions"]["revision"] == after
    assert second.kept("acme/moves") == anew
    pinned = first.check("acme/moves", revision=before)
    assert pinned["digests"]["model"] == found["digests"]["model"]
    hub.asked.clear()
    assert second.kept("acme/moves", revision=before) == pinned
    assert hub.asked == []


@pytest.mark.thorough("kept checks and a hub that refuses or is down; a hub that answers runs always")
@pytest.mark.parametrize("is_private", [False, True], ids=["gated", "private"])
def test_a_token_without_access_is_refused_as_ever(
    hub: Hub, first: Process, second: Process, folder: Path, is_private: bool
) -> None:
    name = f"acme/secret{is_private:d}"
    hub.push(name, MODEL)
    hub.tokens, hub.is_private = {GOOD}, is_private
    found = first.check(name)
    shutil.rmtree(folder / "hub")  # another user's, who has no model of the hub yet
    refused = first.check_anew(name, OTHER)
    assert refused.startswith(f"model: {name!r} can't be loaded (")
    assert "hf_conn_id where the model is gated" in refused
    assert first.check(name, OTHER) == refused
    assert second.kept(name, OTHER) is None
    assert second.kept(name, GOOD) == found


@pytest.mark.thorough("kept checks and a hub that refuses or is down; a hub that answers runs always")
def test_a_hub_that_is_down_is_as_without_a_kept_check(hub: Hub, first: Process, second: Process) -> None:
    """The files are in the node's cache, where vLLM finds them; another name is refused."""
    hub.push("acme/down", MODEL)
    found = first.check("acme/down")
    hub.is_down = True
    assert second.kept("acme/down") is None
    assert first.check("acme/down") == first.check_anew("acme/down") == found
    refused = first.check("acme/other")
    assert refused.startswith("model: 'acme/other' can't be loaded (")
    assert first.check_anew("acme/other") == refused
    hub.is_down = False
    assert second.kept("acme/down") == found
