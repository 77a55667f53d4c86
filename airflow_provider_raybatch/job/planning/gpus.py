# SPDX-License-Identifier: Apache-2.0
"""GPUs by the name that Ray gives them: memory, and how they are connected. Pure.

Memory is what CUDA reports as total, from which vLLM takes its share: less than the product's name says, and
less still with error correction (L4, A10G, T4). Sources: H200 measured (`benchmarks/results/kv_cache.md`).
L4 23,034 MiB and A10G 23,028 MiB by ``nvidia-smi`` in github.com/NVIDIA/TensorRT-LLM/issues/2398 and
github.com/vllm-project/vllm/issues/9373 (CUDA reports 0.45 GiB less); T4 14.58 GiB in
github.com/datawhalechina/self-llm/issues/162; L40S 44.53 GiB in github.com/Wan-Video/Wan2.1/issues/205. The
others, links and FP8 by NVIDIA's data sheets (FP8 since compute capability 8.9).

One name may stand for several products: "A100" for 40 and 80 GB, "H100" for 80 GB and for the NVL's 94.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

GIB = 1 << 30


@dataclass(frozen=True)
class Gpu:
    """A GPU that Ray names.

    :param name: Ray's ``accelerator_type``.
    :param memory: bytes that CUDA reports, of the smallest product with this name.
    :param largest: bytes that the largest product with this name can't exceed.
    :param has_nvlink: whether the GPUs of a node are usually connected by NVLink; else by PCIe, over which
        tensor parallel is slow. PCIe cards of A100, H100 and H200 have it between pairs at most.
    :param has_fp8: whether it computes in FP8. Others need FP8 weights converted in each step.
    """

    name: str
    memory: int
    largest: int
    has_nvlink: bool
    has_fp8: bool

    @property
    def link(self) -> str:
        """``NVLink`` or ``PCIe``."""
        return "NVLink" if self.has_nvlink else "PCIe"

    @property
    def is_several(self) -> bool:
        """Whether products of clearly different memory have this name."""
        return self.memory < 0.87 * self.largest

    @property
    def takes_large_batches(self) -> bool:
        """Whether vLLM's defaults are 16,384 tokens and 1,024 sequences a step, instead of 8,192 and 256."""
        return self.memory >= 70 * GIB and not self.name.startswith("A100")


def _gpu(name: str, gib: float, gigabytes: float, nvlink: bool, fp8: bool) -> Gpu:
    """`gigabytes` as in the largest product's name, which count 2**30 bytes on some cards."""
    return Gpu(name, int(gib * GIB), int(gigabytes * GIB), nvlink, fp8)


_GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("T4", 14.58, 16, nvlink=False, fp8=False),
        _gpu("V100", 15.77, 32, nvlink=True, fp8=False),
        _gpu("L4", 22.03, 24, nvlink=False, fp8=True),
        _gpu("A10G", 22.03, 24, nvlink=False, fp8=False),
        _gpu("L40S", 44.4, 48, nvlink=False, fp8=True),
        _gpu("A100", 39.4, 80, nvlink=True, fp8=False),
        _gpu("A100-40G", 39.4, 40, nvlink=True, fp8=False),
        _gpu("A100-80G", 79.1, 80, nvlink=True, fp8=False),
        _gpu("RTX-PRO-6000", 94.9, 96, nvlink=False, fp8=True),
        _gpu("H20", 95.0, 141, nvlink=True, fp8=True),
        _gpu("H100", 79.1, 94, nvlink=True, fp8=True),
        _gpu("H200", 139.8, 141, nvlink=True, fp8=True),
        _gpu("B200", 178.0, 192, nvlink=True, fp8=True),
        _gpu("GB200", 184.0, 192, nvlink=True, fp8=True),
        _gpu("B300", 267.0, 288, nvlink=True, fp8=True),
        _gpu("GB300", 277.0, 288, nvlink=True, fp8=True),
    )
}


def gpu_named(accelerator_type: str | None) -> Gpu | None:
    """The GPU that Ray calls so; ``None`` for other names, about which nothing is known."""
    return _GPUS.get(accelerator_type or "")


def known_gpus(accelerator_types: Iterable[str | None]) -> tuple[Gpu, ...]:
    """The GPUs of a cluster by memory, the smallest first; empty if one of them is unknown."""
    found = [gpu_named(name) for name in set(accelerator_types)]
    known = [gpu for gpu in found if gpu is not None]
    return tuple(sorted(known, key=lambda gpu: gpu.memory)) if len(known) == len(found) else ()
