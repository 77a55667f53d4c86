# SPDX-License-Identifier: Apache-2.0
"""Pages of a list of ids, by `limit`, `after` and `order`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.plugins.batch_api.errors import OpenAiError

_NUMBER = re.compile(r"[0-9]{1,9}")


class Page(NamedTuple):
    """Ids of a page.

    :param has_more: whether others follow.
    """

    ids: list[str]
    has_more: bool


@dataclass(frozen=True)
class PageRequest:
    """Which page is asked for, as in the query; ``None`` for what is not there.

    :param order: ``desc`` (newest first, the default) or ``asc``.
    """

    limit: str | None = None
    after: str | None = None
    order: str | None = None

    def page(
        self, newest_first: Sequence[str], *, default: int, most: int, gone_at: int | None = None
    ) -> Page:
        """The page of a list.

        :param newest_first: all ids that the caller may see.
        :param default: ids on a page whose `limit` is not given, and `most` on any page.
        :param gone_at: how many in the list are newer than the entry `after`, if that was deleted.
        :raises OpenAiError: a parameter can't be used, or `after` is not in the list: an empty page would
            end the loop of a client as if it had seen everything.
        """
        limit = self._limit(default, most)
        if self.order not in {None, "asc", "desc"}:
            raise OpenAiError(
                400, f"order: {shown(self.order)} is not an order; use asc or desc.", param="order"
            )
        ids = list(reversed(newest_first)) if self.order == "asc" else list(newest_first)
        start = self._start(ids, gone_at)
        return Page(ids[start : start + limit], start + limit < len(ids))

    def _start(self, ids: list[str], gone_at: int | None) -> int:
        if self.after is None:
            return 0
        if self.after in ids:
            return ids.index(self.after) + 1
        if gone_at is None:
            raise OpenAiError(
                400,
                f"after: {shown(self.after)} is not in this list; use the id of its last entry that you have "
                "seen.",
                param="after",
            )
        return len(ids) - gone_at if self.order == "asc" else gone_at

    def _limit(self, default: int, most: int) -> int:
        if self.limit is None:
            return default
        limit = int(self.limit) if _NUMBER.fullmatch(self.limit) else 0
        if not 1 <= limit <= most:
            raise OpenAiError(
                400,
                f"limit: {shown(self.limit)} is not a page size; use a number from 1 to {most:,}.",
                param="limit",
            )
        return limit
