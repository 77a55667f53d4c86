# SPDX-License-Identifier: Apache-2.0
"""The clusters that tasks use: one made for each run, one that exists, and one that tasks lease."""
