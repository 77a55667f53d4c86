# SPDX-License-Identifier: Apache-2.0
"""Start replicas, run them in Ray Data, and supervise them."""
