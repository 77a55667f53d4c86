# SPDX-License-Identifier: Apache-2.0
"""Sensors that wait for Ray jobs submitted elsewhere."""
