# SPDX-License-Identifier: Apache-2.0
"""A load balancer in front of the API servers: each connection goes to one of those that accept it."""

from __future__ import annotations

import random
import socket

from ..frozen import FreezingProxy


class Balancer(FreezingProxy):
    """A context manager.

    :ivar ports: of the servers behind it, on this machine.
    """

    def __init__(self) -> None:
        super().__init__(0)
        self.ports: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _reached(self) -> socket.socket:
        """Connect to a random server that is alive.

        :raises OSError: all are dead.
        """
        for port in random.sample(self.ports, len(self.ports)):
            try:
                return socket.create_connection(("127.0.0.1", port))
            except OSError:
                continue
        raise ConnectionRefusedError("no server is alive")
