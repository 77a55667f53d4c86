# SPDX-License-Identifier: Apache-2.0
"""Columns of text generation that only some jobs have, a module for each group."""
