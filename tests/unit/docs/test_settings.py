# SPDX-License-Identifier: Apache-2.0
"""Pages have the settings that Airflow knows, and the bounds of the code."""

from __future__ import annotations

import re

from airflow_provider_raybatch.get_provider_info import get_provider_info
from airflow_provider_raybatch.plugins import finding, nights, reading, web
from tests.support.documents import DOCS

PAGE = (DOCS / "report.md").read_text(encoding="utf-8")


def test_settings_and_their_defaults() -> None:
    options = get_provider_info()["config"]["raybatch"]["options"]
    listed = re.findall(r"^\| `(report_\w+)` \| `?(\w*)`? +\|", PAGE, re.MULTILINE)
    known = {name: option["default"] for name, option in options.items() if name.startswith("report_")}
    assert dict(listed) == known


def test_bounds_are_those_of_the_code() -> None:
    flat = " ".join(PAGE.split())
    assert f"{finding.REPORT_BYTES >> 20} MiB of a report" in flat
    assert f"{finding.MANIFEST_BYTES >> 20} MiB of a manifest" in flat
    assert f"{finding.MOST_VALUES:,} values of each" in flat
    assert f"newest {finding.MOST_READ} entries of a journal of at most {finding.MOST_ENTRIES:,}" in flat
    assert f"{reading._SECONDS:.0f} seconds of S3" in flat
    assert f"its last {nights.MOST_NIGHTS} nights" in flat
    assert "16 wait" in flat
    assert web.Readers.__init__.__defaults__ == (4, 16, 40)
