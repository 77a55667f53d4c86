# SPDX-License-Identifier: Apache-2.0
"""What one row asks and yields."""
