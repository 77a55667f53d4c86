# SPDX-License-Identifier: Apache-2.0
"""Commands of pods: as KubeRay writes them, and as they run beside other Rays of a machine."""

from __future__ import annotations

from tests.support.kubernetes.ray_start import local_command, start_command


def test_a_head_gets_what_its_container_has() -> None:
    resources = {"limits": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "2"}}
    template = {"spec": {"containers": [{"name": "ray", "resources": resources}]}}
    given = {"rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"}, "template": template}
    command = start_command(given, "head", autoscaled=True)
    assert command == (
        "ray start --head --block --dashboard-host=0.0.0.0 --memory=1073741824 --no-monitor --num-cpus=0 "
        "--num-gpus=2"
    )
    local = local_command(command, "/bin/ray", {"dashboard-host": "127.0.0.1", "port": 5})
    assert local[:3] == ["/bin/ray", "start", "--head"]
    assert {"--dashboard-host=127.0.0.1", "--port=5", "--num-gpus=2"} <= set(local)
    assert "--dashboard-host=0.0.0.0" not in local


def test_resources_in_quotes_stay_one_argument() -> None:
    template = {"spec": {"containers": [{"name": "ray", "resources": {"limits": {"cpu": "3500m"}}}]}}
    parameters = {"resources": "'{\"accelerator_type:H100\": 1}'"}
    command = start_command({"rayStartParams": parameters, "template": template}, "worker", autoscaled=True)
    assert "--num-cpus=4" in command
    local = local_command(command, "/bin/ray", {"address": "127.0.0.1:5"})
    assert {'--resources={"accelerator_type:H100": 1}', "--address=127.0.0.1:5"} <= set(local)
