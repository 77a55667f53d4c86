# SPDX-License-Identifier: Apache-2.0
"""``raybatch store``: what a response store holds."""

from __future__ import annotations

from argparse import Namespace

from airflow_provider_raybatch.cli.places import absolute, s3_access
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.layout import STORE_MARK
from airflow_provider_raybatch.storage.folder import folder


def show_store(options: Namespace) -> None:
    """Print the figures of a store; with `compact`, merge its index before."""
    from airflow_provider_raybatch.job.reuse.store.store import ResponseStore

    uri = absolute(options.uri)
    place = folder(uri, s3_access(uri, options.aws_conn_id))
    if place.head(STORE_MARK) is None:
        raise SpecError(
            f"uri: {uri} is not a response store, since it has no {STORE_MARK}; give what the task "
            "has as reuse=."
        )
    store = ResponseStore(place, _tell)
    if options.compact:
        print(store.compact())
    print(store.size().text())


def _tell(notice: Notice) -> None:
    print(notice.text())
