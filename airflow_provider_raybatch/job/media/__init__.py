# SPDX-License-Identifier: Apache-2.0
"""Images of rows: what may be read, how it is fetched and decoded, and what tells it apart."""
