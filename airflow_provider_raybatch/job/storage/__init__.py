# SPDX-License-Identifier: Apache-2.0
"""Folders on local disks and in S3, and what is tried again when they fail."""
