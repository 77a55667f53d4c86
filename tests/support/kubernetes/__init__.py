# SPDX-License-Identifier: Apache-2.0
"""A STAND-IN for a Kubernetes with KubeRay: no Kubernetes runs here, and no KubeRay.

It follows what Kubernetes' documentation and KubeRay's source say, as far as this provider sees it. What
holds on it alone is not yet shown on a Kubernetes: the scenes run on a real one, too (CONTRIBUTING.md).
"""
