# SPDX-License-Identifier: Apache-2.0
"""The destination folder: who may publish there, what is published, and what is cleared away."""
