# SPDX-License-Identifier: Apache-2.0
"""Several questions about each row: which one comes next, and what the next one may read."""
