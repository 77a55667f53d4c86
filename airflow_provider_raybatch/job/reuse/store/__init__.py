# SPDX-License-Identifier: Apache-2.0
"""The response store: equal requests get their response from here instead of an engine.

All functions that read or write raise ``StorageError`` if the storage gives no answer; nothing is lost then.
"""
