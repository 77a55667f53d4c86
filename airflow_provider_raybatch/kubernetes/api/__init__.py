# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server: credentials, requests, and what its refusals mean."""
