# SPDX-License-Identifier: Apache-2.0
"""Labels by which the big clouds' nodes tell their GPU; Kubernetes itself has none."""

from __future__ import annotations

_GKE = {
    "T4": "nvidia-tesla-t4",
    "V100": "nvidia-tesla-v100",
    "P4": "nvidia-tesla-p4",
    "P100": "nvidia-tesla-p100",
    "L4": "nvidia-l4",
    "A100": "nvidia-tesla-a100",
    "A100-40G": "nvidia-tesla-a100",
    "A100-80G": "nvidia-a100-80gb",
    "H100": "nvidia-h100-80gb",
    "H200": "nvidia-h200-141gb",
    "B200": "nvidia-b200",
    "GB200": "nvidia-gb200",
    "RTX-PRO-6000": "nvidia-rtx-pro-6000",
}
_KARPENTER = {
    **{kind: kind.lower() for kind in ("T4", "V100", "A10G", "L4", "L40S", "A100", "H100", "H200", "B200")},
    "A100-40G": "a100",
    "A100-80G": "a100",
}
_KARPENTER_MEMORY = {"A100-40G": "40960", "A100-80G": "81920"}
"""MiB of a GPU, where one name has two kinds."""

_LABELS = {
    "gke": ("cloud.google.com/gke-accelerator", _GKE),
    "eks": ("karpenter.k8s.aws/instance-gpu-name", _KARPENTER),
    "eks-auto": ("eks.amazonaws.com/instance-gpu-name", _KARPENTER),
}
CLOUDS = (*_LABELS, "aks")


def gpu_resource(accelerator_type: str | None) -> str:
    """Kubernetes' name for the GPUs of an accelerator, and for the taint of their nodes."""
    return "amd.com/gpu" if (accelerator_type or "").startswith("AMD-") else "nvidia.com/gpu"


def gpu_node_labels(cloud: str | None, accelerator_type: str | None) -> dict[str, str]:
    """Labels of the nodes with an accelerator; empty where none is known."""
    if cloud == "aks" and gpu_resource(accelerator_type) == "nvidia.com/gpu":
        return {"kubernetes.azure.com/accelerator": "nvidia"}  # AKS labels no model of a GPU
    if cloud not in _LABELS or accelerator_type is None:
        return {}
    label, names = _LABELS[cloud]
    if accelerator_type not in names:
        return {}
    found = {label: names[accelerator_type]}
    if names is _KARPENTER and accelerator_type in _KARPENTER_MEMORY:
        found[label.replace("gpu-name", "gpu-memory")] = _KARPENTER_MEMORY[accelerator_type]
    return found
