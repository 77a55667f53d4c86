# SPDX-License-Identifier: Apache-2.0
"""The process in which an engine runs, and how a replica speaks with it."""
