# SPDX-License-Identifier: Apache-2.0
"""A store that has one answer to all requests, over HTTP or with a certificate."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HOST = "localhost"


@contextmanager
def answering(
    status: int, body: str = "", pem: Path | None = None, asked: list[str] | None = None
) -> Iterator[str]:
    """Serve, and hand out the URL. As with S3, the answer to a HEAD has no body.

    :param pem: key and certificate of a server that speaks TLS.
    :param asked: gets the path of each request, of a proxied one the URL.
    """

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            if asked is not None:
                asked.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_: None  # type: ignore[method-assign] # clients leave, that is the test
    if pem is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"{'http' if pem is None else 'https'}://{HOST}:{server.server_port}"
    server.shutdown()
    server.server_close()


class Authority:
    """A certificate authority that only those know who are told.

    :ivar pem: the file of its own certificate.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _name("the authority of a test")
        self.pem = folder / "authority.pem"
        self.pem.write_bytes(_pem(self._sign(self._name, self._key, ca=True)))

    def server(self, host: str = HOST, days: int = 1) -> Path:
        """Return the file of a key and a certificate for `host`, which ends in `days`."""
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._folder / f"{host}{days}.pem"
        secret = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(secret + _pem(self._sign(_name(host), key, host, days)))
        return path

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        host: str = HOST,
        days: int = 1,
        ca: bool = False,
    ) -> x509.Certificate:
        now = datetime.now(timezone.utc)  # noqa: UP017 - this runs on Python 3.10, too
        return (
            x509
            .CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=9))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
            .sign(self._key, hashes.SHA256())
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
