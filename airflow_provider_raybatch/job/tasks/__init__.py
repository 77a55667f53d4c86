# SPDX-License-Identifier: Apache-2.0
"""What one row asks of an engine and what it yields, a module for each kind of task."""
