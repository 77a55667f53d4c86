# SPDX-License-Identifier: Apache-2.0
"""The destination folder: who may publish there, what is published, and what is cleared away.

What reads or writes raises ``StorageError`` if the storage gives no answer.
"""
