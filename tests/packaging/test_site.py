# SPDX-License-Identifier: Apache-2.0
"""The documentation's site is not built from pages with faults, and needs nothing but its own environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.support.browser import Chromium

Build = Callable[..., "subprocess.CompletedProcess[str]"]
INDEX = "# All pages\n\n## Guides\n\n| page |\n| --- |\n| [One](one.md) |\n| [Two](two.md) |\n"


@pytest.fixture
def pages(root: Path, tmp_path: Path) -> Path:
    """A repository of few pages with this one's way to build a site."""
    shutil.copytree(root / "docs/site", tmp_path / "docs/site")
    package = tmp_path / "airflow_provider_raybatch"
    package.mkdir()
    shutil.copy(root / "airflow_provider_raybatch/__init__.py", package)
    (tmp_path / "dags_examples").mkdir()
    (tmp_path / "dags_examples/one.py").write_text("print()\n")
    (tmp_path / "README.md").write_text("# Project\n\n[Pages](docs/README.md)\n")
    (tmp_path / "docs/README.md").write_text(INDEX)
    (tmp_path / "docs/one.md").write_text("# One\n\n## A `b_c`, d!\n\nSee [two](two.md#end).\n")
    (tmp_path / "docs/two.md").write_text(
        "# Two\n\n[One](one.md#a-b_c-d), [code](../dags_examples/one.py)\n\n```csv\na,b\n```\n\n## End\n"
    )
    return tmp_path


@pytest.fixture
def build(root: Path, pages: Path, tmp_path: Path) -> Build:
    """Build with an empty home, no path and no access to other servers."""
    (tmp_path / "home").mkdir()
    env = {"HOME": str(tmp_path / "home"), "PATH": "", "https_proxy": "http://127.0.0.1:9"}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        command = [root / ".venv-docs/bin/python", pages / "docs/site/build.py", *options]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)

    return run


def test_pages_become_a_site_that_opens_from_a_folder(pages: Path, build: Build) -> None:
    done = build()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    site = pages / "build/site"
    assert "url=README.html" in (site / "index.html").read_text()
    assert 'href="docs/one.html"' in (site / "README.html").read_text()
    two = (site / "docs/two.html").read_text()
    assert 'href="one.html#a-b-c-d"' in two
    assert [file.read_text() for file in site.glob("_downloads/*/one.py")] == ["print()\n"]
    assert "two" in (site / "searchindex.js").read_text()
    assert list((pages / "home").iterdir()) == []


def test_each_planted_fault_fails_the_build(pages: Path, build: Build) -> None:
    docs = pages / "docs"
    (docs / "one.md").write_text(
        "# One\n\n[page](gone.md)\n\n[anchor](two.md#gone)\n\n[here](#nowhere)\n\n"
        "[file](../dags_examples/gone.py)\n\n![image](gone.png)\n\n"
        "[twice]\n\n[twice]: two.md\n[twice]: README.md\n\n## A `b_c`, d!\n"
    )
    (docs / "left_out.md").write_text("# Left out\n")
    (docs / "README.md").write_text(INDEX + "| [Three](three.md) |\n")
    done = build()
    assert done.returncode != 0
    for place, fault in (
        ("docs/one.md:3", "'myst' cross-reference target not found: 'gone.md'"),
        ("docs/one.md:5", "local id not found in doc 'docs/two': 'gone'"),
        ("docs/one.md:7", "'myst' cross-reference target not found: 'nowhere'"),
        ("docs/one.md:9", "'myst' cross-reference target not found: '../dags_examples/gone.py'"),
        ("docs/one.md:11", "image file not readable: docs/gone.png"),
        ("docs/one.md:16", "Duplicate reference definition: TWICE"),
        ("docs/left_out.md", "document isn't included in any toctree"),
        ("docs/README.md:9", "'myst' cross-reference target not found: 'three.md'"),
        ("README.md:12", "toctree contains reference to nonexisting document 'docs/three'"),
    ):
        assert f"{pages}/{place}: WARNING: {fault}" in done.stderr
    assert done.stderr.count("WARNING") == 9


def test_a_page_in_two_sections_is_refused(pages: Path, build: Build) -> None:
    (pages / "docs/README.md").write_text(INDEX + "\n## Reference\n\n[One](one.md)\n")
    done = build()
    assert done.returncode != 0
    assert "docs/README.md: names docs/one in two sections; leave it in one" in done.stderr


def test_what_pages_would_load_from_elsewhere_is_refused(pages: Path, build: Build) -> None:
    (pages / "docs/one.md").write_text(
        "# One\n\n## End\n\n![x](https://example.org/x.png)\n\n<https://example.org>\n"
    )
    (pages / "docs/two.md").write_text("# Two\n")
    (pages / "docs/site/static/site.css").write_text("@import url('https://example.org/font.css');\n")
    done = build()
    assert done.returncode != 0
    assert "docs/one.html: loads <img" in done.stderr
    assert "_static/site.css: loads @import" in done.stderr
    assert len(done.stderr.splitlines()) == 2


def test_a_site_is_read_from_a_folder(pages: Path, build: Build, browser: Chromium) -> None:
    """On a phone: no page is wider, wide tables and code scroll, and the search finds."""
    names = " | ".join(f"`a_rather_long_name_of_a_column_{number}`" for number in range(9))
    wide = f"| {names} |\n{'| --- ' * 9}|\n| {names} |\n\n```text\n{'long ' * 60}\n```\n"
    (pages / "docs/one.md").write_text(f"# One\n\n## A `b_c`, d!\n\n{wide}")
    assert build().returncode == 0
    site = pages / "build/site"
    with browser.visitor(server="file://", width=390) as visitor:
        visitor.open(str(site / "index.html"))
        visitor.page.wait_for_url("**/README.html")
        visitor.open(str(site / "docs/one.html"))
        table = visitor.page.locator("article table")
        assert table.evaluate("one => one.scrollWidth > one.parentElement.clientWidth")
        assert visitor.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        visitor.open(f"{site}/search.html?q=rather_long")
        visitor.page.wait_for_selector("#search-results a")
        assert visitor.page.locator("#search-results a").all_inner_texts() == ["One"]
        assert visitor.requests == []


def test_external_links_are_asked_on_demand(pages: Path, build: Build) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/there" else 404)
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        home = f"http://127.0.0.1:{server.server_port}"
        (pages / "docs/two.md").write_text(f"# Two\n\n[a]({home}/there), [b]({home}/gone)\n\n## End\n")
        (pages / "docs/one.md").write_text("# One\n\n<http://localhost:8080>\n")
        done = build("--external-links")
        server.shutdown()
    assert done.returncode != 0
    assert f"docs/two.md:3: [broken] {home}/gone" in (pages / "build/external-links/output.txt").read_text()
    assert "there" not in done.stderr
    assert "localhost" not in done.stderr
