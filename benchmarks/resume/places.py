# SPDX-License-Identifier: Apache-2.0
"""Locations of input, destination, checkpoint and response store of the benchmark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

INPUT, DESTINATION, CHECKPOINT, STORE = "in", "out", "checkpoint", "store"


@dataclass(frozen=True)
class Place:
    """The location of a prepared state.

    :param root: a local folder, or a bucket behind `endpoint`.
    :param local: a local folder in both cases.
    """

    root: str
    local: Path
    endpoint: str = ""

    @property
    def credentials(self) -> Any:
        """Credentials of the bucket."""
        from airflow_provider_raybatch.contract.secrets import AwsCredentials

        if not self.endpoint:
            return None
        return AwsCredentials(
            aws_access_key_id="key", aws_secret_access_key="secret", endpoint_url=self.endpoint
        )

    def folder(self, name: str) -> Any:
        """Return one of its folders."""
        from airflow_provider_raybatch.storage.folder import folder

        return folder(f"{self.root}/{name}", self.credentials)
