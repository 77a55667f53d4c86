# SPDX-License-Identifier: Apache-2.0
"""Which addresses a source behind a URL may be read from.

A server may redirect to any address, and the job can reach the cluster's own network, and the service that
gives a node its credentials.
"""

from __future__ import annotations

import ipaddress
from enum import Enum
from typing import TypeAlias

_Address: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        ("168.63.129.16", "100.100.100.200", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Services for nodes' credentials that are not link-local: Azure, Alibaba, Oracle, AWS, Google."""
_WITH_IPV4_AT_THE_END = tuple(
    map(ipaddress.IPv6Network, ("::/96", "::ffff:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48"))
)
"""IPv4-compatible, IPv4-mapped, and NAT64 (RFC 6052, RFC 8215)."""


class Reach(Enum):
    """Who can be at an address."""

    PUBLIC = "public"
    PRIVATE = "private"
    """This machine, its network, or a range without a meaning of its own."""
    NEVER = "link-local"
    """Link-local, where clouds serve a node's credentials, or another such service."""


def reach_of(address: str) -> Reach:
    """Who can be at an IP address. An IPv6 address that carries one of IPv4 is judged by that."""
    ip = _carried(ipaddress.ip_address(address.partition("%")[0]))
    if ip.is_link_local or ip in _METADATA:
        return Reach.NEVER
    is_local = ip.is_multicast or (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local)
    return Reach.PUBLIC if ip.is_global and not is_local else Reach.PRIVATE


def _carried(ip: _Address) -> _Address:
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if any(ip in network for network in _WITH_IPV4_AT_THE_END):
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.sixtofour or (ip.teredo[1] if ip.teredo else ip)
