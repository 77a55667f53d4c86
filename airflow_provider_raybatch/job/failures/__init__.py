# SPDX-License-Identifier: Apache-2.0
"""From an exception to a failure class and one sentence."""
