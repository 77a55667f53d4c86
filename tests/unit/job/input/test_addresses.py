# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.input.guarded_http import Reach, reach_of

ADDRESSES = {
    Reach.PUBLIC: ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
    Reach.PRIVATE: [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "192.0.2.1"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fd12::1", "fec0::1", "ff02::1", "2001:db8::1"),
        *("::ffff:10.0.0.1", "::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"),
    ],
    Reach.NEVER: [
        *("169.254.169.254", "169.254.170.2", "fe80::1", "fe80::1%eth0", "168.63.129.16", "100.100.100.200"),
        *("fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "::ffff:a9fe:a9fe", "::a9fe:a9fe"),
        *("64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:168.63.129.16"),
    ],
}


@pytest.mark.parametrize(
    ("address", "reach"), [(address, reach) for reach, several in ADDRESSES.items() for address in several]
)
def test_reach_of_an_address(address: str, reach: Reach) -> None:
    assert reach_of(address) is reach
