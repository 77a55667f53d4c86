# SPDX-License-Identifier: Apache-2.0
"""The phases of a job after its checks. Each takes and returns frozen values."""
