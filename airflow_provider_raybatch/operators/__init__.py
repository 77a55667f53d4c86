# SPDX-License-Identifier: Apache-2.0
"""Operators that submit Ray jobs, follow them and hand over what they made."""
