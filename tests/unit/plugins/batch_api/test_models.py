# SPDX-License-Identifier: Apache-2.0
"""Models that a user may name."""

from __future__ import annotations

import json

import pytest

from tests.support.batch_server import BatchServer

MODELS = {
    "open": {"engine": "echo"},
    "team/of-viewers": {"engine": "echo", "roles": ["viewer"]},
    "of-admin": {"engine": "echo", "users": ["admin"]},
}


@pytest.fixture(autouse=True)
def models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", json.dumps(MODELS))


def test_each_user_sees_the_models_of_their_own(on_disk: BatchServer) -> None:
    def names(user: str) -> list[str]:
        return [one["id"] for one in on_disk.get("/models", user).json()["data"]]

    assert names("viewer") == ["open", "team/of-viewers"]
    assert names("admin") == ["open", "of-admin"]


def test_a_model_of_others_is_not_there(on_disk: BatchServer) -> None:
    assert on_disk.get("/models/team/of-viewers").json() == {
        "id": "team/of-viewers", "object": "model", "created": 0, "owned_by": "raybatch",
    }  # fmt: skip
    assert on_disk.get("/models/team%2Fof-viewers").status_code == 200
    answer, unknown = on_disk.get("/models/of-admin"), on_disk.get("/models/none")
    assert answer.status_code == unknown.status_code == 404
    assert answer.json() == unknown.json()
    assert answer.json()["error"]["code"] == "model_not_found"


def test_a_wrong_configuration_is_the_admins(
    on_disk: BatchServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", '{"secret-name": 1}')
    answer = on_disk.get("/models")
    assert answer.status_code == 503
    assert "secret-name" not in answer.text
