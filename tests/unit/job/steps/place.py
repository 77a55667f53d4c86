# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace

GREEDY = {"temperature": 0}


class Place(EchoPlace):
    """With a destination of its own for each job, and a response store for all."""

    def run(self, number: int, rows: list[dict[str, Any]], steps: list[dict[str, Any]], **fields: Any) -> Any:
        """Run a job; return its rows and how many requests it has made."""
        self.folder = LocalFolder(str(self.root / f"out-{fields.pop('to', number)}"))
        before = self.generated()
        given = {"sampling": GREEDY, "reuse": str(self.root / "store"), **fields}
        manifest = self.job(number, rows, steps=steps, **given)
        return self.rows(manifest), self.generated() - before
