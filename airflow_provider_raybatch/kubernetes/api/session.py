# SPDX-License-Identifier: Apache-2.0
"""HTTP to a Kubernetes API server: bounded requests, careful repeats, the server's clock.

The requests go by httpx, as those to Ray do, and not by ``kubernetes_asyncio``'s client: that one writes
each body to the debug log, Secrets included, makes its TLS context in the event loop, and drops fields that
its models lack.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Self

import httpx

from airflow_provider_raybatch.cluster.jobs_api.access import tls_context
from airflow_provider_raybatch.cluster.jobs_api.errors import ClusterError, TlsError
from airflow_provider_raybatch.cluster.jobs_api.transport import RetryPolicy, tls_cause
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import plain_reason
from airflow_provider_raybatch.kubernetes.api.errors import ApiRefusal, ApiRequest, KubernetesUnreachableError
from airflow_provider_raybatch.kubernetes.api.server import ApiServer

_MOST_AT_ONCE = 32

RETRIES = RetryPolicy(attempts=5)


@dataclass(frozen=True)
class Call:
    """One request.

    :param repeat: whether it may be sent again when it may have been done already.
    """

    method: str
    path: str
    request: ApiRequest
    params: Mapping[str, str] | None = None
    body: object = None
    content_type: str = "application/json"
    repeat: bool = True


class RefusedRequestError(Exception):
    """An answer other than success that the caller of :meth:`Session.send` may understand."""

    def __init__(self, refusal: ApiRefusal) -> None:
        super().__init__(refusal.code)
        self.refusal = refusal


class Session:
    """Connections to one API server, of one event loop; entered with ``async with``.

    :param request_timeout: seconds that one request may take.
    """

    def __init__(
        self, server: ApiServer, *, retries: RetryPolicy = RETRIES, request_timeout: float = 30.0
    ) -> None:
        self._server = server
        self._retries = retries
        self._request_timeout = request_timeout
        self._clock: tuple[float, float] | None = None

    async def __aenter__(self) -> Self:
        access = self._server.access
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        is_tls = self._server.url.startswith("https:")
        verify = await tls_context(self._server.verify, access.certificate) if is_tls else False
        try:
            self._client = httpx.AsyncClient(
                verify=verify,
                proxy=access.proxy,
                headers={"User-Agent": "airflow-provider-raybatch", "Accept": "application/json"},
                limits=httpx.Limits(max_connections=_MOST_AT_ONCE, max_keepalive_connections=_MOST_AT_ONCE),
                timeout=httpx.Timeout(self._request_timeout, connect=min(10.0, self._request_timeout)),
                trust_env=not access.direct,
            )
        except (ImportError, ValueError) as error:
            raise SpecError(
                f"{self._server.credentials}: the proxy on the way to the Kubernetes API server can't be "
                f"used ({error}); correct `proxy-url`, or HTTPS_PROXY."
            ) from None
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    def now(self) -> float:
        """Epoch seconds by the server's clock; by this machine's before the first answer."""
        if self._clock is None:
            return time.time()
        server, here = self._clock
        return server + time.monotonic() - here

    async def send(self, call: Call) -> dict[str, Any]:
        """Send a request; again while it is safe and no answer comes.

        :return: the object that the server answers with.
        :raises RefusedRequestError: the server answers with an error other than 401, 429 and 5xx.
        """
        renewed = False
        for attempt in range(self._retries.attempts):
            last = attempt == self._retries.attempts - 1
            header = await self._server.access.login.header()
            try:
                code, body = await self._once(call, header)
            except (httpx.HTTPError, ssl.SSLError) as error:  # the latter comes while an answer is read
                sent = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout)
                found = self._transport_error(call.request, error)
                if last or isinstance(found, TlsError) or (sent and not call.repeat):
                    raise found from error
                await asyncio.sleep(self._retries.wait(attempt))
                continue
            if code < 300:
                return self._object(call.request, code, body)
            refusal = ApiRefusal.read(code, body)
            if code == 401 and not renewed:
                renewed = True
                self._server.access.login.refused(header)
            elif not last and (code == 429 or (code >= 500 and call.repeat)):
                await asyncio.sleep(self._retries.wait(attempt))
            elif code in {401, 429} or code >= 500:
                raise self._server.refusal_error(call.request, refusal)
            else:
                raise RefusedRequestError(refusal)
        raise self._server.refusal_error(call.request, refusal)

    async def _once(self, call: Call, header: str | None) -> tuple[int, bytes]:
        access = self._server.access
        request = self._client.build_request(
            call.method,
            self._server.base + call.path,
            params=call.params,
            json=call.body if call.body is not None else None,
            headers={"Content-Type": call.content_type} | ({"Authorization": header} if header else {}),
            extensions={"sni_hostname": access.server_name} if access.server_name else {},
        )
        try:
            async with self._turns, asyncio.timeout(self._request_timeout):
                answer = await self._client.send(request)
        except TimeoutError:
            raise httpx.ReadTimeout(f"no whole answer within {self._request_timeout:.0f} s") from None
        self._set_clock(answer.headers.get("Date"))
        return answer.status_code, answer.content

    def _set_clock(self, date: str | None) -> None:
        try:
            self._clock = (parsedate_to_datetime(date or "").timestamp(), time.monotonic())
        except ValueError:
            return

    def _object(self, request: ApiRequest, code: int, body: bytes) -> dict[str, Any]:
        refusal = ApiRefusal.read(code, body)
        try:
            found = httpx.Response(code, content=body).json()
        except ValueError:
            found = None
        if isinstance(found, dict) and "kind" in found:
            return found
        raise KubernetesUnreachableError(
            f"{self._server.shown} does not answer as a Kubernetes API server does when asked to {request} "
            f"({code}: {refusal.message}); correct the server's address in {self._server.credentials}."
        )

    def _transport_error(self, request: ApiRequest, error: Exception) -> ClusterError:
        url, cause = self._server.shown, tls_cause(error)
        if cause is not None and not isinstance(cause, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            why = getattr(cause, "verify_message", None) or cause.reason or cause
            return TlsError(
                f"TLS with the Kubernetes API server at {url} failed ({why}); correct its address, "
                f"`certificate-authority` and the client certificate in {self._server.credentials}."
            )
        what = plain_reason(error)
        return KubernetesUnreachableError(
            f"The Kubernetes API server at {url} gave no answer when asked to {request} ({what}); check that "
            "it can be reached from here."
        )
