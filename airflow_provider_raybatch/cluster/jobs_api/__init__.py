# SPDX-License-Identifier: Apache-2.0
"""A client of Ray's Jobs REST API: address, transport, errors, models."""
