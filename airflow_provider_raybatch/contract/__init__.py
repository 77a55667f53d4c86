# SPDX-License-Identifier: Apache-2.0
"""The words both wings share: spec, manifest, events and failure classes.

Only pydantic and the standard library.
"""
