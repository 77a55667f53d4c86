# SPDX-License-Identifier: Apache-2.0
"""Which version of a model a check would read, and whether this job may read it."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.job.preflight import model_version
from airflow_provider_raybatch.job.preflight.model_version import Version
from tests.support.hub import Hub

NAME = "acme/tiny"


@pytest.fixture(autouse=True)
def tiny(hub: Hub, tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    hub.push(NAME, model)


def current(token: str | None = None, model: str = NAME, **engine_args: Any) -> Version | None:
    return model_version.current(model, engine_args, token)


def known(token: str | None = None, model: str = NAME, **engine_args: Any) -> Version:
    found = current(token, model, **engine_args)
    assert found is not None
    return found


def cached(cache: Path, commit: str, *files: str, missing: tuple[str, ...] = ()) -> Path:
    """Put a commit into the cache as its ``main``, with these files."""
    repository = cache / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs/main").write_text(commit)
    for folder, names in (("snapshots", files), (".no_exist", missing)):
        (repository / folder / commit).mkdir(parents=True, exist_ok=True)
        for name in names:
            (repository / folder / commit / name).write_text("{}")
    return repository / "snapshots" / commit


def test_weights_of_the_same_size_are_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_version, "_HASHED_WHOLE", 1024)
    weights = tmp_path / "model.safetensors"
    digests = set()
    for filling in (b"\0", b"\1"):
        weights.write_bytes(b"same head" + filling * 10_000_000)
        digests.add(model_version.model_digest(str(tmp_path), ""))
    assert len(digests) == 2


def test_a_name_is_what_the_hub_has_under_it_now(hub: Hub, tmp_path: Path) -> None:
    first = hub.main[NAME]
    before = known()
    assert before.revisions == {"revision": first, "tokenizer_revision": first}
    assert hub.asked == [f"HEAD /{NAME}/resolve/main/config.json"]
    assert current() == before
    second = hub.push(NAME, tmp_path / "model", config=b"[]")
    after = known()
    assert after.commit == second
    assert after.files != before.files
    assert current(revision=first) == before
    hub.push("acme/copy", tmp_path / "model")
    copy = known(model="acme/copy")
    assert copy.files not in {before.files, after.files}


@pytest.mark.parametrize("is_private", [False, True], ids=["gated", "private"])
def test_a_token_without_access_gets_no_version(
    hub: Hub, is_private: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.tokens, hub.is_private = {"hf_good"}, is_private
    assert current("hf_good") is not None
    assert current("hf_other") is None
    assert current("hf_other", revision=hub.main[NAME]) is None
    assert current() is None
    monkeypatch.setenv("HF_TOKEN", "hf_good")
    assert current() is not None
    assert current("hf_other") is None


def test_a_commit_in_the_cache_needs_no_hub(hub: Hub, cache: Path) -> None:
    commit = hub.main[NAME]
    files = ("config.json", "tokenizer_config.json", "chat_template.jinja")
    cached(cache, commit, *files)
    asked = current(revision=commit)
    assert len(hub.asked) == 1
    assert current(revision=commit, generation_config="vllm") == asked
    cached(cache, commit, *files, missing=("generation_config.json",))
    assert current(revision=commit) == asked
    assert len(hub.asked) == 1


def test_a_check_without_all_files_is_noticed(hub: Hub, cache: Path, tmp_path: Path) -> None:
    version = known()
    files = ["config.json", "tokenizer_config.json", "generation_config.json"]
    cached(cache, version.commit, *files)
    assert not model_version.was_read(NAME, {}, version)
    cached(cache, version.commit, *files, missing=("chat_template.jinja",))
    assert model_version.was_read(NAME, {}, version)
    of_folder = known(model=str(tmp_path / "model"))
    assert model_version.was_read(str(tmp_path / "model"), {}, of_folder)


def test_offline_the_files_in_the_cache_decide(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert current() is None
    snapshot = cached(cache, "a" * 40, "config.json")
    version = known()
    assert version.commit == "a" * 40
    assert model_version.was_read(NAME, {}, version)
    assert current(revision="a" * 40) == version
    assert current(revision="b" * 40) is None
    (snapshot / "generation_config.json").write_text("{}")
    more = known()
    assert more.files != version.files
    cached(cache, "b" * 40, "config.json")
    other = known()
    assert other == current(revision="b" * 40)
    assert other.files not in {version.files, more.files}


@pytest.mark.parametrize(
    "args",
    [
        {"tokenizer": "acme/other"},
        {"tokenizer_revision": "v2"},
        {"revision": "v1", "tokenizer_revision": "v2"},
        {"hf_config_path": "acme/other"},
        {"generation_config": "acme/other"},
        {"trust_remote_code": True},
        {"hf_token": "hf_other"},
    ],
    ids=lambda args: "-".join(args),
)
def test_other_files_have_no_version_here(hub: Hub, tmp_path: Path, args: dict[str, Any]) -> None:
    for model in (NAME, str(tmp_path / "model")):
        assert current(model=model) is not None
        assert current(model=model, **args) is None


@pytest.mark.parametrize(
    "model", ["s3://bucket/model", "acme/none", "a/b/c", "/no/such/folder", "acme/tiny:Q4"]
)
def test_what_the_hub_does_not_know_has_no_version(hub: Hub, model: str) -> None:
    assert current(model=model) is None
    assert current(revision="none") is None


@pytest.mark.parametrize("variable", ["VLLM_USE_MODELSCOPE", "VLLM_MODEL_REDIRECT_PATH"])
def test_names_of_another_place_have_no_version(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "true")
    assert current() is None


def test_a_relative_folder_is_not_looked_for_on_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(NAME).mkdir(parents=True)
    assert current() is None
    assert hub.asked == []


def test_a_silent_hub_is_not_waited_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's own library would wait for 10 s, and here without an end."""
    import huggingface_hub
    from huggingface_hub import constants

    patient = partial(huggingface_hub.get_hf_file_metadata, timeout=3600)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", patient)
    monkeypatch.setattr(model_version, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/{{repo_id}}/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        assert current() is None


def test_a_hub_that_is_down_or_not_installed_costs_nothing(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.is_down = True
    assert current() is None
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert current() is None
