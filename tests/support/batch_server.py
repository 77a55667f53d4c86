# SPDX-License-Identifier: Apache-2.0
"""The Batch API's app in this process, called with tokens of Airflow's own users."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from fastapi.testclient import TestClient

from airflow_provider_raybatch.batch_api.server.app import make_batch_app
from airflow_provider_raybatch.batch_api.store.settings import batch_api_settings
from airflow_provider_raybatch.batch_api.store.store import BatchStore, batch_store
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.airflow_server import token as token_of
from tests.support.s3_server import S3Server

SECRET = "the secret of the Airflow of these tests"
MODELS = "AIRFLOW__RAYBATCH__BATCH_API_MODELS"
LINE = b'{"custom_id": "a"}\n'


class BatchServer:
    """The app, as clients see it."""

    def __init__(self, app: Any) -> None:
        self.app = app
        # Its own way to answer defects is tested, too.
        self.client = TestClient(app, base_url="http://server", raise_server_exceptions=False)

    def ask(self, method: str, path: str, user: str | None = "ann", **options: Any) -> Any:
        """Ask with a user's token; ``None`` is anonymous."""
        login = {} if user is None else {"Authorization": f"Bearer {token_of(user)}"}
        headers = {**login, **options.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **options)

    def get(self, path: str, user: str | None = "ann", **options: Any) -> Any:
        return self.ask("GET", path, user, **options)

    def delete(self, path: str, user: str | None = "ann") -> Any:
        return self.ask("DELETE", path, user)

    def upload(self, content: bytes = LINE, user: str = "ann", name: str = "a.jsonl", **fields: Any) -> Any:
        """Upload a file as clients do."""
        form = {"purpose": "batch", **fields}
        return self.ask("POST", "/files", user, data=form, files={"file": (name, content)})

    def file(self, content: bytes = LINE, user: str = "ann", **fields: Any) -> dict[str, Any]:
        """Upload a file that is accepted, and return it."""
        answer = self.upload(content, user, **fields)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def batch_server(patch: pytest.MonkeyPatch, root: Folder, s3: S3Server | None = None) -> BatchServer:
    """The app with its state in a folder, and with one model if none is configured.

    :param s3: the server of a bucket, which is reached by a connection.
    """
    patch.setenv("AIRFLOW__RAYBATCH__BATCH_API_ROOT", root.uri)
    patch.setenv("AIRFLOW__RAYBATCH__BATCH_API_SECRET", SECRET)
    if MODELS not in os.environ:
        patch.setenv(MODELS, '{"small": {"engine": "echo", "dag_id": "nightly"}}')
    if isinstance(root, S3Folder):
        assert s3 is not None
        connection = {"conn_type": "aws", **s3.connection()}
        patch.setenv("AIRFLOW_CONN_BATCH_API_LAKE", json.dumps(connection))
        patch.setenv("AIRFLOW__RAYBATCH__BATCH_API_AWS_CONN_ID", "batch_api_lake")
    app = make_batch_app()
    assert app is not None
    return BatchServer(app)


def store_of_server() -> BatchStore:
    """The store that the app's settings name, as another process opens it."""
    settings = batch_api_settings()
    assert settings is not None
    return batch_store(settings)
