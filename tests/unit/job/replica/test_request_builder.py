# SPDX-License-Identifier: Apache-2.0
"""Rows as requests, and when those with images get their keys."""

from __future__ import annotations

import json
from typing import Any

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.replica.request_builder import PreparedRow, RequestBuilder
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.request.render import renderer
from airflow_provider_raybatch.job.row import Image, Request, RowFailure
from tests.support.specs import spec

SPEC = spec(images="photo", id_column="id")
KEYER = Keyer(SPEC, {}, Digests())
BUILDER = RequestBuilder(SPEC, renderer(SPEC), KEYER)


def prepared(photo: Any, number: int = 0) -> PreparedRow:
    (row,) = BUILDER.ask([{"id": 7, "text": "x", "photo": photo}], {0: number} if number else None)
    return row


def test_row_with_content_has_its_key_at_once() -> None:
    row = prepared(b"content")
    assert isinstance(row.request, Request)
    assert row.key == KEYER.key(row.request)


def test_row_with_a_reference_gets_its_key_later() -> None:
    row = prepared("s3://b/1", number=3)
    assert (row.key, row.row_id) == (None, "7")
    read = Image(uri="s3://b/1", version="etag:a:1")
    keyed = BUILDER.keyed(row, (read,))
    assert isinstance(keyed.request, Request)
    assert keyed.request.images == (read,)
    assert keyed.key == keys.nth(KEYER.key(keyed.request), 3)
    copied = BUILDER.keyed(prepared("s3://c/2", number=3), (Image(uri="s3://c/2", version="etag:a:1"),))
    assert copied.key == keyed.key


def test_dead_letter_names_images_without_their_content() -> None:
    row = BUILDER.keyed(prepared(["s3://b/1", b"secret"]), (Image(uri="s3://b/1", version="v"), Image(b"12")))
    kept = json.loads(row.outcome(0, RowFailure("media", "it is damaged")).request)
    assert kept["images"] == [{"uri": "s3://b/1", "version": "v"}, {"bytes": 2}]
