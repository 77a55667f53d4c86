# SPDX-License-Identifier: Apache-2.0
"""Links to foreign files.

Nodes of a cluster may write to a shared folder. A link that they make there leads to a file of its reader: so
who may write a dataset could read what the API server may read, such as Airflow's configuration.
"""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.storage.entry import inside
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder, ReadableFolder


def check_no_links(place: ReadableFolder, paths: Iterable[str]) -> None:
    """Check that files lie where their paths say. Buckets have no links.

    The folder itself may be behind a link, and the first folder of each path: administrators set those up.

    :raises StorageError: a path leads through a link.
    """
    if not isinstance(place, LocalFolder):
        return
    for path in paths:
        full, (first, _, rest) = inside(place.root, path), path.partition("/")
        if full.resolve() != inside(place.root, first).resolve() / rest:
            raise StorageError(
                f"{full}: it is behind a symbolic link, which is not followed here; replace the link by what "
                "it leads to.",
                FailureClass.USER_ERROR,
            )
