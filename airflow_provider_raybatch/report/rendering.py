# SPDX-License-Identifier: Apache-2.0
"""Pages out of Jinja2 templates, which escape each text; a page is made fit to be shown as a whole.

Jinja2 travels with a job, but is imported only where a page is made.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.contract.text import count_of, cut_to
from airflow_provider_raybatch.report import words

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent / "templates"


def render(template: str | Path, **shown: Any) -> str:
    """A page as HTML; encode it in UTF-8.

    :param template: file name in the folder of templates, or the path of another one, which may extend those.
    :param shown: what the template asks for, as plain values; it fails where one is missing.
    """
    folder = template.parent if isinstance(template, Path) else _FOLDER
    return words.fit(environment(folder).get_template(Path(template).name).render(shown))


@cache
def environment(folder: Path = _FOLDER) -> Environment:
    """What all templates of a folder are rendered by."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader([folder, _FOLDER]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,  # an upgrade under a running server brings templates that its code does not know
    )
    numbers = (words.count, words.hours, words.money, words.percent, words.seconds)
    texts = (words.value_text, words.input_row, count_of)
    made.filters.update({one.__name__: one for one in (*numbers, *texts)}, cut=cut_to)
    return made
