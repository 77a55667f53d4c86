# SPDX-License-Identifier: Apache-2.0
"""What is done already: the parts of a task, and what they come to.

What reads or writes raises ``StorageError`` if the storage gives no answer.
"""
