# SPDX-License-Identifier: Apache-2.0
"""What a line of an OpenAI batch file asks, by a list of what it may ask."""
