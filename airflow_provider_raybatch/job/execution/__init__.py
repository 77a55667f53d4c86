# SPDX-License-Identifier: Apache-2.0
"""Which replica works on which rows. Nothing here does I/O, reads a clock or draws random numbers."""
