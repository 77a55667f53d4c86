# SPDX-License-Identifier: Apache-2.0
"""Arguments of the test DAGs' runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def batch(folder: Path, texts: Iterable[str], name: str = "rows", **conf: Any) -> dict[str, Any]:
    """Write a row for each text; return the params of a run that asks about them."""
    source = folder / f"{name}.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return {"source": str(source), "destination": f"{folder}/{name}", **conf}
