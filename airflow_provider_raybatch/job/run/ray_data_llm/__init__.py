# SPDX-License-Identifier: Apache-2.0
"""The engine ``ray_data_llm``: Ray's own processor between our reader and our writer."""
