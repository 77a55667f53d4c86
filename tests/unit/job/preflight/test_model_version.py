# SPDX-License-Identifier: Apache-2.0
"""What tells one version of a model from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.job.preflight import model_version


def test_weights_of_the_same_size_are_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_version, "_HASHED_WHOLE", 1024)
    weights = tmp_path / "model.safetensors"
    digests = set()
    for filling in (b"\0", b"\1"):
        weights.write_bytes(b"same head" + filling * 10_000_000)
        digests.add(model_version.model_digest(str(tmp_path), ""))
    assert len(digests) == 2
