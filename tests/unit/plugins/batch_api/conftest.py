# SPDX-License-Identifier: Apache-2.0
"""Folders of each kind."""

from __future__ import annotations

from tests.support.folders import disk, folder, s3_server  # noqa: F401 - fixtures
