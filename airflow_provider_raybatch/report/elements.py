# SPDX-License-Identifier: Apache-2.0
"""HTML as a tree, which is escaped when it is written, and texts that can't change the page around them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from xml.etree.ElementTree import Element, tostring

from airflow_provider_raybatch.contract.text import cut_to
from airflow_provider_raybatch.report.style import STYLE
from airflow_provider_raybatch.report.text import fit

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
