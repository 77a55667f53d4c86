# SPDX-License-Identifier: Apache-2.0
"""HTTP to a dashboard: timeouts, bounded retries with jitter, one sentence for each failure."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self, TypedDict, TypeVar, Unpack

import httpx

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.jobs_api.errors import (
    AnswerTooLargeError,
    AuthenticationError,
    ClusterError,
    ClusterUnreachableError,
    NotARayDashboardError,
    PackageTooLargeError,
    RequestRejectedError,
    TlsError,
)
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import plain_reason

Result = TypeVar("Result")

_LARGEST_ANSWER = 128 * 2**20
_LARGEST_REFUSAL = 2**20
_LITTLE = 64 * 1024
"""Bytes that are parsed at once in the event loop."""

_LONGEST_EXCERPT = 300
_DEAD = re.compile(r"\b(?:dead|died|not alive|terminated)\b", re.IGNORECASE)
_WHOLE_ANSWER = 10
"""How many request timeouts an answer may take from its first byte to its last."""

_MOST_AT_ONCE = 32
"""Requests in flight; the HTTP library's pool needs quadratic time if hundreds wait inside it."""


@dataclass(frozen=True)
class RetryPolicy:
    """How often a request that is safe to repeat is tried.

    :param attempts: tries in all.
    :param first_wait: seconds, bound of the first wait; doubled each time.
    :param longest_wait: seconds, bound of this bound.
    """

    attempts: int = 4
    first_wait: float = 0.5
    longest_wait: float = 8.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the failed try number `attempt`, counted from 0."""
        return random.uniform(0, min(self.longest_wait, self.first_wait * 2**attempt))


class Sent(TypedDict, total=False):
    """What a request sends, as httpx takes it."""

    params: Mapping[str, str]
    json: object
    content: bytes


class Transport:
    """One HTTP client bound to one dashboard and to the event loop it was made in."""

    def __init__(self, address: ClusterAddress, retries: RetryPolicy) -> None:
        self._address = address
        self._retries = retries

    async def __aenter__(self) -> Self:
        address = self._address
        self._turns = asyncio.Semaphore(_MOST_AT_ONCE)
        verify = await address.tls()
        try:
            self._client = httpx.AsyncClient(
                headers=address.request_headers(),
                cookies=dict(address.cookies),
                verify=verify,
                # As many are kept as are used: by default the library closes all but 20 after each burst.
                limits=httpx.Limits(
                    max_connections=_MOST_AT_ONCE,
                    max_keepalive_connections=_MOST_AT_ONCE,
                    keepalive_expiry=5.0,
                ),
                timeout=httpx.Timeout(address.request_timeout, connect=address.connect_timeout),
                proxy=address.access.proxy if address.access else None,
                trust_env=not address.is_direct,
            )
        except (ImportError, ValueError) as error:
            raise SpecError(
                f"url: the proxy that this machine's environment names can't be used ({error}); correct "
                "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY, or name the cluster in NO_PROXY."
            ) from None
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        repeat: bool = True,
        tolerated: int | None = None,
        most: int = _LARGEST_ANSWER,
        **sent: Unpack[Sent],
    ) -> httpx.Response:
        """Send one request; with `repeat`, again while no answer comes.

        :param path: relative to the address, such as ``api/jobs/``.
        :param tolerated: a status code that is handed back instead of raised.
        :param most: bytes of an answer that are read.
        :return: the answer, without its headers.
        :raises AnswerTooLargeError: it has more than `most` bytes.
        """
        once = partial(self._once, method, path, tolerated, most, **sent)
        for attempt in range(self._retries.attempts - 1 if repeat else 0):
            try:
                return await once()
            except ClusterUnreachableError:
                await asyncio.sleep(self._retries.wait(attempt))
        return await once()

    async def _once(
        self, method: str, path: str, tolerated: int | None, most: int, **sent: Unpack[Sent]
    ) -> httpx.Response:
        asked, access = f"{method} {path}", self._address.access
        login = await access.login.header() if access else None
        response = await self._send(asked, method, path, most, login, **sent)
        if access is not None and not response.is_success:
            before = access.refusal(self._address.shown, response.status_code, response.content)
            if before is not None and response.status_code == 401:
                # Ray has not seen the request.
                access.login.refused(login)
                login = await access.login.header()
                response = await self._send(asked, method, path, most, login, **sent)
                before = None
                if not response.is_success:
                    before = access.refusal(self._address.shown, response.status_code, response.content)
            if before is not None:
                raise before
        if response.is_success or response.status_code == tolerated:
            return response
        raise self.status_error(asked, response)

    async def _send(
        self, asked: str, method: str, path: str, most: int, login: str | None, **sent: Unpack[Sent]
    ) -> httpx.Response:
        # httpx bounds the time between two bytes alone. An upload takes as long as its bytes do.
        bound = None if "content" in sent else _WHOLE_ANSWER * self._address.request_timeout
        access = self._address.access
        headers = {"Authorization": login} if login else {}
        names = {"sni_hostname": access.server_name} if access and access.server_name else {}
        url = self._address.base + path
        try:
            async with (
                self._turns,
                asyncio.timeout(bound),
                self._client.stream(method, url, headers=headers, extensions=names, **sent) as answer,
            ):
                return await self._read(answer, asked, most)
        except (httpx.HTTPError, ssl.SSLError) as error:  # the latter comes while an answer is read
            raise self._transport_error(error) from error
        except httpx.InvalidURL as error:
            raise SpecError(
                f"url: {self._address.shown!r} is not an address that a request can be sent to ({error}); "
                "correct it."
            ) from None
        except TimeoutError:
            raise ClusterUnreachableError(
                f"The Ray cluster at {self._address.shown} gave no whole answer within {bound:.0f} s; check "
                "what lies between here and its dashboard."
            ) from None

    async def _read(self, answer: httpx.Response, asked: str, most: int) -> httpx.Response:
        """`answer` with its content, which is read as it comes: a log may be larger than the memory."""
        content, most = bytearray(), most if answer.is_success else _LARGEST_REFUSAL
        async for chunk in answer.aiter_bytes():
            content += chunk
            if len(content) > most:
                if not answer.is_success:
                    break
                raise AnswerTooLargeError(
                    f"The Ray cluster at {self._address.shown} answers {asked} with more than "
                    f"{most / 2**20:,.0f} MiB, which are not read.",
                    bytes(content),
                )
        return httpx.Response(answer.status_code, content=bytes(content))

    def _transport_error(self, error: Exception) -> ClusterError:
        url, cause, remedy = self._address.shown, tls_cause(error), self._address.ca_remedy
        if isinstance(cause, ssl.SSLCertVerificationError):
            return TlsError(f"The certificate of {url} is not trusted ({cause.verify_message}); {remedy}.")
        if cause is not None and not isinstance(cause, (ssl.SSLEOFError, ssl.SSLZeroReturnError)):
            return TlsError(
                f"TLS with {url} failed ({cause.reason or cause}); write http:// if it speaks plain HTTP, or "
                f"{remedy}."
            )
        if isinstance(error, (httpx.UnsupportedProtocol, httpx.TooManyRedirects)):
            return NotARayDashboardError(
                f"{url} redirects in a loop or to another server ({error}); correct the url."
            )
        what = plain_reason(error)
        if isinstance(error, httpx.RemoteProtocolError) and "illegal" in what:
            return NotARayDashboardError(
                f"{url} speaks no HTTP ({what}); give the port of Ray's dashboard, by default 8265."
            )
        return ClusterUnreachableError(
            f"The Ray cluster at {url} gave no answer ({what}); check that its dashboard runs and can be "
            "reached from here."
        )

    def status_error(self, asked: str, response: httpx.Response) -> ClusterError:
        """What an answer other than success to `asked`, a method and a path, means."""
        url, code, told = self._address.shown, response.status_code, excerpt(response.text)
        if code in {401, 403} and self._address.token_remedy:
            return AuthenticationError(
                f"The Ray cluster at {url} does not accept the token ({code}: {told}); "
                f"{self._address.token_remedy}"
            )
        if code == 401:
            return AuthenticationError(
                f"The Ray cluster at {url} requires a token (401: {told}); make it the connection's password "
                "(`ray get-auth-token` on the cluster prints it)."
            )
        if code == 403:
            return AuthenticationError(
                f"The Ray cluster at {url} refuses the token (403: {told}); make the cluster's own one the "
                "connection's password."
            )
        if code == 413:
            return PackageTooLargeError(
                f"{url} does not accept a body of this size (413: {told}); make the package smaller, or "
                "raise the limit of the proxy before the cluster."
            )
        # Ray's head turns a refusal of its own agent, a 400, into a 500 (``job_head.py``).
        refused_inside = "status code 400" in response.text
        if code in {408, 425, 429} or (code >= 500 and not refused_inside):
            state = "it may be starting, draining or overloaded"
            if _DEAD.search(told):
                state = "a node of it is dead, or its head restarts"
            return ClusterUnreachableError(
                f"The Ray cluster at {url} could not answer {asked} ({code}: {told}); {state}."
            )
        if code < 400 or code in {404, 405}:
            return NotARayDashboardError(
                f"{url} does not answer {asked} as a Ray dashboard does ({code}: {told}); correct "
                "the url or its path prefix."
            )
        return RequestRejectedError(f"The Ray cluster at {url} refused {asked} ({code}: {told}).")


async def in_thread_if_large(size: int, work: Callable[[], Result]) -> Result:
    """Call `work`; in a thread if it goes through many bytes, since others wait for this event loop."""
    return work() if size <= _LITTLE else await asyncio.to_thread(work)


def excerpt(text: str) -> str:
    """The telling line of an error body: the last one of a traceback, else the first one; no HTML."""
    if text.lstrip()[:1] == "<":
        return "an HTML page"
    lines = [line.strip() for line in text.splitlines() if any(map(str.isalnum, line))]
    if not lines:
        return "no text"
    line = lines[-1] if "Traceback" in text else lines[0]
    return line if len(line) <= _LONGEST_EXCERPT else line[: _LONGEST_EXCERPT - 3] + "..."


def tls_cause(error: BaseException | None) -> ssl.SSLError | None:
    """What TLS itself said, below the HTTP library's error; ``None`` if it said nothing."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    return error
