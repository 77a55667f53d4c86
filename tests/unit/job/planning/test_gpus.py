# SPDX-License-Identifier: Apache-2.0
"""What is known of GPUs by the names that Ray gives them."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.planning.engine_memory import GIB, gpu_named, known_gpus

NAMES = ("T4", "V100", "L4", "A10G", "L40S", "A100", "A100-40G", "A100-80G", "RTX-PRO-6000", "H20", "H100",
         "H200", "B200", "GB200", "B300", "GB300")  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_known_gpu_is_named_as_ray_names_it(name: str) -> None:
    accelerators = pytest.importorskip("ray.util.accelerators.accelerators")
    assert name in vars(accelerators).values()
    gpu = gpu_named(name)
    assert gpu is not None
    assert GIB * 14 < gpu.memory <= gpu.largest


@pytest.mark.parametrize(
    ("name", "link", "large", "several"),
    [
        ("L4", "PCIe", False, False),
        ("A10G", "PCIe", False, False),
        ("A100", "NVLink", False, True),
        ("A100-80G", "NVLink", False, False),
        ("H100", "NVLink", True, True),
        ("H200", "NVLink", True, False),
    ],
)
def test_link_and_defaults_of_a_gpu(name: str, link: str, large: bool, several: bool) -> None:
    gpu = gpu_named(name)
    assert gpu is not None
    assert (gpu.link, gpu.takes_large_batches, gpu.is_several) == (link, large, several)


def test_gpus_of_a_cluster_come_by_memory() -> None:
    assert [gpu.name for gpu in known_gpus({"H200", "L4", "H100"})] == ["L4", "H100", "H200"]
    assert known_gpus(()) == ()
