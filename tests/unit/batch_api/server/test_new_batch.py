# SPDX-License-Identifier: Apache-2.0
"""Bodies of creates."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.batch_api.server.new_batch import new_batch
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError

BODY = {
    "input_file_id": "file-abc",
    "endpoint": "/v1/chat/completions",
    "completion_window": "24h",
}


def test_a_body_of_the_official_client() -> None:
    batch = new_batch({
        **BODY,
        "metadata": {"job": "nightly", "idempotency_key": "k1"},
        "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    })
    assert (batch.input_file_id, batch.endpoint, batch.window, batch.seconds) == (*BODY.values(), 86400)
    assert batch.metadata == {"job": "nightly", "idempotency_key": "k1"}
    assert batch.outputs_expire_after == 3600
    assert batch.idempotency_key == "k1"


def test_outputs_are_kept_for_thirty_days_by_default() -> None:
    assert (
        new_batch({**BODY, "metadata": None, "output_expires_after": None}).outputs_expire_after == 2_592_000
    )


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"input_file_id": None}, "input_file_id", "missing_required_parameter"),
        ({"input_file_id": 7}, "input_file_id", "invalid_type"),
        ({"input_file_id": "\ud800"}, "input_file_id", "invalid_value"),
        ({"endpoint": None}, "endpoint", "missing_required_parameter"),
        ({"endpoint": "/v1/responses"}, "endpoint", "invalid_value"),
        ({"endpoint": ["/v1/embeddings"]}, "endpoint", "invalid_type"),
        ({"completion_window": None}, "completion_window", "missing_required_parameter"),
        ({"completion_window": "1w"}, "completion_window", "invalid_value"),
        ({"completion_window": 24}, "completion_window", "invalid_type"),
        ({"model": "m"}, "model", "unknown_parameter"),
        ({"metadata": []}, "metadata", "invalid_type"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "invalid_value"),
        ({"metadata": {"k" * 65: ""}}, "metadata", "invalid_value"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k", "invalid_value"),
        ({"metadata": {"k": 1}}, "metadata.k", "invalid_type"),
        ({"metadata": {"k": None}}, "metadata.k", "invalid_type"),
        ({"metadata": {"\udfff": "v"}}, "metadata", "invalid_value"),
        ({"output_expires_after": 3600}, "output_expires_after", "invalid_value"),
        ({"output_expires_after": {"anchor": "created_at"}}, "output_expires_after", "invalid_value"),
        (
            {"output_expires_after": {"anchor": "last_active_at", "seconds": 3600}},
            "output_expires_after.anchor",
            "invalid_value",
        ),
        *(
            (
                {"output_expires_after": {"anchor": "created_at", "seconds": seconds}},
                "output_expires_after.seconds",
                "invalid_value",
            )
            for seconds in (3599, 2_592_001, True, 3600.5, "3600", None)
        ),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(OpenAiError) as refused:
        new_batch({**BODY, **change})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, param, code)
    assert str(refused.value).startswith(f"{param}: ")


def test_the_largest_metadata_is_kept() -> None:
    metadata = {f"{n:064d}": "ü" * 512 for n in range(16)}
    assert new_batch({**BODY, "metadata": metadata}).metadata == metadata


def test_strict_takes_openais_window_alone() -> None:
    assert new_batch(BODY, strict=True).seconds == 86400
    with pytest.raises(OpenAiError, match="must be '24h'"):
        new_batch({**BODY, "completion_window": "1h"}, strict=True)


def test_the_digest_is_that_of_the_whole_body() -> None:
    again = new_batch(dict(reversed(BODY.items())))
    other = new_batch({**BODY, "metadata": {"run": "2"}})
    assert new_batch(BODY).digest == again.digest
    assert new_batch(BODY).digest != other.digest


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("24h", 86400), ("10m", 600), ("90m", 5400), ("1h", 3600), ("3d", 259200), ("14d", 1209600)],
)
def test_windows_have_a_length(given: str, seconds: int) -> None:
    assert new_batch({**BODY, "completion_window": given}).seconds == seconds


@pytest.mark.parametrize(
    "given",
    ["", "9m", "0h", "15d", "337h", "20161m", "24", "h", "1w", "24H", " 24h", "24h\n", "1.5h", "-1h", "٢٤h",
     "999999999999999999d"],
)  # fmt: skip
def test_other_windows_are_refused(given: str) -> None:
    with pytest.raises(OpenAiError, match="it must be from 10 minutes to 14 days"):
        new_batch({**BODY, "completion_window": given})
