# SPDX-License-Identifier: Apache-2.0
"""Requests become responses: the pool of replicas and its queue, and work that needs CPUs alone."""
