# SPDX-License-Identifier: Apache-2.0
"""How many rows an engine works on at once where few are left: so many that its steps are of one size.

The time of a step grows with the rows in it, but is at least that of reading the model's weights. Of such a
convex function, equal arguments give the least sum (Jensen, Acta Mathematica 30, 1906). So the engine runs
the fewest rows at which none should outlast the longest. The longest ones begin first, so a row begins at the
latest when the longer ones have been spread evenly (Graham, SIAM Journal on Applied Mathematics 17(2), 1969),
and then takes a step for each of its tokens. For measurements see docs/internals/scheduling.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from airflow_provider_raybatch.job.row_order.lengths import is_limit

_FEWEST = 256
"""With fewer, a step is hardly shorter: on an H100 it takes 13.6 ms with 129 to 256 rows, and 10.8 ms with
half of them. Where limits say nothing of lengths, the fewer run at once, the later all end."""
_MOST = 512
"""Up to this many rows, vLLM captures CUDA graphs by default. Beyond, a step's time is nearly in proportion
to its rows: 785 at once, not 1,024, saved 1.6 % of W2 on an H100."""
_GROUPS = 16
"""Rows begin in groups of this fraction of those that run at once: a step that also computes prompts does not
run as a CUDA graph."""


class AdmissionControl:
    """Counts a replica's rows by label: all that it has got, and those that are not answered."""

    def __init__(self) -> None:
        self._got: Counter[int] = Counter()
        self._unanswered: Counter[int] = Counter()
        self._rows: int | None = None

    def got(self, labels: Sequence[int]) -> None:
        """The replica got rows with these labels."""
        self._got.update(labels)
        self._unanswered.update(labels)
        self._rows = None

    def gave_back(self, labels: Sequence[int]) -> None:
        """The replica gave rows back."""
        self._got.subtract(labels)
        self._unanswered.subtract(labels)
        self._rows = None

    def answered(self, label: int) -> None:
        """A row has its answer."""
        self._unanswered[label] -= 1
        if not self._unanswered[label]:
            self._rows = None

    def learned(self) -> None:
        """Expected lengths have changed."""
        self._rows = None

    def rows(self, expected: Sequence[float], most: int) -> int:
        """How many to work on at once.

        Answered rows count as well, so that the number stays as it is while the longest rows run. Answers may
        end before their limits: when the longest have, the others decide. Rows without a limit may be longer
        than any other, so with them all begin at once.

        :param expected: output tokens, by label.
        :param most: that the engine takes; where that many pay, it is returned.
        """
        if self._rows is None:
            self._rows = self._fewest(expected)
        return most if self._rows > _MOST else min(most, max(_FEWEST, self._rows))

    def _fewest(self, expected: Sequence[float]) -> int:
        """The fewest with which no answer ends after the longest unanswered one."""
        unanswered = [label for label, rows in self._unanswered.items() if rows]
        if not all(map(is_limit, unanswered)):
            return _MOST + 1
        longest = max((expected[label] for label in unanswered), default=0.0)
        fewest = rows = 0
        tokens = 0.0
        for label in sorted(self._got, key=expected.__getitem__, reverse=True):
            rows += self._got[label]
            tokens += self._got[label] * expected[label]
            left = longest - expected[label]
            # Within these steps all longer ones must have begun, or else this one begins with them.
            fewest = max(fewest, rows if left <= 0 else min(rows, math.ceil(tokens / left)))
        return fewest


def group(rows: int) -> int:
    """How many rows begin together, where `rows` run at once."""
    return max(1, rows // _GROUPS)
