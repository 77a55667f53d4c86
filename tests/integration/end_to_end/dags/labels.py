# SPDX-License-Identifier: Apache-2.0
"""Functions that compute columns from rows and responses, on the cluster."""

from __future__ import annotations

from typing import Any


def parse(row: dict[str, Any], response: str) -> dict[str, Any]:
    """Return the last word as a number; a row without one fails."""
    number = int(response.split()[-1])
    return {"number": number if number % 2 else number / 2, "same": response == f"Say {row['text']}"}
