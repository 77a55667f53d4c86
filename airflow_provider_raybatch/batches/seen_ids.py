# SPDX-License-Identifier: Apache-2.0
"""Finds texts that were there before, in a few bytes each, and without a second look at them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from hashlib import blake2b

_DIGEST = 16
"""Bytes, so many that two texts never share them by chance or by intent."""


class SeenIds:
    """The ids of the lines of a file, as digests; about 22 bytes a line.

    They lie in 256 groups by their first byte. Only one group at a time becomes Python objects, which need
    five times as much.
    """

    def __init__(self) -> None:
        self._digests = [bytearray() for _ in range(256)]
        self._lines = [array("I") for _ in range(256)]

    def add(self, text: str, line: int) -> None:
        """Note the id of a line; lines come in ascending order."""
        digest = blake2b(text.encode(), digest_size=_DIGEST).digest()
        group = digest[0]
        self._digests[group] += digest
        self._lines[group].append(line)

    def repeated(self) -> Iterator[tuple[int, int]]:
        """Each line whose id a line before has, and the first line that has it; in no order."""
        for digests, lines in zip(self._digests, self._lines, strict=True):
            whole = bytes(digests)
            keys = [whole[start : start + _DIGEST] for start in range(0, len(whole), _DIGEST)]
            if len(set(keys)) == len(keys):
                continue
            first: dict[bytes, int] = {}
            for key, line in zip(keys, lines, strict=True):
                if first.setdefault(key, line) != line:
                    yield line, first[key]
