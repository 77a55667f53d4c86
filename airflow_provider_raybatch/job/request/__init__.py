# SPDX-License-Identifier: Apache-2.0
"""From a row to what is asked of the model, and the key of that request."""
