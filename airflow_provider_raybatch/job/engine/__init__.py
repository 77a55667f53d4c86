# SPDX-License-Identifier: Apache-2.0
"""The seam between rows and models."""
