# SPDX-License-Identifier: Apache-2.0
"""Faults at chosen requests to the stand-in for a Kubernetes."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.support.kubernetes.refusals import RefusedError


class ConnectionLostError(Exception):
    """The client gets no answer."""


@dataclass(frozen=True)
class Request:
    """A request, as far as faults and tests look at it.

    :param verb: of Kubernetes: get, list, create, patch, delete; ``proxy`` for a service's.
    """

    verb: str
    kind: str
    namespace: str
    name: str
    subresource: str = ""
    user: str = ""


@dataclass
class Fault:
    """What happens at the requests that fit, instead of the plain answer.

    :param skip: requests that fit before it.
    :param times: how often it happens.
    :param code: an answer of this code; nothing is done.
    :param lost: the connection breaks: ``before`` anything is done, or ``after`` it was.
    :param seconds: pause before the rest.
    :param call: called first, for what happens in between (a kill, a deletion by others).
    """

    verb: str = ""
    kind: str = ""
    skip: int = 0
    times: int = 1
    code: int = 0
    lost: str = ""
    seconds: float = 0.0
    call: Callable[[Request], object] | None = None

    def fits(self, request: Request) -> bool:
        return self.verb in {"", request.verb} and self.kind in {"", request.kind}


_REASONS = {
    429: ("TooManyRequests", "the server has received too many requests and has asked us to try again later"),
    500: ("InternalError", "an error on the server has prevented the request from succeeding"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
    504: ("Timeout", "Timeout: request did not complete within the allotted timeout"),
}


@dataclass
class Faults:
    """Faults that are still to happen, and every request so far."""

    staged: list[Fault] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    down: bool = False
    """Whether every connection breaks."""

    def stage(self, **fault: Any) -> Fault:
        """Let a :class:`Fault` happen."""
        self.staged.append(Fault(**fault))
        return self.staged[-1]

    def around(self, request: Request, act: Callable[[], Any]) -> Any:
        """Do what a request asks, with the fault that is due."""
        self.requests.append(request)
        if self.down:
            raise ConnectionLostError
        if (fault := self._due(request)) is None:
            return act()
        if fault.call is not None:
            fault.call(request)
        time.sleep(fault.seconds)
        if fault.code:
            raise RefusedError(fault.code, *_REASONS[fault.code], after=1 if fault.code == 429 else None)
        if fault.lost == "before":
            raise ConnectionLostError
        if fault.lost:
            with suppress(RefusedError):
                act()
            raise ConnectionLostError
        return act()

    def _due(self, request: Request) -> Fault | None:
        for fault in self.staged:
            if not fault.fits(request):
                continue
            if fault.skip:
                fault.skip -= 1
                continue
            fault.times -= 1
            if fault.times <= 0:
                self.staged.remove(fault)
            return fault
        return None
