# SPDX-License-Identifier: Apache-2.0
"""The digest by which configurations, inputs and runs are told apart in names and fingerprints."""

from __future__ import annotations

import hashlib


def hex_digest(text: str) -> str:
    """128 bits of the SHA-256 of `text`, as 32 hex digits."""
    return hashlib.sha256(text.encode()).hexdigest()[:32]
