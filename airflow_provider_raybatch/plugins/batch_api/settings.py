# SPDX-License-Identifier: Apache-2.0
"""What one user may ask of the Batch API, by Airflow's settings."""

from __future__ import annotations

import re
from dataclasses import dataclass

from airflow.sdk.configuration import conf

from airflow_provider_raybatch.batches.settings import SECTION
from airflow_provider_raybatch.batches.validation import STRICT_LIMITS, FileLimits
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import SpecError

_NUMBER = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class ApiLimits:
    """Limits of the server; each model's own come on top. ``None`` means no limit.

    :param strict: accept what OpenAI accepts: 50,000 lines, 200 MB, and a window of 24 hours.
    :param max_file_bytes: of one upload.
    :param max_user_bytes: of all files of a user, with those that batches have made.
    :param requests_per_minute: of a user, at one process of the API server.
    :param batches_per_hour: that a user creates.
    :param unfinished_batches: of a user at once.
    """

    strict: bool = False
    max_file_bytes: int | None = 2_000_000_000
    max_user_bytes: int | None = 50_000_000_000
    requests_per_minute: int | None = 3000
    batches_per_hour: int | None = 2000
    unfinished_batches: int | None = 1000


def api_limits() -> ApiLimits:
    """The limits, as they are set.

    :raises SpecError: a setting can't be used; one sentence that names it.
    """
    strict = _strict()
    defaults = vars(ApiLimits())
    limits = {name: _limit(f"batch_api_{name}", defaults[name]) for name in defaults if name != "strict"}
    if strict:
        file_bytes = FileLimits(max_bytes=limits["max_file_bytes"])
        limits["max_file_bytes"] = file_bytes.within(STRICT_LIMITS).max_bytes
    return ApiLimits(strict=strict, **limits)


def _strict() -> bool:
    given = str(conf.get(SECTION, "batch_api_strict", fallback="False") or "False").strip()
    if given.lower() not in {"true", "t", "1", "false", "f", "0"}:
        raise SpecError(
            f"[{SECTION}] batch_api_strict: {shown(given)} is not True or False; set one of them."
        )
    return given.lower() in {"true", "t", "1"}


def _limit(name: str, default: int | None) -> int | None:
    given = str(conf.get(SECTION, name, fallback="") or "").strip().replace("_", "")
    if not given:
        return default
    if not _NUMBER.fullmatch(given):
        raise SpecError(
            f"[{SECTION}] {name}: {shown(given)} is not a whole number; set one, or 0 for no limit."
        )
    return int(given) or None
