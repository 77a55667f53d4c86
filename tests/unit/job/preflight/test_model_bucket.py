# SPDX-License-Identifier: Apache-2.0
"""A model in a bucket: what is missing is said before vLLM is imported, and changed files count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass, PreflightError, RaybatchError
from airflow_provider_raybatch.job.preflight import adapter_check
from airflow_provider_raybatch.job.preflight import model_version as module
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.model_version import (
    Version,
    check_bucket,
    current,
    is_in_bucket,
    model_digest,
)
from airflow_provider_raybatch.storage.errors import NO_IDENTITY, StorageError
from tests.support.specs import spec


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        ("s3://bucket/model", True),
        ("S3://bucket/model", True),
        ("gs://bucket/model", True),
        ("az://container/model", True),
        ("/models/s3", False),
        ("meta-llama/Llama-3.1-8B", False),
        ("file:///models/a", False),
    ],
)
def test_buckets_are_those_of_vllm(model: str, is_one: bool) -> None:
    assert is_in_bucket(model) is is_one


def test_a_changed_file_is_another_model(put: Callable[..., str]) -> None:
    model = put(config=b"{}", weights=b"one")
    first = model_digest(model, "")
    assert current(model, {}, None) == Version(first)
    put(weights=b"two")
    assert model_digest(model, "") != first == hex_of(first)
    put(weights=b"one")
    assert model_digest(model, "") == first


def hex_of(digest: str) -> str:
    return f"{int(digest, 16):032x}"


def test_of_another_store_no_version_is_known() -> None:
    assert current("gs://models/llama", {}, None) is None


@pytest.mark.parametrize("package", ["runai_model_streamer", "runai_model_streamer_s3"])
def test_a_missing_reader_is_named(
    put: Callable[..., str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    model = put(config=b"{}")
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == package else object())
    with pytest.raises(PreflightError) as refused:
        check_bucket(model)
    assert str(refused.value) == (
        f"model: vLLM reads {model!r} with {package.replace('_', '-')}, which the cluster's nodes lack; "
        "install vllm[runai] in their image, or copy the model to a folder that they can read."
    )


def test_what_can_not_be_read_is_said(put: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: object())
    model = put(config=b"{}")
    check_bucket(model)
    with pytest.raises(PreflightError, match=f"^model: nothing is at '{model}x'; correct the bucket or"):
        check_bucket(f"{model}x")
    with pytest.raises(RaybatchError, match=r"^model: s3://no-such-bucket/m: can't list it, the bucket does"):
        check_bucket("s3://no-such-bucket/m")


def test_nobody_is_told_to_set_what_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes read models and adapters by their own identity, whatever connection the job has."""

    def refuse(*_: object) -> None:
        raise StorageError(f"s3://bucket/x: can't list it, {NO_IDENTITY}", FailureClass.USER_ERROR)

    monkeypatch.setattr(module, "folder", refuse)
    monkeypatch.setattr(adapter_check, "files_of", refuse)
    with pytest.raises(StorageError) as of_model:
        model_digest("s3://bucket/x", "")
    asked = AskedModel(spec(engine="vllm", model="m", adapter="s3://bucket/x"), [], {})
    with pytest.raises(PreflightError) as of_adapter:
        adapter_check.check_adapters(asked)
    for caught in (of_model, of_adapter):
        assert "set aws_conn_id" not in str(caught.value)
        assert "give them a role, since aws_conn_id reads neither models nor adapters" in str(caught.value)
    assert of_model.value.failure_class is FailureClass.USER_ERROR
