# SPDX-License-Identifier: Apache-2.0
"""Turn errors of disks and S3 into this package's own: what is wrong, and whether a retry may help."""

from __future__ import annotations

import contextlib
import errno
import re
from collections.abc import Iterator
from pathlib import Path

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.storage.causes import cause_of, code

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_IDENTITY = ("/latest/api/token", "/latest/meta-data", "169.254.169.254")
_PASSING = frozenset({"RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
"""Refusals (4xx) after which S3 itself asks for the call again."""
_NOT_OFFERED = frozenset({"NotImplemented", "InvalidArgument"})
_DENIED = ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken")
_LACKS_A_RIGHT = frozenset({"AccessDenied", "403 Forbidden"})
_STATUS = re.compile(r"status code: (\d{3} [A-Z][A-Za-z ]*\w)")


class StorageError(RaybatchError):
    """Reading or writing failed after the store's own retries."""

    failure_class = FailureClass.STORAGE


class TakenError(StorageError):
    """The name exists already, so it was not created."""


class RefusedError(StorageError):
    """The credentials may neither ask for the file nor list its folder, so it may be there or not."""


class ConflictError(Exception):
    """The store refused a call because of a concurrent one; it may be repeated."""


_RIGHTS = {
    "list": "s3:ListBucket",
    "read": "s3:GetObject",
    "write": "s3:PutObject",
    "delete": "s3:DeleteObject",
}
"""By what can't be done."""


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
        raise _local_error(verb, path, error) from error


def _local_error(verb: str, path: Path, error: OSError) -> StorageError:
    # A wrong path or a missing permission stays wrong; a full or failing disk may recover.
    wrong = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
    lasting = isinstance(error, wrong) or error.errno == errno.EROFS
    text = f"{path}: can't {verb} it ({error.strerror or error})"
    if error.errno in FULL:
        return StorageError(
            f"{text}; make room there: a retry of the task goes on with the rows that are finished."
        )
    if not lasting:
        return StorageError(f"{text}.")
    return StorageError(
        f"{text}; check the path, and that all nodes of the cluster may {verb} there.",
        FailureClass.USER_ERROR,
    )


def not_offered(error: Exception) -> bool:
    """Whether the store has no such call, or does not know one of its headers."""
    from obstore import exceptions

    if not isinstance(error, exceptions.GenericError):
        return isinstance(error, exceptions.NotSupportedError)
    status = _STATUS.search(str(error))
    return code(str(error)) in _NOT_OFFERED or bool(status and status.group(1)[:3] in {"405", "501"})


def may_recover(error: Exception) -> bool:
    """Whether the same call of obstore may succeed if it is repeated."""
    from obstore import exceptions

    text = str(error)
    if isinstance(error, FileNotFoundError):
        # An upload of several parts that was completed by a call whose answer was lost is known no more.
        return "NoSuchUpload" in text or "uploadId=" in text
    if not isinstance(error, (exceptions.GenericError, exceptions.AlreadyExistsError, ConflictError)):
        return False
    refused = _STATUS.search(text)
    if code(text) in _PASSING:
        return True
    if any(mark in text for mark in (*_NO_IDENTITY, *_DENIED)) or cause_of(text) or not_offered(error):
        return False
    return not (
        refused and refused.group(1).startswith("4") and not refused.group(1).startswith(("408", "429"))
    )


def is_denied(error: Exception) -> bool:
    """Whether the credentials are refused; listings say so in their text alone."""
    from obstore import exceptions

    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    return isinstance(error, denied) or any(mark in str(error) for mark in _DENIED)


def s3_error(verb: str, uri: str, error: Exception, tried: float = 0) -> StorageError:
    """What an error of obstore means, by its class or, if that says little, by its text.

    :param tried: for how many seconds.
    """
    from obstore import exceptions

    text = str(error)
    if (isinstance(error, FileNotFoundError) and not may_recover(error)) or "NoSuchBucket" in text:
        missing_bucket = "the bucket does not exist; check its name"
        what = missing_bucket if "NoSuchBucket" in text else "there is no such object"
        return StorageError(f"{uri}: can't {verb} it, {what}.", FailureClass.USER_ERROR)
    if isinstance(error, exceptions.InvalidPathError):
        return StorageError(
            f"{uri}: can't {verb} it, a key below it has an empty name between slashes ({answer(text)}); "
            "rename that key, or name folders or a glob without it.",
            FailureClass.USER_ERROR,
        )
    if cause := cause_of(text):
        return StorageError(f"{uri}: can't {verb} it, {cause.sentence}.", cause.failure_class)
    if is_denied(error):
        said = answer(text)
        lacks = said in _LACKS_A_RIGHT and verb in _RIGHTS
        needs = f", which needs {_RIGHTS[verb]} there" if lacks else ""
        return StorageError(
            f"{uri}: can't {verb} it, the credentials are refused ({said}); check aws_conn_id or the "
            f"cluster's role{needs}.",
            FailureClass.USER_ERROR,
        )
    if any(mark in text for mark in _NO_IDENTITY):
        return StorageError(
            f"{uri}: can't {verb} it, the cluster has no AWS credentials; set aws_conn_id or give its nodes "
            "a role.",
            FailureClass.USER_ERROR,
        )
    if not tried:
        return StorageError(f"{uri}: can't {verb} it ({answer(text)}).")
    return StorageError(
        f"{uri}: can't {verb} it ({answer(text)}), tried for {round(tried)} s; check that the store is up "
        "and can be reached from the cluster: a retry of the task goes on with the rows that are finished."
    )


def answer(text: str) -> str:
    """What the store said: its own code where the answer has one, else obstore's first line."""
    if said := code(text):
        return said
    if status := _STATUS.search(text):
        return status.group(1)
    lines = text.strip().splitlines()
    return lines[0][:300] if lines else "no reason given"
