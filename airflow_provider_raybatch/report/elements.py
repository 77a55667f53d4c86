# SPDX-License-Identifier: Apache-2.0
"""HTML as a tree, which is escaped when it is written, and texts that can't change the page around them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from xml.etree.ElementTree import Element, tostring

from airflow_provider_raybatch.contract.text import cut_to
from airflow_provider_raybatch.report.words import fit

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --dim: #57606a;
  --line: #d5dae0; --good: #1a7f37; --bad: #b3261e; --a: #0b62c4; --b: #b35900; --c: #6a3fb5; --d:
  #0f7b6c; --e: #a8326e; --f: #5d6b12; --g: #7a4a21; --h: #4a5568; --i: #c2410c; --j: #0e7490; --goodback:
  #e6f4ea; --badback: #fdeceb; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1e2329; --ink:
  #e8eaed; --dim: #a5adb6; --line: #3a424c; --good: #57c274; --bad: #ff8a80; --a: #6cb2ff; --b: #f0a24a;
  --c: #b99cf2; --d: #4fc7b5; --e: #f08dbd; --f: #b9c95a; --g: #d3a27a; --i: #ff9166; --j: #5cc8e0; --h:
  #a9b4c2; --goodback: #17301e; --badback: #3d1d1b; } }
* { box-sizing: border-box; }
html { font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Open Sans", sans-serif;
  -webkit-text-size-adjust: 100%; background: var(--paper); color: var(--ink); }
body { margin: 0; }
main { max-width: 72rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .75rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .5rem; overflow-wrap: anywhere; }
p { margin: .5rem 0; max-width: 48rem; overflow-wrap: anywhere; }
.dim { color: var(--dim); }
.loading:not(:last-child) { display: none; }
.copied { -webkit-user-select: all; user-select: all; }
.good { color: var(--good); }
.bad { color: var(--bad); }
.state { border-left: .3rem solid var(--good); background: var(--goodback); padding: .6rem .9rem; margin:
  1rem 0; max-width: none; }
.state.failed { border-color: var(--bad); background: var(--badback); }
nav { margin: 1rem 0; }
nav a { color: var(--a); margin-right: 1rem; display: inline-block; padding: .15rem 0; }
:focus-visible { outline: 2px solid var(--a); outline-offset: 2px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); gap: .75rem;
  margin: 1rem 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem
  .9rem; margin: 0; }
.tile dt { color: var(--dim); font-size: .875rem; }
.tile dd { margin: 0; overflow-wrap: anywhere; }
.tile dd:first-of-type { font-size: 1.45rem; font-weight: 600; line-height: 1.3; }
.tile dd + dd { font-size: .875rem; }
.wide { overflow-x: auto; margin: .75rem 0; max-width: 100%; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: min(100%, 30rem); }
caption { text-align: left; font-weight: 600; padding: .25rem 0; }
th, td { text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; border-bottom: 1px solid
  var(--line); overflow-wrap: break-word; }
td { min-width: 6rem; }
th { font-weight: 500; }
thead th { color: var(--dim); font-size: .875rem; white-space: nowrap; }
tbody th { min-width: 12.5rem; max-width: 22rem; }
.number { text-align: right; white-space: nowrap; min-width: 0; }
td.change { white-space: normal; min-width: 5rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 0
  2.5rem; align-items: start; }
.pair > * { min-width: 0; }
.pair > :only-child { max-width: 36rem; }
.pair table { width: 100%; }
.sample td.change { white-space: normal; min-width: 5rem; }
.pair { gap: 0 1rem; }
.sample:has(details) { padding-bottom: .1rem; }
td.bar { width: 40%; min-width: 6rem; vertical-align: middle; }
td.bar svg { display: block; width: 100%; height: .8rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: plaintext; background: var(--card);
  border: 1px solid var(--line); border-radius: .35rem; padding: .5rem .7rem; margin: .25rem 0 .75rem;
  max-height: 24rem; overflow-y: auto; font-size: .9375rem; }
bdi { unicode-bidi: isolate; overflow-wrap: anywhere; }
code { font: .875em/1.4 ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
details { margin: .5rem 0; }
summary { cursor: pointer; padding: .2rem 0; }
.sample { border: 1px solid var(--line); border-radius: .5rem; padding: .25rem .9rem .5rem; margin: .75rem
  0; }
.sample h4 { margin: .5rem 0 0; font-size: 1rem; }
.label { margin: .5rem 0 0; font-size: .875rem; color: var(--dim); }
h4 { margin: 1.25rem 0 .25rem; font-size: 1rem; overflow-wrap: anywhere; }
.whole svg { display: block; width: 100%; height: 1rem; border-radius: .25rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap:
  1rem; }
figure { margin: .5rem 0; max-width: 34rem; }
.plots figure { margin: 0; }
figcaption { font-weight: 600; font-size: .9375rem; }
figcaption .dim { font-weight: 400; }
svg text { font: 13px system-ui, -apple-system, "Segoe UI", Roboto, "Open Sans", sans-serif; fill:
  var(--dim); }
svg .grid { stroke: var(--line); stroke-width: 1; }
svg .curve { fill: none; stroke: var(--a); stroke-width: 2; stroke-linejoin: round; }
svg .dot { fill: var(--a); }
svg .area { fill: var(--a); opacity: .12; }
.fill-a { fill: var(--a); }
.fill-b { fill: var(--b); }
.fill-c { fill: var(--c); }
.fill-d { fill: var(--d); }
.fill-e { fill: var(--e); }
.fill-f { fill: var(--f); }
.fill-g { fill: var(--g); }
.fill-h { fill: var(--h); }
.fill-i { fill: var(--i); }
.fill-j { fill: var(--j); }
.fill-good { fill: var(--good); }
.fill-bad { fill: var(--bad); }
.fill-none { fill: var(--line); }
svg.swatch { width: .8rem; height: .8rem; margin-right: .4rem; vertical-align: baseline; }
@media (max-width: 30rem) { main { padding: 1rem .75rem 3rem; } h1 { font-size: 1.4rem; } .tiles {
  grid-template-columns: repeat(2, minmax(0, 1fr)); } .tile { padding: .55rem .65rem; } .tile
  dd:first-of-type { font-size: 1.15rem; } th, td { padding-right: .5rem; } tbody th { min-width: 6.5rem;
  } td { min-width: 5.5rem; } table { font-size: .9375rem; } }
@media print { :root { --paper: #ffffff; --card: #ffffff; --ink: #000000; --dim: #333333; --line: #999999;
  } main { max-width: none; padding: 0; } nav { display: none; } .text { max-height: none; overflow:
  visible; } .wide { overflow: visible; } .sample, figure, .tile, tr { break-inside: avoid; } h2, h3 {
  break-after: avoid; } details::details-content { content-visibility: visible; block-size: auto; } }
"""


