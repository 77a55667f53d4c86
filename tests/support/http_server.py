# SPDX-License-Identifier: Apache-2.0
"""An HTTP server in a thread of this process, with a certificate where a test wants TLS."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "localhost"


class Handler(BaseHTTPRequestHandler):
    """Answers without a log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else a body waits 40 ms until its head is confirmed

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def send(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        """Answer; as with real servers, the answer to a HEAD has no body."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def listening(handler: type[Handler], pem: Path | None = None, clients: Path | None = None) -> Iterator[int]:
    """Serve on a free port of the loopback interface, which is yielded.

    :param pem: key and certificate of a server that speaks TLS.
    :param clients: certificate of the authority that each client must have a certificate of.
    """
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients may leave
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        if clients is not None:
            context.load_verify_locations(clients)
            context.verify_mode = ssl.CERT_REQUIRED
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def out_of_reach(kind: str) -> Iterator[str]:
    """The address of a server that gives no answer: `unknown` has no address, `closed` no listener, and
    `silent` accepts connections."""
    if kind == "unknown":
        yield "http://no-such-host.invalid"
        return
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if kind == "closed":
            server.close()
        yield address


OUT_OF_REACH = ("unknown", "closed", "silent")


class Authority:
    """A certificate authority that only its own file makes known.

    :ivar pem: the file of its own certificate.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name("the authority of a test")
        self.pem = folder / "authority.pem"
        self.pem.write_bytes(self._sign(self._name, self._key, [HOST], ca=True))

    def server(self, *hosts: str, days: int = 1) -> Path:
        """Return the file of a key and a certificate for names or addresses, which ends in `days`."""
        return self._issue("server.pem", "a server of a test", hosts or [HOST], days)

    def client(self, name: str) -> Path:
        """Return the file of a key and a certificate with which a client shows its name."""
        return self._issue(f"{name}.pem", name, [HOST], 1)

    def _issue(self, file: str, name: str, hosts: Iterable[str], days: int) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._folder / file
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(secret + self._sign(_name(name), key, hosts, days))
        return path

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        hosts: Iterable[str],
        days: int = 1,
        ca: bool = False,
    ) -> bytes:
        now = datetime.now(timezone.utc)  # noqa: UP017 - this runs on Python 3.10, too
        certificate = (
            x509
            .CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=9))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
            .add_extension(x509.SubjectAlternativeName([_host(one) for one in hosts]), False)
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
