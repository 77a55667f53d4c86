# SPDX-License-Identifier: Apache-2.0
"""Pictures of one colour, no two alike, and what the echo engine says of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq


class Picture(NamedTuple):
    """A picture by its number."""

    number: int

    @property
    def size(self) -> tuple[int, int]:
        return 8 + self.number % 50, 8 + self.number // 50

    @property
    def colour(self) -> tuple[int, int, int]:
        return (37 * self.number) % 256, (91 * self.number + 5) % 256, (13 * self.number + 100) % 256

    def content(self, format: str = "PNG") -> bytes:
        from PIL import Image

        stream = io.BytesIO()
        Image.new("RGB", self.size, self.colour).save(stream, format)
        return stream.getvalue()

    def uri(self) -> str:
        """The picture itself, as text."""
        return f"data:image/png;base64,{base64.b64encode(self.content()).decode()}"

    @property
    def said(self) -> str:
        """What the echo says of it."""
        width, height = self.size
        red, green, blue = self.colour
        return f"[{width}x{height} #{red:02x}{green:02x}{blue:02x}]"


def source_of(folder: Path, **columns: Sequence[Any]) -> dict[str, Any]:
    """Write rows with ids and such columns, in several row groups; return them as an argument of a job."""
    rows = len(next(iter(columns.values())))
    table = pa.table({"id": [f"r{number}" for number in range(rows)], **columns})
    pq.write_table(table, folder / "in.parquet", row_group_size=20)
    return {"source": [str(folder / "in.parquet")]}
