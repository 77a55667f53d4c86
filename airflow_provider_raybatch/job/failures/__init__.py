# SPDX-License-Identifier: Apache-2.0
"""What failures mean: the class and the sentence of an exception, and many failed rows in one sentence."""
