# SPDX-License-Identifier: Apache-2.0
"""Record batches of Arrow IPC, as a stream or a file (Feather): found by their headers, read one by one.

pyarrow reads a stream only from its beginning, and the bodies of all batches that it passes. So headers are
read here, by the few fields of their flatbuffer that tell where the next one lies:
https://arrow.apache.org/docs/format/Columnar.html#encapsulated-message-format.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

_FILE = b"ARROW1\0\0"
_CONTINUED = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_HEAD = 64 * 1024
"""Bytes that are read with the beginning of a message; most small batches lie in them."""


class ArrowFileError(ValueError):
    """The content is not Arrow IPC that can be read batch by batch; the text says why."""


@dataclass(frozen=True)
class ArrowMessage:
    """Header of a message of Arrow.

    :param at: its first byte.
    :param stop: one past its body.
    :param rows: of a record batch, whose columns have `body` bytes.
    """

    at: int
    stop: int
    kind: int
    rows: int
    body: int


def batches(stream: BinaryIO) -> tuple[pa.Schema, list[ArrowMessage]]:
    """The schema of a file, and where its batches lie.

    :raises ArrowFileError: it is something else, is cut off, or has dictionaries apart from its batches.
    :raises pa.ArrowException: its schema is broken, or has a type that pyarrow doesn't know.
    """
    size = stream.seek(0, io.SEEK_END)
    schema, found = read_schema(stream), []
    for message in _messages(stream, size):
        if message.kind == _DICTIONARY:
            raise ArrowFileError("it has columns with dictionaries, which Arrow keeps apart from its batches")
        if message.kind == _BATCH:
            found.append(message)
    if _is_file(stream):
        stream.seek(0)
        listed = pa.ipc.open_file(stream).num_record_batches
        if listed != len(found):
            raise ArrowFileError(f"it has {len(found)} batches, and its footer lists {listed}")
    return schema, found


def read_schema(stream: BinaryIO) -> pa.Schema:
    """The schema of a file.

    :raises ArrowFileError: it is not Arrow IPC.
    """
    message = _message(stream, len(_FILE) if _is_file(stream) else 0)
    if message is None or message.kind != _SCHEMA:
        raise ArrowFileError("it does not begin with a schema")
    stream.seek(message.at)
    return pa.ipc.read_schema(pa.py_buffer(stream.read(message.stop - message.at)))


def read_batch(stream: BinaryIO, at: int, schema: pa.Schema) -> pa.RecordBatch:
    """The batch whose first byte is `at`.

    :raises ArrowFileError: no batch is there, or it is cut off.
    :raises pa.ArrowException: it is damaged.
    """
    stream.seek(at)
    head = stream.read(_HEAD)
    message = _message(io.BytesIO(head), 0)
    if message is None or message.kind != _BATCH:
        raise ArrowFileError(f"it has no batch at byte {at:,}")
    if (left := message.stop - len(head)) > 0:
        stream.seek(at + len(head))
        head += stream.read(left)
    if len(head) < message.stop:
        raise ArrowFileError(f"it is cut off in the batch at byte {at:,}")
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(head)), schema)
    batch.validate()
    return batch


def _is_file(stream: BinaryIO) -> bool:
    stream.seek(0)
    return stream.read(len(_FILE)) == _FILE


def _messages(stream: BinaryIO, size: int) -> Iterator[ArrowMessage]:
    at = len(_FILE) if _is_file(stream) else 0
    while (message := _message(stream, at)) is not None:
        if message.stop > size:
            raise ArrowFileError(f"it is cut off in the message at byte {at:,}")
        yield message
        at = message.stop


def _message(stream: BinaryIO, at: int) -> ArrowMessage | None:
    """The message at a byte; ``None`` at the end of a stream, with or without its mark."""
    stream.seek(at)
    begins = stream.read(8)
    if not begins or begins == _CONTINUED + bytes(4):
        return None
    if len(begins) < 8 or not begins.startswith(_CONTINUED):
        raise ArrowFileError(f"it has no Arrow message at byte {at:,}")
    length = struct.unpack("<i", begins[4:])[0]
    metadata = stream.read(length) if length > 0 else b""
    try:
        table = _Table(metadata, *struct.unpack_from("<I", metadata))
        kind, body = int(table.value(1, "B")), int(table.value(3, "q"))
        rows = int(table.inner(2).value(0, "q")) if kind == _BATCH else 0
    except struct.error:
        raise ArrowFileError(f"it has a broken message at byte {at:,}") from None
    if len(metadata) < length or min(body, rows) < 0:
        raise ArrowFileError(f"it has a broken message at byte {at:,}")
    start = at + len(begins)
    return ArrowMessage(at, start + length + body, kind, rows, body)


@dataclass(frozen=True)
class _Table:
    """A flatbuffer's table. A field that is not there is zero."""

    content: bytes
    at: int

    def _place(self, field: int) -> int:
        vtable = self.at - struct.unpack_from("<i", self.content, self.at)[0]
        if vtable < 0 or 4 + 2 * field >= struct.unpack_from("<H", self.content, vtable)[0]:
            return 0
        offset: int = struct.unpack_from("<H", self.content, vtable + 4 + 2 * field)[0]
        return offset and self.at + offset

    def value(self, field: int, form: str) -> Any:
        place = self._place(field)
        return struct.unpack_from(f"<{form}", self.content, place)[0] if place else 0

    def inner(self, field: int) -> _Table:
        place = self._place(field)
        return _Table(self.content, place + struct.unpack_from("<I", self.content, place)[0])
