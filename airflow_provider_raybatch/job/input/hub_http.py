# SPDX-License-Identifier: Apache-2.0
"""Requests to the Hugging Face hub, each made again while the hub or the network is in trouble.

By ``urllib`` and not by ``huggingface_hub``: nodes without vLLM lack it, its HTTP client changed between
versions, and a redirect is followed by the rules of
:mod:`~airflow_provider_raybatch.job.input.guarded_http`. The token goes to the hub alone.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.shown_uri import shown_uri
from airflow_provider_raybatch.contract.text import count_of, in_words
from airflow_provider_raybatch.job.input.guarded_http import GuardedRequest, build_opener, untrusted
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.retry import RETRY_LIMITS

_LONGEST = 330.0
"""Seconds after which no new attempt is made: the hub's limits count requests of five minutes."""
_FIRST_PAUSE = 0.5
_BLOCK = 1024 * 1024
_SILENCE = 10.0
"""Seconds without an answer after which a hub counts as out of reach."""
PING = "/api/"
"""Path that costs a hub nothing; any answer to it will do."""


@dataclass(eq=False)
class HubRefusedError(Exception):
    """The hub refuses a request, and would again.

    :param status: of HTTP.
    :param code: the hub's own word, such as ``EntryNotFound``; often empty.
    :param reason: its sentence; often empty.
    """

    status: int
    code: str
    reason: str


def endpoint() -> str:
    """The hub's address: ``HF_ENDPOINT`` of the environment, such as that of a mirror, or its own."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def is_offline() -> bool:
    """Whether the environment says that the hub must not be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in {"1", "ON", "YES", "TRUE"}


def refuse_silent_hub(what: str, remedy: str, hub: str, ask: Callable[[], object]) -> None:
    """Refuse a hub that can't be reached, before something tries for minutes to read from it.

    :param what: field and value, the beginning of the sentence.
    :param remedy: its end.
    :param ask: makes a request, and raises an exception if no answer comes.
    :raises StorageError: there was no answer for ten seconds.
    """
    silence, deadline = ["it does not answer"], time.monotonic() + _SILENCE

    def asking() -> None:
        while silence and time.monotonic() < deadline:
            try:
                ask()
                silence.clear()
            except Exception as error:  # each HTTP client raises its own
                silence[:] = [str(getattr(error, "reason", error)) or type(error).__name__]
                time.sleep(1)

    # The lookup of a name has no timeout, so it must not be waited for.
    asker = threading.Thread(target=asking, daemon=True)
    asker.start()
    asker.join(_SILENCE)
    if told := silence[:1]:  # the thread may still clear it
        raise StorageError(
            f"{what} is on the hub at {shown_uri(hub)}, which can't be reached from the cluster "
            f"({told[0]}); set HTTPS_PROXY, or HF_ENDPOINT to a mirror, on its nodes, {remedy}."
        )


def refuse_source_out_of_reach(source: str) -> None:
    """See :func:`refuse_silent_hub`; an offline hub is refused with another sentence."""
    if not is_offline():
        hub, remedy = endpoint(), "or copy the files into a bucket"
        refuse_silent_hub(f"source: {source}", remedy, hub, lambda: ping(hub))


def ping(hub: str) -> None:
    """Ask for any answer of the hub.

    :raises OSError: there is none.
    """
    with contextlib.suppress(HTTPError, StorageError):  # the next request says better what is refused
        try:
            build_opener().open(GuardedRequest(hub + PING), timeout=_SILENCE).close()
        except OSError as error:
            _check_certificate(hub, error)
            raise


def own_token() -> SecretStr | None:
    """The token of this machine, where ``huggingface_hub`` looks for it, too."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    file = Path(os.environ.get("HF_TOKEN_PATH") or f"{home}/token").expanduser()
    try:
        token = os.environ.get("HF_TOKEN") or file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return SecretStr(token.strip()) if token.strip() else None


def get(url: str, token: SecretStr | None, span: tuple[int, int] | None = None) -> tuple[bytes, Message]:
    """The content behind a URL of the hub, and the headers of the answer.

    :param span: first byte and number of bytes, at least 1; by default all.
    :raises HubRefusedError: the hub refuses.
    :raises StorageError: it does not answer as it should for minutes, or redirects to where nothing is read.
    """
    began, pause = time.monotonic(), _FIRST_PAUSE
    while True:
        try:
            return _answered(url, token, span)
        except HTTPError as error:
            if not (error.code in (408, 429) or error.code >= 500):
                message = str(error.headers.get("X-Error-Message") or "")
                raise HubRefusedError(error.code, error.headers.get("X-Error-Code") or "", message) from error
            said = f"the server answered {error.code}"
            cause: Exception = error
        except (http.client.HTTPException, OSError) as error:
            _check_certificate(url, error)
            said, cause = in_words(type(error).__name__, str(getattr(error, "reason", error))), error
        tried, pause = time.monotonic() - began, pause * random.uniform(0.5, 1)
        if tried + pause > _LONGEST:
            raise StorageError(
                f"source: {shown_uri(url)} can't be read, {said}, tried for {round(tried)} s; check that "
                "the hub can be reached from the cluster: a retry of the task goes on with the rows that are "
                "finished."
            ) from cause
        time.sleep(pause)
        pause = min(2 * pause, RETRY_LIMITS.longest_pause)


def _answered(url: str, token: SecretStr | None, span: tuple[int, int] | None) -> tuple[bytes, Message]:
    login = f"Bearer {token.get_secret_value()}" if token else ""
    wanted = f"bytes={span[0]}-{span[0] + span[1] - 1}" if span else ""
    request = GuardedRequest(url, span=wanted, login=login)
    with build_opener().open(request, timeout=RETRY_LIMITS.answer) as answer:
        if span is None:
            return answer.read(), answer.headers
        start, length = span
        while answer.status == 200 and start > 0 and (block := answer.read(min(start, _BLOCK))):
            start -= len(block)  # a server that knows no ranges sends all
        content = answer.read(length)
    if len(content) < length:
        raise OSError(f"only {len(content):,} of {count_of(length, 'byte')} came")
    return content, answer.headers


def _check_certificate(url: str, error: Exception) -> None:
    if why := untrusted(error):
        said = f"source: {shown_uri(url)} can't be read, {why}"
        raise StorageError(said, FailureClass.USER_ERROR) from error
