# SPDX-License-Identifier: Apache-2.0
"""Airflow's settings in the section ``[raybatch]``."""

from __future__ import annotations

import logging
from pathlib import Path

from airflow.configuration import conf

SECTION = "raybatch"
_log = logging.getLogger(__name__)


def report_content() -> bool:
    """Whether pages show content of rows: prompts, answers and columns."""
    try:
        return bool(conf.getboolean(SECTION, "report_content", fallback=False))
    except Exception:
        _log.warning("[raybatch] report_content: it is not true or false, so no content of rows is shown.")
        return False


def report_roots() -> list[Path]:
    """Folders of this machine below which reports are read, without links; none by default."""
    given = conf.get(SECTION, "report_roots", fallback="") or ""
    roots = [Path(one.strip()) for one in given.split(",") if one.strip()]
    for root in roots:
        if not root.is_absolute():
            _log.warning("[raybatch] report_roots: %s is not an absolute path, so it is left out.", root)
    return [root.resolve() for root in roots if root.is_absolute()]
