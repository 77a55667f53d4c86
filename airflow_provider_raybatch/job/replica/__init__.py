# SPDX-License-Identifier: Apache-2.0
"""One engine in a Ray Data actor, and the way of a row through it."""
