# SPDX-License-Identifier: Apache-2.0
"""The arguments of a batch inference, one module a group. The operator and the spec share their names."""
