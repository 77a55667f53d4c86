# SPDX-License-Identifier: Apache-2.0
"""Every size of a job, and whether a cluster can hold it."""
