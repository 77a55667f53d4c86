# SPDX-License-Identifier: Apache-2.0
"""The parts of a report's page, in the order in which people ask."""
