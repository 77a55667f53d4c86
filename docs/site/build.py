# SPDX-License-Identifier: Apache-2.0
"""Builds the documentation's site into ``build/site``, or asks other servers whether what it links exists.

Usage: ``build.py [--external-links]``, by the Python of ``.venv-docs``. Each warning is an error, and one run
shows all of them. The site is built anew each time. That needs no network, and reading it needs none: what a
page would load from another server is an error, too.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

ROOT = Path(__file__).resolve().parents[2]
# What a browser loads by itself; a link that is clicked is not.
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|link(?![^>]*rel="canonical"))\b[^>]*?\b(?:src|href)="(?:https?:)?//[^"]+"""
    r"""|@import\s*(?:url\()?["']?(?:https?:)?//[^"')]+|url\(["']?(?:https?:)?//[^"')]+"""
)


def build(builder: str, out: Path) -> int:
    """Run one of Sphinx's builders on the repository's pages, and return its exit status."""
    trees = out.with_name(f".{out.name}-trees")
    for folder in (out, trees):
        shutil.rmtree(folder, ignore_errors=True)
    how = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", builder]
    folders = ["--conf-dir", ROOT / "docs/site", "--doctree-dir", trees, ROOT, out]
    status: int = build_main([*how, *map(str, folders)])
    return status


def loaded_from_elsewhere(site: Path) -> list[str]:
    """What pages and style sheets of a site load from other servers, a line each."""
    return [
        f"{file.relative_to(site)}: loads {found} from another server; put a copy into docs/site/static"
        for file in sorted(site.rglob("*"))
        if file.suffix in {".html", ".css"}
        for found in LOADED.findall(file.read_text(encoding="utf-8"))
    ]


def main(arguments: list[str]) -> int:
    """Build, and return an exit status."""
    if arguments == ["--external-links"]:
        return build("linkcheck", ROOT / "build/external-links")
    if arguments:
        sys.exit("usage: build.py [--external-links]")
    site = ROOT / "build/site"
    code = build("html", site)
    faults = [] if code else loaded_from_elsewhere(site)
    print(*faults, sep="\n", end="\n" * bool(faults), file=sys.stderr)
    return code or bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
