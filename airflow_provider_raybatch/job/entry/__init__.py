# SPDX-License-Identifier: Apache-2.0
"""From the command line to the driver."""
