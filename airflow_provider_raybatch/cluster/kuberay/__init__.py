# SPDX-License-Identifier: Apache-2.0
"""Ray clusters on Kubernetes: made for a run by KubeRay, or found by name."""
