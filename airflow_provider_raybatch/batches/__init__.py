# SPDX-License-Identifier: Apache-2.0
"""Files and batches of the Batch API: what the API server and the tasks both read and write."""
