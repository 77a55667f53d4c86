# SPDX-License-Identifier: Apache-2.0
"""From a row to its request, and the key of that request."""
