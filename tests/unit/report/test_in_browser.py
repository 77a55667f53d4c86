# SPDX-License-Identifier: Apache-2.0
"""Pages of reports in a real browser: nothing runs, nothing is asked for, nothing runs out of the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.report.page import report_page
from tests.support.browser import Chromium
from tests.support.reports import GALLERY

WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
NARROW = 400


@pytest.mark.share(4)
@pytest.mark.parametrize("name", GALLERY)
def test_page_is_static_and_fits_the_window(browser: Chromium, tmp_path: Path, name: str) -> None:
    file = tmp_path / "report.html"
    file.write_bytes(report_page(GALLERY[name]()).encode())
    with browser.visitor() as visitor:
        visitor.open_file(file)
        assert visitor.page.inner_text("h1")
        assert visitor.page.evaluate(WIDER) == 0
        visitor.page.set_viewport_size({"width": NARROW, "height": 800})
        assert visitor.page.evaluate(WIDER) == 0
        visitor.assert_static()


def test_page_is_legible_in_the_dark(browser: Chromium, tmp_path: Path) -> None:
    """Where the browser prefers dark pages, text and background still differ."""
    file = tmp_path / "report.html"
    file.write_bytes(report_page(GALLERY["good"]()).encode())
    with browser.visitor() as visitor:
        visitor.page.emulate_media(color_scheme="dark")
        visitor.open_file(file)
        text, ground = (
            visitor.page.evaluate(f"getComputedStyle(document.body).{name}")
            for name in ("color", "backgroundColor")
        )
    assert text != ground
