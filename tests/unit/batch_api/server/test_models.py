# SPDX-License-Identifier: Apache-2.0
"""Models that a user may name."""

from __future__ import annotations

import json

import pytest

from tests.support.batch_server import BatchServer

MODELS = {
    "open": {"engine": "echo"},
    "team/of-users": {"engine": "echo", "roles": ["user", "viewer"]},
    "of-admin": {"engine": "echo", "users": ["admin", "guest"]},
}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", json.dumps(MODELS))


def test_each_user_sees_the_models_that_they_may_run(on_disk: BatchServer) -> None:
    """By the configuration and by Airflow, which lets a viewer run nothing."""

    def names(user: str) -> list[str]:
        return [one["id"] for one in on_disk.get("/models", user).json()["data"]]

    assert names("ann") == ["open", "team/of-users"]
    assert names("admin") == ["open", "of-admin"]
    assert names("viewer") == names("guest") == []


def test_who_may_run_no_model_stores_nothing(on_disk: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for user in ("viewer", "guest"):
        answer = on_disk.upload(user=user)
        assert (answer.status_code, answer.json()["error"]["type"]) == (403, "permission_error")
    assert on_disk.upload(user="ann").status_code == 200
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", json.dumps({"of-admin": MODELS["of-admin"]}))
    assert on_disk.upload(user="ann").status_code == 403
    assert [on_disk.get("/files", user).json()["data"] for user in ("viewer", "guest")] == [[], []]


def test_a_model_of_others_is_not_there(on_disk: BatchServer) -> None:
    assert on_disk.get("/models/team/of-users").json() == {
        "id": "team/of-users", "object": "model", "created": 0, "owned_by": "raybatch",
    }  # fmt: skip
    assert on_disk.get("/models/team%2Fof-users").status_code == 200
    answer, unknown = on_disk.get("/models/of-admin"), on_disk.get("/models/none")
    assert answer.status_code == unknown.status_code == 404
    assert answer.json() == unknown.json() == on_disk.get("/models/open", "viewer").json()
    assert answer.json()["error"]["code"] == "model_not_found"


def test_a_wrong_configuration_is_the_admins(
    on_disk: BatchServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", '{"secret-name": 1}')
    answer = on_disk.get("/models")
    assert answer.status_code == 503
    assert "secret-name" not in answer.text
