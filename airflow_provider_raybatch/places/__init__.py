# SPDX-License-Identifier: Apache-2.0
"""Where the jobs of a task's runs are: on a cluster that a connection names."""
