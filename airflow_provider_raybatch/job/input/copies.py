# SPDX-License-Identifier: Apache-2.0
"""Copies of sources whose server tells no version: it may answer each request with other content."""

from __future__ import annotations

import datetime
import tempfile
from dataclasses import dataclass
from typing import IO

from airflow_provider_raybatch.contract.layout import SOURCES, SourceCopy, source_copy
from airflow_provider_raybatch.storage.errors import StorageError, error_prefix
from airflow_provider_raybatch.storage.folder import Folder


@dataclass(frozen=True)
class Copies:
    """Those of one run.

    :param folder: the destination.
    :param run: as :func:`~airflow_provider_raybatch.contract.layout.run_name` gives it.
    """

    folder: Folder
    run: str

    def keep(self, content: IO[bytes], size: int, digest: str) -> str:
        """Keep a copy of a source, unless an earlier attempt of the run has.

        :param digest: of the content, 32 hex digits.
        :returns: the copy's URI.
        :raises StorageError: it can't be written.
        """
        with error_prefix("destination"):
            for entry in self.folder.list(SOURCES):
                there = source_copy(entry.path)
                if there and (there.run, there.digest, entry.size) == (self.run, digest, size):
                    return f"{self.folder.uri}/{there.path}"
            began = f"{datetime.datetime.now(datetime.timezone.utc):%Y%m%dT%H%M%S}"
            path = SourceCopy(began, self.run, digest).path
            self.folder.write(path, content)
            return f"{self.folder.uri}/{path}"


def scratch_error(what: str, error: OSError) -> StorageError:
    """The error of a scratch file that can't be written; `what` begins its sentence."""
    return StorageError(
        f"source: {what} into {tempfile.gettempdir()} ({error.strerror or error}); make room there, or set "
        "TMPDIR to another folder on the cluster's nodes."
    )
