# SPDX-License-Identifier: Apache-2.0
"""What errors of disks and S3 mean, whether a retry may help, and how long S3 is waited for.

obstore repeats a request that got a 5xx, 429 or no answer, but neither creations nor deletions whose answer
was lost, nor listings that were cut off: it can't know whether they may be repeated. All calls here may, so
they are made again as a whole (for creations, see :meth:`S3Folder.create`).
"""

from __future__ import annotations

import contextlib
import errno
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
NO_IDENTITY = "the cluster has no AWS credentials; set aws_conn_id or give its nodes a role"
_NO_IDENTITY = ("/latest/api/token", "/latest/meta-data", "169.254.169.254")
_PASSING = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
"""Refusals (4xx) after which S3 itself asks for the call again."""
_NOT_OFFERED = frozenset({"NotImplemented", "InvalidArgument"})
_WRONG_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")
_DENIED = ("AccessDenied", *_WRONG_KEYS)
_LACKS_A_RIGHT = frozenset({"AccessDenied", "403 Forbidden"})
_RIGHTS = {
    "list": "s3:ListBucket",
    "read": "s3:GetObject",
    "write": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
_STATUS = re.compile(r"status code: (\d{3} [A-Z][A-Za-z ]*\w)")
_CODE = re.compile(r"<Code>(\w+)</Code>|\(code: (\w+)\)")
"""The second is obstore's, of a key in a deletion of many."""
_REGION = re.compile(r"<Region>([\w-]+)</Region>|expecting '([\w-]+)'")
_KEY = re.compile(r'Path "(.*)"(?: contained|: )', re.DOTALL)
"""Of obstore, about a key that it can't parse."""
_CERTIFICATE = re.compile(r"InvalidCertificate\(\s*(\w+)")


class StorageError(RaybatchError):
    """Reading or writing failed after the store's own retries."""

    failure_class = FailureClass.STORAGE


class TakenError(StorageError):
    """The name exists already, so it was not created."""


class RefusedError(StorageError):
    """The credentials may neither ask for the file nor list its folder, so it may be there or not."""


class ConflictError(Exception):
    """The store refused a call because of a concurrent one; it may be repeated."""


@dataclass(frozen=True)
class Cause:
    """What is wrong and what helps, as the end of a sentence.

    :param failure_class: ``storage`` if a later attempt, or another machine, may succeed.
    """

    sentence: str
    failure_class: FailureClass = FailureClass.USER_ERROR


_EXPIRED = Cause(
    "the credentials have expired; a retry assumes a role again, but a session token that is stored must be "
    "replaced",
    FailureClass.STORAGE,
)
_BY_CODE = {
    "ExpiredToken": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "RequestTimeTooSkewed": Cause(
        "the clock of this machine differs from that of S3 by more than 15 minutes; set it, by NTP for "
        "example",
        FailureClass.STORAGE,
    ),
}
_OTHER_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}


@contextlib.contextmanager
def error_prefix(field: str) -> Iterator[None]:
    """Put the name of the spec's field before storage errors; :class:`TakenError` passes unchanged."""
    try:
        yield
    except TakenError:
        raise
    except StorageError as error:
        if str(error).startswith(f"{field}: "):
            raise
        raise StorageError(f"{field}: {error}", error.failure_class) from error


@contextlib.contextmanager
def local_errors(verb: str, path: Path) -> Iterator[None]:
    """Raise what an operating system's errors mean.

    :param verb: what can't be done with `path`.
    """
    try:
        yield
    except OSError as error:
        text = f"{path}: can't {verb} it ({error.strerror or error})"
        if error.errno in FULL:
            raise StorageError(
                f"{text}; make room there: a retry of the task goes on with the rows that are finished."
            ) from error
        # A wrong path or a missing permission stays wrong; a failing disk may recover.
        wrong = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
        if isinstance(error, wrong) or error.errno == errno.EROFS:
            raise StorageError(
                f"{text}; check the path, and that all nodes of the cluster may {verb} there.",
                FailureClass.USER_ERROR,
            ) from error
        raise StorageError(f"{text}.") from error


def not_offered(error: Exception) -> bool:
    """Whether the store lacks this call, or does not know one of its headers."""
    from obstore import exceptions

    if not isinstance(error, exceptions.GenericError):
        return isinstance(error, exceptions.NotSupportedError)
    status = _STATUS.search(str(error))
    return _code(str(error)) in _NOT_OFFERED or bool(status and status.group(1)[:3] in {"405", "501"})


def may_recover(error: Exception) -> bool:
    """Whether the same call of obstore may succeed if it is repeated."""
    from obstore import exceptions

    text = str(error)
    if isinstance(error, FileNotFoundError):
        # S3 forgets an upload of several parts that was completed by a call whose answer was lost.
        return "NoSuchUpload" in text or "uploadId=" in text
    if not isinstance(error, (exceptions.GenericError, exceptions.AlreadyExistsError, ConflictError)):
        return False
    if _code(text) in _PASSING:
        return True
    if any(mark in text for mark in (*_NO_IDENTITY, *_DENIED)) or _cause_of(text) or not_offered(error):
        return False
    refused = _STATUS.search(text)
    status = refused[1] if refused else ""
    return not status.startswith("4") or status.startswith(("408", "429"))


def is_denied(error: Exception) -> bool:
    """Whether the credentials are refused, which listings say in their text alone."""
    from obstore import exceptions

    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    return isinstance(error, denied) or any(mark in str(error) for mark in _DENIED)


