# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes a site of the repository's Markdown; ``make docs`` builds it into ``build/site``.

The pages stay as they are on GitHub: Sphinx reads the repository itself. Links between its folders are
links between pages, and a link to any other file takes a copy of it into the site. ``docs/README.md``, the
index, is the navigation: each heading there is a section, and each link below it a page. A page that it
leaves out is an error.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers.special import TextLexer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README"
MEASURED = "docs/performance"
"""The page below which the navigation shows the results of all benchmarks."""

project = "airflow-provider-raybatch"
copyright = "the authors, Apache License 2.0"
version = release = re.findall(
    r'__version__ = "(.+)"', (ROOT / "airflow_provider_raybatch/__init__.py").read_text(encoding="utf-8")
)[0]
language = "en"

root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "benchmarks/results/*.md", "dags_examples/**.md"]
exclude_patterns = [".*", "build", "dist", "tests", "airflow_provider_raybatch"]
extensions = ["myst_parser"]
nitpicky = True
myst_heading_anchors = 6
highlight_language = "none"

# For `build.py --external-links`, which does not ask the reader's own Airflow and Ray.
linkcheck_ignore = [r"https?://localhost\b", r"https?://127\.0\.0\.1:8265\b"]
linkcheck_anchors = False
linkcheck_timeout = 30

html_theme = "pydata_sphinx_theme"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
templates_path = ["templates"]
html_additional_pages = {"index": "to_first_page.html"}
html_sidebars = {"**": ["all_pages.html"]}
html_copy_source = False
html_use_index = False
html_theme_options = {
    "logo": {"text": f"raybatch {release}"},
    "navbar_center": [],
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
    "collapse_navigation": True,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
}


def navigation() -> dict[str, dict[str, str]]:
    """The sections of the index by their headings; of each its pages, by name and with the title to show.

    :raises ValueError: if the index names a page twice.
    """
    sections: dict[str, dict[str, str]] = {}
    seen: set[str] = set()
    for part in re.split(r"(?m)^## ", (ROOT / f"{INDEX}.md").read_text(encoding="utf-8"))[1:]:
        heading, text = part.split("\n", 1)
        pages = {_name(target): title for title, target in re.findall(r"\[(.+?)\]\(([^)#]+)\.md\)", text)}
        if twice := seen & set(pages):
            raise ValueError(
                f"docs/README.md: names {', '.join(sorted(twice))} in two sections; leave it in one"
            )
        seen |= set(pages)
        sections[heading] = pages
    return sections


def _name(target: str) -> str:
    """The name that Sphinx gives to a page which the index links as `target`, without its suffix."""
    return (ROOT / INDEX).parent.joinpath(target).resolve().relative_to(ROOT).as_posix()


def _toctree(caption: str, entries: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", *entries, "```", ""])


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the list of pages below a page, which Sphinx wants in its text; readers on GitHub don't see it."""
    if name == root_doc:
        source[0] += _toctree("Start", ["What it is <self>", f"All pages </{INDEX}>"])
        for heading, pages in navigation().items():
            source[0] += _toctree(heading, [f"{title} </{page}>" for page, title in pages.items()])
    elif name == MEASURED:
        results = sorted((ROOT / "benchmarks/results").glob("*.md"))
        source[0] += _toctree("Results", [f"/{page.relative_to(ROOT).with_suffix('')}" for page in results])


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
    app.add_lexer("csv", TextLexer)  # Pygments has none
    return {"parallel_read_safe": True}
