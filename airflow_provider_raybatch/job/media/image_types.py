# SPDX-License-Identifier: Apache-2.0
"""Arrow types of columns that hold images."""

from __future__ import annotations

import pyarrow as pa

_CONTENT = ("bytes", "path")
"""Fields of the struct that Hugging Face's datasets write."""


def holds_bytes(kind: pa.DataType) -> bool:
    """Whether a column of images has their content, and not references to it."""
    kind = _one_of(kind)
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        return place >= 0 and _is_binary(kind[place].type)
    return _is_binary(kind)


def may_hold_images(kind: pa.DataType) -> bool:
    """Whether a column of this type may be one of images."""
    kind = _one_of(kind)
    if pa.types.is_struct(kind):
        return any(kind.get_field_index(name) >= 0 for name in _CONTENT)
    return _is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.null()


def _one_of(kind: pa.DataType) -> pa.DataType:
    """The type of one value, where `kind` is that of lists of them."""
    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return kind.value_type if is_list else kind


def _is_binary(kind: pa.DataType) -> bool:
    return any((
        pa.types.is_binary(kind),
        pa.types.is_large_binary(kind),
        pa.types.is_fixed_size_binary(kind),
    ))
