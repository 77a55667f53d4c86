# SPDX-License-Identifier: Apache-2.0
"""In which order rows begin, and which are left to do."""
