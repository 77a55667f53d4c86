# SPDX-License-Identifier: Apache-2.0
"""A job from its submission to its end: what is read of it, what that means, and the loop around it."""
