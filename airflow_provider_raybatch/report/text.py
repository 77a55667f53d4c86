# SPDX-License-Identifier: Apache-2.0
"""Text from elsewhere, as a page or a card may show it."""

from __future__ import annotations

import re

_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")
_UNFIT = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
"""What HTML and YAML can't hold, and what shows nothing."""
_TURNING = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""Marks that turn text around; shown by number, since they could reorder what stands beside them."""


def fit(text: str) -> str:
    """`text` as a page may show it: line ends are line feeds, control characters are seen."""
    text = _UNFIT.sub("\ufffd", _LINE_END.sub("\n", text))
    return _TURNING.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)
