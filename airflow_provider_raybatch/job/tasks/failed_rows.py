# SPDX-License-Identifier: Apache-2.0
"""Rows that fail after their response came, while the dataset is published."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def with_failures(table: pa.Table, reasons: pa.Array, step: str) -> pa.Table:
    """Rows of parts, where those with a reason have failed.

    :param reasons: null for a row that stays as it is.
    """
    if reasons.null_count == len(reasons):
        return table
    failures = [
        failure if reason is None else {"step": step, "reason": reason, "request": ""}
        for failure, reason in zip(table["failure"].to_pylist(), reasons.to_pylist(), strict=True)
    ]
    place = table.schema.get_field_index("failure")
    table = table.set_column(place, "failure", pa.array(failures, table.schema.field(place).type))
    ok = pc.and_(table["ok"], pc.is_null(reasons))
    return table.set_column(table.schema.get_field_index("ok"), "ok", ok)
