# SPDX-License-Identifier: Apache-2.0
"""What reaches a running driver from outside: its secrets, its followers' orders, and a stop."""
