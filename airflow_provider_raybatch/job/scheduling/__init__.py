# SPDX-License-Identifier: Apache-2.0
"""Which replica gets which rows: plain objects without I/O or a clock of their own."""
