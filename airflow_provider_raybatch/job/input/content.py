# SPDX-License-Identifier: Apache-2.0
"""Finds out by its content what a file is, where its name says something else."""

from __future__ import annotations

import codecs
import json
import re
import zipfile
from typing import Any, BinaryIO

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.listing import SourceFile

_HEAD = 4096
_LINE = 1024 * 1024
"""Bytes of the first line that are kept, so that the file's beginning is not read again."""
_NAMES = {"csv": "CSV", "jsonl": "JSON Lines"}
_UNPACK = "unpack it"
_EXPORT = "write it as Parquet, JSON Lines or CSV"
_NOT_TEXT = rb"[^\t\n\r -~]"
"""After a mark that text may begin with, too."""
_SIGNS = [
    (re.compile(sign, re.DOTALL | re.IGNORECASE), name, remedy)
    for sign, name, remedy in (
        (rb"PAR[1E]" + _NOT_TEXT, "Parquet", "set format='parquet'"),
        (rb"PK(\x03\x04|\x05\x06)", "a zip archive", _UNPACK),
        (rb"\x1f\x8b", "gzip", "let its name end in .gz"),
        (rb"\x28\xb5\x2f\xfd", "zstd", "let its name end in .zst"),
        (rb"BZh[1-9]1AY&SY", "bzip2", _UNPACK),
        (rb"\xfd7zXZ\0", "xz", _UNPACK),
        (rb".{257}ustar(\0|  \0)", "a tar archive", _UNPACK),
        (rb"ORC" + _NOT_TEXT, "ORC", _EXPORT),
        (rb"Obj\x01", "Avro", _EXPORT),
        (rb"ARROW1\0\0|\xff{4}..\0\0", "Arrow IPC (Feather)", "set format='arrow'"),
        (rb"SQLite format 3\0", "an SQLite database", _EXPORT),
        (rb".{8}DUCK..\0{6}", "a DuckDB database", _EXPORT),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an Excel workbook", "save it as CSV"),
        (rb"%PDF-", "PDF", _EXPORT),
        (rb"\s*<(!doctype html|html)\b", "an HTML page", "check the address, which may ask for a login"),
        (rb"\s*<\?xml ", "XML", _EXPORT),
        (rb"version https://git-lfs\.", "a Git LFS pointer", "get the file itself by `git lfs pull`"),
        (rb"\xff\xfe|\xfe\xff|[^\0]\0[^\0]\0|\0[^\0]\0[^\0]", "UTF-16 text", "convert it to UTF-8"),
    )
]
LINES = (
    'write one JSON object a line: orient="records", lines=True in pandas, write_ndjson in Polars, no ARRAY '
    "in DuckDB"
)


def real_format(stream: Any) -> tuple[str, str] | None:
    """What a file is, and what to do about it; ``None`` for text, and for what is not known."""
    stream.seek(0)
    head = stream.read(_HEAD)
    found = next(((name, remedy) for sign, name, remedy in _SIGNS if sign.match(head)), None)
    if found and found[0] == "a zip archive":
        try:
            is_workbook = any(name.startswith("xl/") for name in zipfile.ZipFile(stream).namelist())
        except zipfile.BadZipFile:
            is_workbook = False
        return ("an Excel workbook", "save it as CSV") if is_workbook else found
    return found


def check_text(file: SourceFile, kind: str, stream: BinaryIO) -> None:
    """Refuse a file of text that is something else, and go to the stream's beginning.

    :param kind: ``csv`` or ``jsonl``.
    :raises PreflightError: names what it is.
    """
    found = real_format(stream)
    if found is None and kind == "csv":
        stream.seek(0)
        line = stream.readline(_HEAD).strip()
        if line.startswith(b"{") and isinstance(_parsed(line), dict):
            found = "JSON Lines", "set format='jsonl'"
    elif found and found[0] == "UTF-16 text" and kind == "csv":
        stream.seek(0)
        start = stream.read(2)
        marked = start in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = "utf-16" if marked else "utf-16-be" if start[:1] == b"\0" else "utf-16-le"
        found = found[0], f"set {file.options_with(encoding=encoding)}"
    if found:
        raise PreflightError(f"source: {file.shown} is not {_NAMES[kind]} but {found[0]}; {found[1]}.")
    stream.seek(0)


def check_binary(file: SourceFile, stream: BinaryIO, name: str) -> None:
    """Refuse a file that is something else than its format says.

    :param name: of the format, ``Parquet`` or ``Arrow``.
    :raises PreflightError: names what it is.
    """
    found = real_format(stream)
    stream.seek(0)
    head = stream.read(_HEAD)
    if found is None and re.fullmatch(rb"(?!PAR1|ARROW1)[^\0-\x08\x0e-\x1a]+", head):
        found = "text", "set format to 'csv' or 'jsonl'"
    if found and not found[0].startswith(name):
        raise PreflightError(f"source: {file.shown} is not {name} but {found[0]}; {found[1]}.")


def first_line(stream: BinaryIO, start: int, most: int | None = None) -> bytes:
    """The first line that is not blank, or its first `most` bytes, by default :data:`_LINE`."""
    stream.seek(start)
    return next((line for line in iter(lambda: stream.readline(most or _LINE), b"") if line.strip()), b"")


def check_lines(file: SourceFile, stream: BinaryIO, start: int, line: bytes, rows: int) -> None:
    """Refuse JSON that is not one object a line, by its first line: later ones may parse by chance.

    :param start: first byte, past a byte order mark.
    :param line: what :func:`first_line` found.
    :param rows: of the file.
    :raises PreflightError: names the layout.
    """
    if rows == 1 and len(line) == _LINE:
        line = first_line(stream, start, -1)
    line = line.strip()
    layout = ""
    if line in {b"[", b"{"} and rows > 1:
        layout = "is JSON over many lines"
    elif line.startswith(b"[") and (rows == 1 or _parsed(line) is None):
        layout = "is one JSON list"
    elif rows == 1 and _is_frame(_parsed(line)):
        raise PreflightError(
            f"source: {file.shown} is one object of columns, as pandas' to_json() writes it; write it with "
            'orient="records", lines=True.'
        )
    if layout:
        raise PreflightError(f"source: {file.shown} {layout}, not JSON Lines; {LINES}.")


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _is_frame(row: Any) -> bool:
    """Whether an object is a table in a layout of pandas; a row may look like a table of one cell."""
    if not isinstance(row, dict) or not row:
        return False
    if set(row) == {"columns", "index", "data"}:
        return all(isinstance(value, list) for value in row.values())
    if set(row) == {"schema", "data"} and isinstance(row["data"], list):
        return isinstance(row["schema"], dict) and "fields" in row["schema"]
    inner = next(iter(row.values()))
    if not inner or not all(isinstance(one, dict) and one.keys() == inner.keys() for one in row.values()):
        return False
    return len(row) + len(inner) > 2 and any(all(map(str.isdecimal, names)) for names in (row, inner))
