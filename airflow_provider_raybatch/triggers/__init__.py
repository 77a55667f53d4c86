# SPDX-License-Identifier: Apache-2.0
"""Triggers that follow Ray jobs while their tasks are deferred."""
