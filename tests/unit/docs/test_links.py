# SPDX-License-Identifier: Apache-2.0
"""Links inside the repository lead somewhere, every page can be found, and pages keep to plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ...support.documents import DOCS, PAGES, ROOT, anchors, links

INDEX = DOCS / "README.md"
# Older prose, and tables that programs write.
UNREAD = {"docs/internals/proof.md"}
READ = [page for page in PAGES
        if str(page.relative_to(ROOT)) not in UNREAD and "benchmarks" not in page.parts]  # fmt: skip


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def test_every_page_is_in_the_index() -> None:
    listed = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX)}
    assert [page for page in DOCS.rglob("*.md") if page != INDEX and page not in listed] == []


def test_readme_names_the_index() -> None:
    assert "docs/README.md" in links(ROOT / "README.md")


def test_readme_keeps_to_one_screen() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


@pytest.mark.parametrize("page", READ, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_use_plain_words(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text(encoding="utf-8"))
    assert re.findall(r"\b(?:nobody|somebody|whom|of which|is no JSON)\b.{0,30}", text, re.IGNORECASE) == []


def test_anchors_are_those_of_github(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b_c`, d!\n\n```bash\n# no heading\n```\n## Twice\n## Twice\n## [Link](x.md) here\n")
    assert anchors(page) == {"a-b_c-d", "twice", "twice-1", "link-here"}


def test_every_recipe_is_in_the_list_of_recipes() -> None:
    page = DOCS / "recipes.md"
    headings = re.findall(r"(?m)^## (.+)$", page.read_text(encoding="utf-8"))
    listed = re.findall(r"(?m)^- \[(.+)\]\(#.+\)$", page.read_text(encoding="utf-8"))
    assert listed == headings
