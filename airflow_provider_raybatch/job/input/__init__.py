# SPDX-License-Identifier: Apache-2.0
"""From paths to rows: find the files, cut them into chunks, read a chunk."""
