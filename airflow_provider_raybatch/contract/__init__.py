# SPDX-License-Identifier: Apache-2.0
"""What both sides share: spec, manifest, events and failure classes. Imports pydantic alone."""
