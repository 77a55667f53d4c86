# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.secrets import (
    FollowerCommand,
    key_of_job,
    new_run_key,
    order_package,
    read_order,
    write_order,
)

RUN_KEY = "12" * 32
KEY = key_of_job(RUN_KEY, "raybatch-x-0")
ORDER = FollowerCommand(attempt=2, nonce="17", deadline=1.5, orphan_timeout=60)


def test_each_submission_has_a_key_of_its_own() -> None:
    keys = {key_of_job(run_key, f"raybatch-x-{k}") for run_key in (RUN_KEY, new_run_key()) for k in range(3)}
    assert len(keys) == 6
    assert all(len(bytes.fromhex(key)) == 32 for key in keys)
    assert key_of_job(RUN_KEY, "raybatch-x-0") == KEY


def test_an_order_arrives_whole() -> None:
    assert read_order(write_order(ORDER, KEY), KEY) == ORDER
    assert KEY.encode() not in write_order(ORDER, KEY)
    assert KEY not in order_package(KEY)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        ORDER.model_dump_json().encode(),
        b"0" * 32 + b" " + ORDER.model_dump_json().encode(),
        write_order(ORDER, "ab" * 32),
        write_order(ORDER, KEY).replace(b"1.5", b"9.5"),
        write_order(ORDER, KEY)[:-1],
    ],
)
def test_unsigned_text_is_not_an_order(content: bytes) -> None:
    assert read_order(content, KEY) is None
