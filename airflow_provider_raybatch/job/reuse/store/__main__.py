# SPDX-License-Identifier: Apache-2.0
"""``python -m airflow_provider_raybatch.job.reuse.store URI [--compact]``: how large a store is."""

import argparse
import sys

from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import folder

parser = argparse.ArgumentParser(prog="python -m airflow_provider_raybatch.job.reuse.store")
parser.add_argument("uri", help="what the operator has as reuse=; credentials come from the environment")
parser.add_argument("--compact", action="store_true", help="first merge the index and delete what expired")
arguments = parser.parse_args()
store = ResponseStore(folder(arguments.uri), lambda notice: print(notice.text()))
try:
    if arguments.compact:
        print(store.compact())
    print(store.size().text())
except StorageError as error:
    sys.exit(str(error))
