# SPDX-License-Identifier: Apache-2.0
"""What can be known of input and model before an engine starts."""
