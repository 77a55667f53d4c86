# SPDX-License-Identifier: Apache-2.0
"""Engines: from requests to responses."""
