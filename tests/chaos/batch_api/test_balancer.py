# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import threading

import pytest

from ...integration.end_to_end.ports import free_ports
from .balancer import Balancer


@pytest.fixture
def balancer():
    with Balancer() as balancer:
        yield balancer


def answer_of(balancer: Balancer) -> bytes:
    with socket.create_connection(("127.0.0.1", balancer.port)) as client:
        client.shutdown(socket.SHUT_WR)
        return client.recv(10)


def test_dead_server_gets_no_connection(balancer):
    with socket.create_server(("127.0.0.1", 0)) as alive:

        def serve() -> None:
            for _ in range(5):
                client, _ = alive.accept()
                with client:
                    client.sendall(b"alive")

        threading.Thread(target=serve, daemon=True).start()
        balancer.ports = [*free_ports(2), alive.getsockname()[1]]
        assert [answer_of(balancer) for _ in range(5)] == [b"alive"] * 5


def test_connection_ends_where_all_servers_are_dead(balancer):
    balancer.ports = free_ports(2)
    assert answer_of(balancer) == b""
