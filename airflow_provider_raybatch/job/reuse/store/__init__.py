# SPDX-License-Identifier: Apache-2.0
"""The response store: equal requests get their response from here instead of an engine."""