def is_of_one_object(error: StorageError) -> bool:
    """Whether the store refuses this object, but not all that its caller may ask for."""
    from obstore import exceptions

    cause = error.__cause__
    refused = (exceptions.PermissionDeniedError, exceptions.InvalidPathError)
    if not isinstance(error, RefusedError) and not isinstance(cause, refused):
        return False
    codes = [found[1] or found[2] for found in _CODE.finditer(str(cause))]
    # The last one is the store's: those before it may be in the object's name.
    return not codes or codes[-1] not in {*_WRONG_KEYS, *_BY_CODE, *_OTHER_REGION}


def s3_error(verb: str, uri: str, error: Exception, tried: float = 0) -> StorageError:
    """What an error of obstore means, by its class or, if that says little, by its text.

    :param tried: for how many seconds.
    """
    failed = f"{uri}: can't {verb} it"
    if cause := _lasting_cause(verb, error):
        return StorageError(f"{failed}, {cause.sentence}.", cause.failure_class)
    if not tried:
        return StorageError(f"{failed} ({answer(str(error))}).")
    return StorageError(
        f"{failed} ({answer(str(error))}), tried for {round(tried)} s; check that the store is up and can be "
        "reached from the cluster: a retry of the task goes on with the rows that are finished."
    )


def _lasting_cause(verb: str, error: Exception) -> Cause | None:
    from obstore import exceptions

    text = str(error)
    if "NoSuchBucket" in text:
        return Cause("the bucket does not exist; check its name")
    if isinstance(error, FileNotFoundError) and not may_recover(error):
        return Cause("there is no such object")
    if isinstance(error, exceptions.InvalidPathError):
        named = _KEY.search(text)
        return Cause(
            f"the key {named[1] if named else ''!r} has an empty name, '.', '..' or a control character "
            "between its slashes; rename it, or name folders or a glob without it"
        )
    if cause := _cause_of(text):
        return cause
    if _code(text) == "InvalidObjectState":
        return Cause(
            "it is archived, as in S3 Glacier; restore it, or copy it to a storage class for reading"
        )
    if is_denied(error):
        said = answer(text)
        needs = f", which needs {_RIGHTS[verb]} there" if said in _LACKS_A_RIGHT else ""
        return Cause(f"the credentials are refused ({said}); check aws_conn_id or the cluster's role{needs}")
    if any(mark in text for mark in _NO_IDENTITY):
        return Cause(NO_IDENTITY)
    return None


def answer(text: str) -> str:
    """What the store said: its own code where the answer has one, else obstore's first line."""
    if said := _code(text):
        return said
    if status := _STATUS.search(text):
        return status.group(1)
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else "no reason given"


def _cause_of(text: str) -> Cause | None:
    """The cause of a refusal, if it is known; `text` is obstore's whole message."""
    said = _code(text)
    if said in _BY_CODE:
        return _BY_CODE[said]
    if said in _OTHER_REGION or "redirect without LOCATION" in text:
        found = _REGION.search(text)
        where = f" ({found[1] or found[2]})" if found else ""
        return Cause(
            f"its bucket lies in another region{where}; set region_name in the extra of the aws connection, "
            "or AWS_REGION in the environment"
        )
    if wrong := _CERTIFICATE.search(text):
        return Cause(
            f"its certificate can't be used ({wrong[1].removesuffix('Context')}); set verify in the extra of "
            "the aws connection to the PEM file of its authority, or correct endpoint_url"
        )
    if "InvalidContentType" in text:  # what rustls makes of an answer that is not TLS
        return Cause("it speaks http and not https; correct endpoint_url")
    return None


def _code(text: str) -> str | None:
    """S3's own code in obstore's message."""
    said = _CODE.search(text)
    return said and (said[1] or said[2])


T = TypeVar("T")


@dataclass(frozen=True)
class RetryLimits:
    """In seconds. A call ends at the latest after `whole` + `repeat` + `answer`: 5 minutes.

    :param connect: for a connection to be made; longer than a lost SYN packet and its repetition take.
    :param answer: for one request, until the answer's last byte. Requests carry at most 8 MiB, so this asks
        for 140 kB/s of each.
    :param repeat: obstore repeats a request for so long, and at most `repeats` times, with its first
        signature, which S3 accepts for 15 minutes.
    :param whole: after that no new attempt is made. Longer than most hiccups of S3, and cheap against the
        start of an engine, which a failed job would have to repeat.
    :param first_pause: before the second attempt. Pauses double, with jitter, up to `longest_pause`.
    """

    connect: float = 10
    answer: float = 60
    repeat: float = 60
    repeats: int = 10
    whole: float = 180
    first_pause: float = 0.1
    longest_pause: float = 10


RETRY_LIMITS = RetryLimits()


def with_retries(attempt: Callable[[], T], verb: str, uri: str) -> T:
    """Attempt a call until it works, or can never work, or the time for it is over.

    :param attempt: may be repeated, whether or not it was done before.
    :param verb: what can't be done with `uri`, for the message.
    :raises StorageError: one sentence.
    """
    began, pause = time.monotonic(), RETRY_LIMITS.first_pause
    while True:
        try:
            return attempt()
        except RaybatchError:
            raise
        except Exception as error:
            tried = time.monotonic() - began
            if not may_recover(error):
                raise s3_error(verb, uri, error) from error
            if tried + pause > RETRY_LIMITS.whole:
                raise s3_error(verb, uri, error, tried) from error
        time.sleep(pause * random.uniform(0.5, 1))
        pause = min(2 * pause, RETRY_LIMITS.longest_pause)
