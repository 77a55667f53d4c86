# SPDX-License-Identifier: Apache-2.0
"""What a file of rows has: found by the code with which the job reads it."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_raybatch.contract.arguments.data import CsvOptions, InputArguments, SourceFormat
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.row_template import RowTemplate, placeholder
from airflow_provider_raybatch.contract.text import count_of

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_raybatch.contract.secrets import AwsCredentials
    from airflow_provider_raybatch.job.input.chunk_rows import BadRow
    from airflow_provider_raybatch.job.input.listing import Listing
    from airflow_provider_raybatch.job.input.survey import Surveyed

_FIRST_ROWS = 100
_LEAST_PART = 10
"""A column with less than this part of the longest texts holds names or numbers, not what to ask about."""
_SAMPLED_PARQUET = 64 * 1024**2
"""Bytes; of a larger file, a row group would take long to read."""
_DELIMITERS = ",;\t|"
_ID_NAME = re.compile(r"(?is:(?:.*[\W_])?(?:u?u?id|guid))|(?s:.*[a-z]I[dD])")
_ID_VALUE = re.compile(r"(?!-?\d+[.,]\d+$)(?=.*\d)\S+")
"""One word with a digit, but no decimal number."""
_IMAGE_START = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"RIFF")
_IMAGE_REFERENCE = re.compile(
    r"data:image/.*|(?:https://[a-z0-9.-]+(?::\d+)?/|s3://|file:///|/).*"
    r"\.(?:png|jpe?g|webp|gif|bmp|tiff?)(?:\?.*)?",
    re.IGNORECASE,
)
_START_BYTES = 1024 * 1024


@dataclass(frozen=True)
class FileColumns:
    """What a file has.

    :param texts: names of columns with text in them, the longest texts first, without ids, images and much
        shorter ones; without any, of the others.
    :param images: names of columns with images.
    :param image_hosts: of the images in the first rows that the web has.
    :param first: rows at the file's beginning; none of a large Parquet file.
    :param csv_options: what the operator must be told of a CSV file.
    :param format: what the operator must be told where the file's name doesn't.
    """

    rows: int
    names: Sequence[str]
    texts: Sequence[str]
    images: Sequence[str]
    image_hosts: Sequence[str]
    first: Sequence[Mapping[str, Any] | BadRow] = ()
    csv_options: dict[str, Any] | None = None
    format: SourceFormat | None = None
    is_csv: bool = False

    @property
    def askable(self) -> list[str]:
        """Columns that a prompt can name: the texts, else ids where the file has no images."""
        names = self.texts or [name for name in self.names if not self.images]
        return [name for name in names if _has_placeholder(name)]

    def notes(self, asked: Sequence[str]) -> list[str]:
        """What else to know of a prompt over these columns, a sentence each."""
        found, rows = [], count_of(len(self.first), "row")
        if self.is_csv and self.names and all(map(_is_number, self.names)):
            found.append(
                f"the first line is read as names of columns, such as {self.names[0]!r}; if it is a row, add "
                "a line with names above it."
            )
        if encoding := (self.csv_options or {}).get("encoding"):
            found.append(f"the text is not UTF-8, and {encoding!r} is a guess; see it in preview.")
        if bad := [row for row in self.first if not isinstance(row, Mapping)]:
            found.append(f"{len(bad):,} of the first {rows} can't be read and would fail ({bad[0].reason}).")
        for name in asked:
            nulls = sum(isinstance(row, Mapping) and row.get(name) is None for row in self.first)
            if nulls:
                found.append(f"{name!r} is null in {nulls:,} of the first {rows}, which would fail.")
        return found


def columns_of(source: str, kind: SourceFormat | None, credentials: AwsCredentials | None) -> FileColumns:
    """Columns and rows of a file.

    :raises SpecError: it has no rows, or no column that a prompt can name.
    :raises RaybatchError: it is not there, or is not what its name or `kind` says; in the job's words.
    """
    from airflow_provider_raybatch.job.input.listing import resolve
    from airflow_provider_raybatch.job.input.survey import survey

    given = parse(InputArguments, {"source": [source], "format": kind})
    listing = resolve(given, credentials)
    options = _csv_options(listing, credentials) if listing.format == "csv" else None
    if options is not None:
        listing = resolve(given.model_copy(update={"csv_options": CsvOptions(**options)}), credentials)
    surveyed = survey(listing, credentials)
    if not surveyed.rows:
        header = surveyed.schemas[0] if listing.format == "csv" and surveyed.schemas else None
        where = " below its first line, which is the header" if header is not None and header.names else ""
        raise SpecError(f"file: {source} has no rows{where}; give one that has some.")
    found = _columns(listing, surveyed, credentials)
    found = replace(found, csv_options=options, format=kind, is_csv=listing.format == "csv")
    first = found.first
    if first and not any(isinstance(row, Mapping) for row in first):
        rows, why = count_of(len(first), "row"), first[0].reason  # type: ignore[union-attr]
        raise SpecError(f"file: none of the first {rows} of {source} can be read ({why}); correct it.")
    if not found.askable and not found.images:
        raise SpecError(f"file: {source} has no column that a prompt can name; rename one in the file.")
    return found


def _columns(listing: Listing, surveyed: Surveyed, credentials: AwsCredentials | None) -> FileColumns:
    """All columns by what they hold, and the first rows, none of large Parquet files."""
    from airflow_provider_raybatch.job.input.reader import Reader
    from airflow_provider_raybatch.job.input.survey import cut
    from airflow_provider_raybatch.job.media.values import holds_bytes

    schema = surveyed.schemas[0]
    if listing.format == "parquet" and schema is not None and listing.files[0].size > _SAMPLED_PARQUET:
        texts = [one.name for one in schema if _is_text(one.type) and not _ID_NAME.fullmatch(one.name)]
        images = [one.name for one in schema if holds_bytes(one.type)]
        return FileColumns(surveyed.rows, list(schema.names), texts, images, ())
    first = Reader(listing, None, credentials).read(cut(surveyed, _FIRST_ROWS, _FIRST_ROWS)[0]).rows
    rows = [row for row in first if isinstance(row, dict)]
    in_rows = dict.fromkeys(name for row in rows for name in row)
    names = list(in_rows) if schema is None else list(schema.names)
    values = {name: [row[name] for row in rows if row.get(name) not in (None, "")] for name in names}
    shown = {name: [one for value in values[name] for one in _each_image(value)] for name in names}
    images = [name for name in names if shown[name] and all(map(_is_image, shown[name]))]
    urls = [url for name in images for url in shown[name] if str(url)[:8].lower() == "https://"]
    others = [name for name in names if name not in images and not _are_ids(name, values[name])]
    words = {name: sum(map(_words, values[name])) for name in others}
    least = max(1, max(words.values(), default=0) // _LEAST_PART)
    texts = sorted((name for name in others if words[name] >= least), key=lambda name: -words[name])
    hosts = sorted({urlsplit(url).hostname or "" for url in urls})
    return FileColumns(surveyed.rows, names, texts or others, images, hosts, first)


def _are_ids(name: str, values: Sequence[Any]) -> bool:
    """Whether a column names rows, so that no two of them would make an equal request."""
    if _ID_NAME.fullmatch(name):
        return True
    different = {value for value in values if isinstance(value, (str, int))}
    return 1 < len(values) == len(different) and all(_ID_VALUE.fullmatch(str(one)) for one in different)


def _each_image(value: Any) -> list[Any]:
    """What a value has where it holds one image or several."""
    some = value if isinstance(value, (list, tuple)) else [value]
    return [one.get("bytes") or one.get("path") if isinstance(one, dict) else one for one in some]


def _is_image(one: Any) -> bool:
    if isinstance(one, bytes):
        return one.startswith(_IMAGE_START)
    return isinstance(one, str) and _IMAGE_REFERENCE.fullmatch(one) is not None


def _csv_options(listing: Listing, credentials: AwsCredentials | None) -> dict[str, Any] | None:
    """The encoding if it is not UTF-8; the delimiter if only another one splits the header."""
    from airflow_provider_raybatch.job.input.opening import open_file

    file = listing.files[0]
    with open_file(file, credentials) as stream:
        start = stream.read(_START_BYTES)
    encoding = _other_encoding(start)
    line = start.decode(encoding or "utf-8-sig", errors="replace").partition("\n")[0]
    fields = {delimiter: _fields(line, delimiter) for delimiter in _DELIMITERS}
    best = max(fields, key=lambda delimiter: fields[delimiter])
    found = {"delimiter": best} if fields[file.delimiter] <= 1 < fields[best] else {}
    return {**found, **({"encoding": encoding} if encoding else {})} or None


def _other_encoding(start: bytes) -> str | None:
    """What text that begins like this may be written in; ``None`` for UTF-8 and for what is not text."""
    from airflow_provider_raybatch.job.input.content import real_format

    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    if (place := start[:2].find(b"\0")) >= 0:  # UTF-16 without a mark
        return ("utf-16-be", "utf-16-le")[place]
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        # Of Excel in Western Europe and the Americas.
        return None if b"\0" in start or real_format(io.BytesIO(start)) else "cp1252"
    return None


def _fields(line: str, delimiter: str) -> int:
    try:
        return len(next(csv.reader([line], delimiter=delimiter), []))
    except csv.Error:
        return 0


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(value) or pa.types.is_large_string(value))


def _words(value: object) -> int:
    """Characters of a text with letters in it."""
    return len(value) if isinstance(value, str) and any(map(str.isalpha, value)) else 0


def _is_number(name: str) -> bool:
    return name.strip().replace(",", ".").replace(".", "", 1).lstrip("-").isdigit()


def _has_placeholder(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return RowTemplate(placeholder(name)).columns == [name]
