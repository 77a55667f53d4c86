# SPDX-License-Identifier: Apache-2.0
"""Signed documents: who may write to the bucket, or trigger a DAG, can't make up a record."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import TypeVar

from airflow_provider_raybatch.contract.base import ContractModel, parse
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError

Record = TypeVar("Record", bound=ContractModel)


class ForgedRecordError(RaybatchError):
    """A document is not one that this Airflow has signed."""


def signed(record: ContractModel, kind: str, secret: bytes) -> bytes:
    """The document of a record.

    :param kind: what it is, with the id of what it belongs to, so that no record stands for another.
    :param secret: of this Airflow.
    """
    text = record.model_dump_json()
    return json.dumps({"record": text, "signature": _signature(text, kind, secret)}).encode()


def opened(content: bytes, model: type[Record], kind: str, secret: bytes) -> Record:
    """The record of a document.

    :param kind: as it was signed.
    :raises ForgedRecordError: it was signed with another secret, as another kind, or not at all.
    """
    try:
        document = json.loads(content)
        text, given = document["record"], document["signature"]
        if hmac.compare_digest(_signature(text, kind, secret).encode(), given.encode()):
            return parse(model, text)
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    raise ForgedRecordError(
        f"{kind}: its record is not signed with this Airflow's [raybatch] batch_api_secret; set the same "
        "secret on API servers and workers, or create the batch again.",
        FailureClass.USER_ERROR,
    )


def _signature(text: str, kind: str, secret: bytes) -> str:
    return hmac.new(secret, f"{kind}\n{text}".encode(), hashlib.sha256).hexdigest()
