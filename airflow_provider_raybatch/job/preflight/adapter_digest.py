# SPDX-License-Identifier: Apache-2.0
"""What identifies the content of an adapter: its weights and its config, no other files of a trainer."""

from __future__ import annotations

import hashlib
from pathlib import Path

from airflow_provider_raybatch.contract.digest import hex_digest, json_digest
from airflow_provider_raybatch.job.preflight.model_version import content_of
from airflow_provider_raybatch.storage.folder import folder

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
"""In the order in which vLLM looks for them."""


def adapter_digest(location: str, commit: str) -> str:
    """32 hex digits over an adapter: of a folder by content, in S3 by sizes and entity tags.

    :param commit: the hub's, which stands for its content there.
    """
    if commit:
        return hex_digest(f"{location}@{commit}")
    if location.lower().startswith("s3://"):
        entries = folder(location).list(depth=1)
        return json_digest([(one.path, one.size, one.version) for one in entries if _counts(one.path)])
    state = hashlib.sha256()
    for path in sorted(file for file in Path(location).iterdir() if _counts(file.name)):
        state.update(f"{path.name}:{path.stat().st_size}\n".encode())
        for piece in content_of(path):
            state.update(piece)
    return state.hexdigest()[:32]


def _counts(name: str) -> bool:
    return name == CONFIG or name in WEIGHTS
