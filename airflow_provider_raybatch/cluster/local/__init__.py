# SPDX-License-Identifier: Apache-2.0
"""The private Ray of one node that a task starts for itself."""
