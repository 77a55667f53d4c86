# SPDX-License-Identifier: Apache-2.0
"""What the plugin's pages show, built of the data that it read."""
