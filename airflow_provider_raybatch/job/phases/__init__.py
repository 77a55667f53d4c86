# SPDX-License-Identifier: Apache-2.0
"""The phases of a job after its checks, each over what the phases before it have set."""
