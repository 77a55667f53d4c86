# SPDX-License-Identifier: Apache-2.0
"""Pages of a list of ids, by `limit`, `after` and `order`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.plugins.batch_api.errors import wrong_field

_NUMBER = re.compile(r"[0-9]{1,9}")


class Page(NamedTuple):
    """Ids of a page.

    :param has_more: whether others follow.
    """

    ids: list[str]
    has_more: bool


def page_of(
    newest_first: Sequence[str],
    *,
    default: int,
    most: int,
    limit: str | None = None,
    after: str | None = None,
    order: str | None = None,
    gone_at: int | None = None,
) -> Page:
    """A page of a list.

    :param newest_first: all ids that the caller may see.
    :param default: ids on a page whose `limit` is not given, and `most` on any page.
    :param limit: as in the query, like `after` and `order`: ``desc`` (newest first, the default) or ``asc``.
    :param gone_at: how many in the list are newer than the entry `after`, if that was deleted.
    :raises OpenAiError: a parameter can't be used, or `after` is not in the list: an empty page would end the
        loop of a client as if it had seen everything.
    """
    length = default if limit is None else int(limit) if _NUMBER.fullmatch(limit) else 0
    if not 1 <= length <= most:
        raise wrong_field("limit", f"{shown(limit)} is not a page size; use a number from 1 to {most:,}")
    if order not in {None, "asc", "desc"}:
        raise wrong_field("order", f"{shown(order)} is not an order; use asc or desc")
    ids, start = list(newest_first), 0
    if order == "asc":
        ids.reverse()
    if after in ids:
        start = ids.index(after) + 1
    elif gone_at is not None:
        start = len(ids) - gone_at if order == "asc" else gone_at
    elif after is not None:
        raise wrong_field(
            "after", f"{shown(after)} is not in this list; use the id of its last entry that you have seen"
        )
    return Page(ids[start : start + length], start + length < len(ids))
