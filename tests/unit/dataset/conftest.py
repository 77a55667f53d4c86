# SPDX-License-Identifier: Apache-2.0
"""Folders for these tests."""

from tests.support.folders import disk, folder, s3_server  # noqa: F401 - fixtures
