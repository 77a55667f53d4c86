# SPDX-License-Identifier: Apache-2.0
"""A report as people read it: a page, and a card. Of `contract/` and the standard library alone."""
