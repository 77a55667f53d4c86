# SPDX-License-Identifier: Apache-2.0
"""Limits by Airflow's settings."""

from __future__ import annotations

import dataclasses

import pytest

from airflow_provider_raybatch.batch_api.server.limits import ApiLimits, api_limits
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.get_provider_info import get_provider_info


def configure(patch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in values.items():
        patch.setenv(f"AIRFLOW__RAYBATCH__BATCH_API_{name.upper()}", value)


def test_defaults_are_those_that_airflow_shows() -> None:
    options = get_provider_info()["config"]["raybatch"]["options"]
    assert api_limits() == ApiLimits()
    for field in dataclasses.fields(ApiLimits):
        assert options[f"batch_api_{field.name}"]["default"] == str(field.default)


def test_each_limit_can_be_set_and_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [field.name for field in dataclasses.fields(ApiLimits) if field.name != "strict"]
    configure(monkeypatch, **dict.fromkeys(names, " 1_000 "))
    assert api_limits() == ApiLimits(**dict.fromkeys(names, 1000))
    configure(monkeypatch, **dict.fromkeys(names, "0"))
    assert api_limits() == ApiLimits(**dict.fromkeys(names))


def test_strict_has_the_limits_of_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not api_limits().strict
    configure(monkeypatch, strict="True")
    assert (api_limits().strict, api_limits().max_file_bytes) == (True, 200_000_000)
    configure(monkeypatch, max_file_bytes="0")
    assert api_limits().max_file_bytes == 200_000_000
    configure(monkeypatch, max_file_bytes="1000")
    assert api_limits().max_file_bytes == 1000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("strict", "perhaps"),
        ("max_file_bytes", "2 GB"),
        ("batches_per_hour", "-1"),
        ("max_user_bytes", "1e9"),
    ],
)
def test_a_wrong_setting_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    configure(monkeypatch, **{name: value})
    with pytest.raises(SpecError, match=rf"\[raybatch\] batch_api_{name}: '{value}' is not"):
        api_limits()
