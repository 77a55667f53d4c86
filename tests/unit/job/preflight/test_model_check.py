# SPDX-License-Identifier: Apache-2.0
"""What the check of a model hands back to the driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight import loaded_model, model_check, model_version
from tests.support.model_configs import SHAPES
from tests.support.specs import spec


class Resolved(str):
    """Stands for the class that vLLM makes of a revision, which drivers without vLLM can't unpickle."""


def test_a_commit_is_plain_text() -> None:
    commit = "a" * 40
    found = model_version._commit("acme/tiny", commit, Resolved(commit), "config.json")
    assert found == commit
    assert type(found) is str


class Config:
    """Stands for vLLM's config of a model."""

    def __init__(self, config: dict[str, Any] | None) -> None:
        self.hf_config = self
        self._config = config

    def to_dict(self) -> dict[str, Any]:
        if self._config is None:
            raise RuntimeError("the model's own code")
        return self._config


@pytest.mark.parametrize(
    ("config", "kind", "stored"),
    [
        (SHAPES["8B"], "llama", None),
        ({"model_type": "gemma3", "text_config": SHAPES["270M"]}, "gemma3_text", 7),
        ({"model_type": "of_tomorrow"}, None, None),
        (None, None, None),
    ],
)
def test_sizes_come_from_the_config_that_vllm_completed(
    tmp_path: Path, config: dict[str, Any] | None, kind: str | None, stored: int | None
) -> None:
    """Files are looked at only where they tell more."""
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    found = model_check._sizes(spec(engine="vllm", model=str(tmp_path)), Config(config), {})
    assert (found.shape.kind if found else None, found.stored if found else None) == (kind, stored)


VLLM_SAYS = (
    "1 validation error for ModelConfig\n  Value error, User-specified max_model_len (1000000) is greater "
    "than the derived max_model_len (max_position_embeddings=131072.0 or model_max_length=None in model's "
    "config.json). To allow overriding this maximum, set the env var VLLM_ALLOW_LONG_MAX_MODEL_LEN=1."
)


@pytest.mark.parametrize(
    ("says", "sentence"),
    [
        (
            VLLM_SAYS,
            "engine_args: max_model_len: 1,000,000 is more than the 131,072 tokens that model 'acme/tiny' "
            "takes; lower it, or leave it out.",
        ),
        ("x", "engine_args: vLLM can't use model 'acme/tiny' with these arguments (x)."),
    ],
)
def test_a_context_that_the_model_lacks_is_named(
    monkeypatch: pytest.MonkeyPatch, says: str, sentence: str
) -> None:
    def refuse(args: dict[str, Any]) -> None:
        raise ValueError(says)

    monkeypatch.setattr(loaded_model.vllm_compat, "model_config", refuse)
    with pytest.raises(PreflightError) as caught:
        loaded_model._model_config({"model": "acme/tiny"})
    assert str(caught.value) == sentence
