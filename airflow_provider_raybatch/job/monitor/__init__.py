# SPDX-License-Identifier: Apache-2.0
"""What the driver knows of its replicas while they work, and when it stops them."""
