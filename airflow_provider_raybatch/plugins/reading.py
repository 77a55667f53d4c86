# SPDX-License-Identifier: Apache-2.0
"""Files of a destination, read with bounds on bytes, names and seconds; and task instances, by their keys."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow.configuration import conf

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.location import local_path, split_s3
from airflow_provider_raybatch.contract.submission import TaskKey
from airflow_provider_raybatch.hooks.lookup import VARIABLE, known_installation_id
from airflow_provider_raybatch.hooks.ray import RayHook
from airflow_provider_raybatch.storage.errors import NO_IDENTITY, RetryLimits, s3_error
from airflow_provider_raybatch.storage.s3_store import new_store

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.secrets import AwsCredentials


class NotShownError(RaybatchError):
    """There is nothing to show.

    :param message: one sentence, which a reader of the task's XComs may see: without secrets.
    :param status: of the answer in HTTP.
    """

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskInstance:
    """A task instance of this Airflow."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    def key(self, namespace: str) -> TaskKey:
        """What its jobs are known by."""
        return TaskKey(
            namespace=namespace,
            dag_id=self.dag_id,
            run_id=self.run_id,
            task_id=self.task_id,
            map_index=self.map_index,
        )


def keys_of(ti: TaskInstance, ray_conn_id: str) -> Sequence[TaskKey]:
    """The keys of a task instance: of its connection's namespace, and of this installation.

    A run keeps the namespace that it began with, so both may be in use.

    :param ray_conn_id: the task's connection.
    :raises NotShownError: no namespace of this Airflow is known.
    """
    names = [_of_connection(ray_conn_id), known_installation_id(_team(ti.dag_id))]
    keys = [ti.key(name) for name in dict.fromkeys(names) if name]
    if not keys:
        raise NotShownError(
            f"No job of this Airflow is known: the Variable {VARIABLE!r}, which the first task makes, can't "
            "be read."
        )
    return keys


def _of_connection(ray_conn_id: str) -> str | None:
    try:
        return RayHook(ray_conn_id).read().namespace
    except Exception as error:  # a task with a cluster of its own needs no connection
        _log.info("The namespace in connection %r is not known: %s", ray_conn_id, error)
        return None


def _team(dag_id: str) -> str | None:
    if not conf.getboolean("core", "multi_team", fallback=False):
        return None
    from airflow.models.dag import DagModel

    return DagModel.get_team_name(dag_id)


_QUICK = RetryLimits(connect=3, answer=10, repeat=5, repeats=1, whole=0, longest_pause=1)
"""People wait for the page."""
_SECONDS = 25.0
_PAGE = 1000
_NO_IDENTITY = "it has no AWS credentials; set aws_conn_id of the task, or give the API server a role"
_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
"""A pipe would wait for its writer."""


@dataclass(frozen=True)
class LocalDestination:
    """A folder of this machine. Paths are relative to it; both methods raise :class:`NotShownError`.

    :param roots: without links; what doesn't lie below one of them is not read, whatever links say.
    """

    folder: Path
    roots: Sequence[Path]

    def read(self, path: str, most: int) -> bytes | None:
        """A file of at most `most` bytes; ``None`` where there is none."""
        full = self._allowed(self.folder / path)
        try:
            with os.fdopen(os.open(full, _FLAGS), "rb") as stream:
                if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                    raise NotShownError(f"{path}: it is not a file.")
                opened = Path(f"/proc/self/fd/{stream.fileno()}")
                if opened.exists():  # not on each system
                    self._allowed(opened)  # a link may have changed since
                return _bounded(path, stream.read(most + 1), most)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise NotShownError(f"{path}: it can't be read ({error.strerror}).") from error

    def names(self, folder: str, most: int) -> Sequence[str]:
        """Names of the files directly in `folder`, at most `most` of them."""
        found: list[str] = []
        try:
            with os.scandir(self._allowed(self.folder / folder)) as entries:
                for entry in entries:
                    found.append(entry.name)
                    if len(found) > most:
                        raise _too_many(folder, most)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise NotShownError(f"{folder}: it can't be read ({error.strerror}).") from error
        return found

    def _allowed(self, path: Path) -> Path:
        try:
            real = path.resolve()
        except (OSError, RuntimeError):  # links in a circle
            real = None
        if real is None or not any(real.is_relative_to(root) for root in self.roots):
            raise NotShownError(
                "The destination is a folder of a machine, and Airflow does not read it: it does not lie "
                "below one of [raybatch] report_roots."
            )
        return real


@dataclass
class S3Destination:
    """A prefix of a bucket; read as a :class:`LocalDestination`.

    :param credentials: ``None`` for the API server's own identity.
    """

    bucket: str
    prefix: str
    credentials: AwsCredentials | None = None
    _store: Any = None
    _until: float = field(default_factory=lambda: time.monotonic() + _SECONDS)

    def read(self, path: str, most: int) -> bytes | None:
        """See :class:`LocalDestination`."""
        key = self._key(path)
        try:
            return _bounded(
                path, bytes(self._ready().get(key, options={"range": (0, most + 1)}).bytes()), most
            )
        except FileNotFoundError:
            return None
        except NotShownError:
            raise
        except Exception as error:
            raise _unreadable("read", f"s3://{self.bucket}/{key}", error) from error

    def names(self, folder: str, most: int) -> Sequence[str]:
        """See :class:`LocalDestination`."""
        key, listed = self._key(folder), 0
        found: list[str] = []
        try:
            for page in self._ready().list(prefix=f"{key}/", chunk_size=_PAGE):
                self._ready()
                listed += len(page)
                if listed > most:
                    raise _too_many(folder, most)
                parts = [str(meta["path"]).rpartition("/") for meta in page]
                found += [name for above, _, name in parts if above == key]
        except NotShownError:
            raise
        except Exception as error:
            raise _unreadable("list", f"s3://{self.bucket}/{key}", error) from error
        return found

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self.prefix, path) if part)

    def _ready(self) -> Any:
        if time.monotonic() > self._until:
            raise NotShownError(f"s3://{self.bucket}: it did not answer in {_SECONDS:.0f} s; try again.", 504)
        # Not the job's cache of stores: credentials of a role are new each time, and stay in it.
        self._store = self._store or new_store(self.bucket, self.credentials, _QUICK)
        return self._store


Destination: TypeAlias = LocalDestination | S3Destination


def destination_at(location: str, credentials: AwsCredentials | None, roots: Sequence[Path]) -> Destination:
    """The folder at a checked location."""
    if s3 := split_s3(location):
        return S3Destination(s3[0], s3[1].strip("/"), credentials)
    return LocalDestination(Path(local_path(location)), roots)


def _bounded(path: str, content: bytes, most: int) -> bytes:
    if len(content) > most:
        raise NotShownError(f"{path}: it is larger than the {most / 2**20:g} MiB that are read here.")
    return content


def _too_many(folder: str, most: int) -> NotShownError:
    return NotShownError(f"{folder}: it has more files than the {most:,} that are looked through here.")


def _unreadable(verb: str, uri: str, error: Exception) -> NotShownError:
    sentence = str(s3_error(verb, uri, error)).replace(NO_IDENTITY, _NO_IDENTITY)
    return NotShownError(f"The destination can't be read from Airflow's API server: {sentence}", 502)
