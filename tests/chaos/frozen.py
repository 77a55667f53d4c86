# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that freezes connections like a network partition: no byte arrives, no connection ends."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

_BYTES = 65536


class FreezingProxy:
    """A context manager.

    :param port: port on this machine to which it forwards.
    """

    def __init__(self, port: int) -> None:
        self._behind = ("127.0.0.1", port)
        self._flows = threading.Event()
        self._flows.set()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._server.getsockname()[1]

    def __enter__(self) -> FreezingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.thaw()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()

    def freeze(self) -> None:
        """Hold back all bytes, of old and new connections, in both directions."""
        self._flows.clear()

    def thaw(self) -> None:
        """Send the held bytes, and forward all that follow."""
        self._flows.set()

    def _accept(self) -> None:
        with suppress(OSError):  # the server is closed
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def _join(self, client: socket.socket) -> None:
        self._flows.wait()
        with client, suppress(OSError), self._reached() as server:
            back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            back.start()
            self._pump(client, server)
            back.join()

    def _reached(self) -> socket.socket:
        return socket.create_connection(self._behind)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                self._flows.wait()
                target.sendall(data)
        for end, side in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
            with suppress(OSError):
                end.shutdown(side)
