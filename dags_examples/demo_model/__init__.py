# SPDX-License-Identifier: Apache-2.0
"""A small Llama-architecture model for demos and tests, with the generator of its data (see README.md)."""
