# SPDX-License-Identifier: Apache-2.0
"""What is done already: the parts of a task, and what they come to."""
