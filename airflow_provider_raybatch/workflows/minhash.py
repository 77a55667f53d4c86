# SPDX-License-Identifier: Apache-2.0
"""MinHash signatures of texts, one byte per permutation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from airflow_provider_raybatch.workflows.errors import WorkflowError

PERMUTATIONS = 128
_SEED = 42
ALGORITHM = f"rensa-rminhash-{RMinHash.ALGORITHM_VERSION}-{PERMUTATIONS}-{_SEED}"
"""Signatures of two algorithms can't be compared."""

Signatures: TypeAlias = npt.NDArray[np.uint8]

_BYTE = 256
_GROUP_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Shingles:
    """The units of comparison: overlapping runs of words, or of characters for short texts.

    :param kind: ``word`` or ``char``.
    :param size: length of a run. One changed word changes three runs of three words, so for texts of fewer
        than about 30 words ``char`` with 5 is better.
    """

    kind: Literal["word", "char"] = "word"
    size: int = 3

    def __post_init__(self) -> None:
        if self.kind not in {"word", "char"} or self.size < 1:
            raise WorkflowError(
                f"shingles: kind {self.kind!r} and size {self.size} are not usable; take 'word' or 'char', "
                "and a size of at least 1."
            )

    def of(self, text: str) -> list[str]:
        """The distinct runs of a text; case and the kind of white space are ignored."""
        words = text.casefold().split()
        if self.kind == "word":
            starts = range(max(1, len(words) - self.size + 1))
            return list({" ".join(words[start : start + self.size]) for start in starts})
        joined = " ".join(words)
        return list({
            joined[start : start + self.size] for start in range(max(1, len(joined) - self.size + 1))
        })


def signatures(texts: Sequence[str], shingles: Shingles) -> Signatures:
    """A row of 128 bytes for each text: the lowest byte of each hash, which is enough for an estimate."""
    rows: Signatures = np.empty((len(texts), PERMUTATIONS), np.uint8)
    for start, stop in _groups(texts):
        matrix = RMinHash.digest_matrix_from_token_sets(
            [shingles.of(text) for text in texts[start:stop]], num_perm=PERMUTATIONS, seed=_SEED
        )
        rows[start:stop] = np.array(matrix.to_rows(), dtype=np.uint32) % _BYTE
    return rows


def _groups(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Split the texts into small groups, since shingles take about a hundred times the memory of a text."""
    start = characters = 0
    for number, text in enumerate(texts):
        if number > start and characters + len(text) > _GROUP_CHARACTERS:
            yield start, number
            start, characters = number, 0
        characters += len(text)
    if texts:
        yield start, len(texts)
