# SPDX-License-Identifier: Apache-2.0
"""Numbers beside those of the last dataset, as tiles and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.report.comparison import Figure
from airflow_provider_raybatch.report.elements import Content, node, number, table

_CLASSES = {"better": "good", "worse": "bad", "": "dim"}


def tiles(shown: Sequence[Figure]) -> Element:
    """The few numbers that people look at first."""
    return node("div", [_tile(figure) for figure in shown], class_="tiles")


def _tile(figure: Figure) -> Element:
    changed = node("dd", change(figure)) if figure.change else None
    before = None if figure.last is None else node("dd", f"last: {figure.last}", class_="dim")
    return node("dl", node("dt", figure.name), node("dd", figure.now), changed, before, class_="tile")


def change(figure: Figure) -> Element:
    """The change of a number; better and worse are said in words, too."""
    word = f" {figure.meaning}" if figure.meaning else ""
    return node("span", figure.change, word, class_=_CLASSES[figure.meaning])


def figure_table(caption: str, shown: Sequence[Figure]) -> Element:
    """A table of numbers."""
    has_last = any(figure.last is not None for figure in shown)
    heads = ["", "This run", *(["Last", "Change"] if has_last else [])]
    rows: list[tuple[Content, ...]] = []
    for figure in shown:
        others: list[Content] = (
            [number(figure.last or ""), number(change(figure), "change")] if has_last else []
        )
        rows.append((figure.name, number(figure.now), *others))
    return table(caption, heads, rows)
