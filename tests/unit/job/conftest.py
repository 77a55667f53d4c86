# SPDX-License-Identifier: Apache-2.0
"""Folders of each kind."""

from __future__ import annotations

from tests.support.folders import (  # noqa: F401 - fixtures
    brief,
    disk,
    fast_retries,
    folder,
    once,
    proxy,
    s3_server,
)
