# SPDX-License-Identifier: Apache-2.0
"""Functions that make columns of rows and responses, on the cluster."""

from __future__ import annotations

from typing import Any


def parse(row: dict[str, Any], response: str) -> dict[str, Any]:
    """The last word as a number; a row without one fails."""
    number = int(response.split()[-1])
    return {"number": number if number % 2 else number / 2, "same": response == f"Say {row['text']}"}


def shout(row: dict[str, Any], response: str) -> dict[str, Any]:
    """Needs no number."""
    return {"loud": response.upper()}


def alone(row: dict[str, Any]) -> dict[str, Any]:
    """Takes no response."""
    return {}
