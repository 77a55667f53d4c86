# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.store.settings import served_models
from airflow_provider_raybatch.contract.failures import SpecError
from tests.support.approved import AssertSentences

ECHO = {"engine": "echo"}


def _configure(monkeypatch: pytest.MonkeyPatch, models: Any) -> None:
    text = models if isinstance(models, str) else json.dumps(models)
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", text)


def test_defaults_follow_from_name_and_task(monkeypatch: pytest.MonkeyPatch) -> None:
    _configure(monkeypatch, {"org/chat:8b": ECHO, "vectors": {"model": "a/b", "model_task": "embed"}})

    chat, vectors = served_models().values()

    assert (chat.name, chat.dag_id, chat.batches_at_once) == ("org/chat:8b", "batches_org_chat_8b", 1)
    assert chat.endpoints == ("/v1/chat/completions", "/v1/completions")
    assert chat.arguments == ECHO
    assert vectors.endpoints == ("/v1/embeddings",)


def test_fields_of_ours_are_no_arguments_of_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {
        "dag_id": "team.chat", "endpoints": ["/v1/completions"], "users": ["ann"], "roles": ["Op"],
        "max_requests": 10, "max_file_bytes": 2000, "max_line_bytes": 1000, "batches_at_once": 3,
        "retries": 5, "pool": "gpus",
    }  # fmt: skip
    arguments = {**ECHO, "ray_conn_id": "r", "keep_warm": 60, "limits": {"gpu_hour_price": {"H100": 3.5}}}
    _configure(monkeypatch, {"chat": {**own, **arguments}})

    (chat,) = served_models().values()

    assert chat.arguments == arguments
    assert chat.model_dump(include=set(own), mode="json") == own


def test_without_the_setting_no_model_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    _configure(monkeypatch, " ")

    assert served_models() == {}


def test_a_changed_file_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    _configure(monkeypatch, str(file))
    file.write_text(json.dumps({"a": ECHO}))
    os.utime(file, (1000, 1000))
    assert [model.created for model in served_models().values()] == [1000]

    file.write_text(json.dumps({"b": ECHO}))
    os.utime(file, (2000, 2000))

    assert list(served_models()) == ["b"]


def test_callers_do_not_share_the_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    _configure(monkeypatch, {"a": ECHO})

    served_models().clear()

    assert list(served_models()) == ["a"]


@pytest.mark.parametrize(
    ("users", "roles", "allowed"),
    [
        (None, None, True),
        (["ann"], None, True),
        (["bob"], None, False),
        (["bob"], ["Op"], True),
        (None, ["Admin"], False),
        ([], [], False),
    ],
)
def test_users_and_roles_bound_who_may_name_it(
    monkeypatch: pytest.MonkeyPatch, users: Any, roles: Any, allowed: bool
) -> None:
    _configure(monkeypatch, {"a": {**ECHO, "users": users, "roles": roles}})

    (model,) = served_models().values()

    assert model.is_for("ann", ["Op", "Viewer"]) is allowed


def test_a_mistake_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, assert_sentences: AssertSentences
) -> None:
    def refused(models: Any) -> None:
        _configure(monkeypatch, models)
        served_models()

    assert_sentences(refused, SpecError)


def test_a_file_that_is_no_list_of_models_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "models.json"
    file.write_text("[]")
    _configure(monkeypatch, str(file))

    with pytest.raises(SpecError, match="it must be a JSON object of models by name, but it is"):
        served_models()
