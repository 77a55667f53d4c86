# SPDX-License-Identifier: Apache-2.0
"""What is submitted, and which of a task's submissions counts."""
