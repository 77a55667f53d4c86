# SPDX-License-Identifier: Apache-2.0
"""How to reach a Ray cluster from outside: its Jobs API, what is shipped to it, a private one by default."""
