# SPDX-License-Identifier: Apache-2.0
"""Models in a bucket, and on a Hugging Face hub of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_raybatch.storage.folder import folder
from tests.support.hub import Hub, serving
from tests.support.s3_server import S3Server


@pytest.fixture
def put(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Write a model's files into a bucket, to which this process has access. Returns the model's name."""
    bucket = s3_server.new_bucket()
    s3_server.open_to_this_process(monkeypatch)

    def write(**files: bytes) -> str:
        for name, content in files.items():
            folder(f"s3://{bucket}/m", s3_server.credentials).write(name, content)
        return f"s3://{bucket}/m"

    return write


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The node's cache of the hub's files."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import constants

    with serving() as hub:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        url = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url)
        yield hub
