# SPDX-License-Identifier: Apache-2.0
"""OpenAI's Batch API: files and batches as they are kept, and as clients see them."""
