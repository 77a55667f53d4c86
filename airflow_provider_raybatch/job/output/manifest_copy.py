# SPDX-License-Identifier: Apache-2.0
"""``manifest.json``: a copy of the newest manifest under a fixed name, for people and simple tools.

The journal decides; the copy never goes back, even if a writer was frozen on the way.
"""

from __future__ import annotations

import random
import time

from airflow_provider_raybatch.contract.layout import NEWEST_MANIFEST
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.storage.errors import StorageError, TakenError, error_prefix
from airflow_provider_raybatch.storage.folder import Folder

_RACES = 20
_LONGEST_PAUSE = 0.1


def renew_copy(folder: Folder, journal: Journal) -> None:
    """Make the copy equal the manifest that the journal's last entry names."""
    for _ in range(_RACES):
        with error_prefix("destination"):
            # Read before the journal is: if a newer manifest is copied after this, the replacement fails.
            old = None if folder.head(NEWEST_MANIFEST) is None else folder.read(NEWEST_MANIFEST)
            last = journal.last()
            if last is None or last.published is None:
                return
            new = folder.read(last.published.manifest)
            if old == new:
                folder.sync()
                return
            try:
                folder.replace(NEWEST_MANIFEST, old, new)
            except TakenError:
                time.sleep(random.uniform(0, _LONGEST_PAUSE))
            else:
                return
    raise StorageError(f"destination: {folder.uri}/{NEWEST_MANIFEST} is being changed by many jobs at once.")