Content = str | Element | None | Iterable["Content"]

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
LONGEST_TEXT = 4000
"""Characters of a prompt or an answer that a page shows."""


def node(name: str, /, *content: Content, **attributes: str | float | None) -> Element:
    """An element.

    :param content: texts and elements, also in nested lists; ``None`` is left out.
    :param attributes: ``class_`` is ``class``, and other ``_`` become ``-``; ``None`` is left out.
    """
    made = Element(name)
    for key, value in attributes.items():
        if value is not None:
            made.set(key.rstrip("_").replace("_", "-"), fit(str(value)))
    _fill(made, content)
    return made


def _fill(parent: Element, content: Iterable[Content]) -> None:
    for one in content:
        if one is None:
            continue
        if isinstance(one, Element):
            parent.append(one)
        elif not isinstance(one, str):
            _fill(parent, one)
        elif len(parent):
            parent[-1].tail = (parent[-1].tail or "") + fit(one)
        else:
            parent.text = (parent.text or "") + fit(one)


def words_of(text: str, longest: int = 300) -> Element:
    """A short text from elsewhere within a line; its direction is its own."""
    return node("bdi", cut_to(longest, text), dir="auto")


def block(text: str, longest: int = LONGEST_TEXT) -> Element:
    """A text from elsewhere with its lines; each has a direction of its own."""
    return node("div", cut_to(longest, text), class_="text", dir="auto")


def labelled(title: str, text: str | None) -> Element | None:
    """A text from elsewhere below what it is."""
    if text is None:
        return None
    shown = block(text) if text.strip() else node("p", node("em", "empty"))
    return node("div", node("p", title, class_="label"), shown)


def section(name: str, title: str, *content: Content) -> Element:
    """A part of the page.

    :param name: in its address.
    """
    return node(
        "section", node("h2", title, id=f"{name}-title"), content, id=name, aria_labelledby=f"{name}-title"
    )


def table(
    caption: str, heads: Iterable[Content], rows: Iterable[Iterable[Content]], class_: str | None = None
) -> Element:
    """A table whose first column names the rows; a narrow screen scrolls it alone."""
    body = []
    for first, *others in rows:
        body.append(node("tr", node("th", first, scope="row"), [_cell(one) for one in others]))
    classes = [one.get("class") for one in body[0]] if body else []
    named = zip_longest(heads, classes)
    head = node("tr", [node("th", one, scope="col", class_=_of_numbers(kind)) for one, kind in named])
    whole = node("table", node("caption", caption), node("thead", head), node("tbody", body), class_=class_)
    return node("div", whole, class_="wide", role="region", aria_label=caption, tabindex="0")


def _of_numbers(class_: str | None) -> str | None:
    return "number" if (class_ or "").startswith("number") else None


def side_by_side(*content: Content) -> Element:
    """Tables beside each other where there is room."""
    return node("div", content, class_="pair")


def _cell(content: Content) -> Element:
    return content if isinstance(content, Element) and content.tag == "td" else node("td", content)


def number(text: Content, class_: str = "") -> Element:
    """A cell with a number."""
    return node("td", text, class_=f"number {class_}".strip())


def folded(title: Content, *content: Content, is_open: bool = False) -> Element:
    """Content that a reader unfolds; on paper it is unfolded."""
    return node("details", node("summary", title), content, open="" if is_open else None)


def document(title: str, *content: Content) -> str:
    """A whole page, which loads nothing and runs nothing.

    :param title: plain text.
    """
    head = node(
        "head",
        node("meta", charset="utf-8"),
        node("meta", http_equiv="Content-Security-Policy", content=POLICY),
        node("meta", name="viewport", content="width=device-width, initial-scale=1"),
        node("meta", name="color-scheme", content="light dark"),
        node("meta", name="referrer", content="no-referrer"),
        node("title", title),
        node("style", STYLE),
    )
    page = node("html", head, node("body", node("main", content)), lang="en", dir="ltr")
    return f"<!doctype html>\n{tostring(page, encoding='unicode', method='html')}\n"
