# SPDX-License-Identifier: Apache-2.0
"""KubeRay's objects: what is written into them, and what their states mean."""
