# SPDX-License-Identifier: Apache-2.0
"""Answers as OpenAI's output and error files have them."""
