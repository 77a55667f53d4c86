# SPDX-License-Identifier: Apache-2.0
"""Which rows need not be paid for, and how they get the responses that exist already.

What reads or writes raises ``StorageError`` if the storage gives no answer.
"""
