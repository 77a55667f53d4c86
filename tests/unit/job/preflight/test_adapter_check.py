# SPDX-License-Identifier: Apache-2.0
"""An adapter that vLLM can't load, or not with this model, is refused before an engine starts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.adapter_check import as_located, check_adapters, notes_of
from airflow_provider_raybatch.job.preflight.engine_check import as_checked
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from tests.support.adapters import safetensors, save_adapter
from tests.support.approved import AssertSentences
from tests.support.hub import Hub
from tests.support.specs import spec

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 256, "num_hidden_layers": 3}
NAME = "acme/lora"


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path / "model")


def job(model: str, adapter: Path | str) -> Any:
    return spec(engine="vllm", model=model, adapter=str(adapter))


def refusal(model: str, adapter: Path | str) -> str:
    with pytest.raises(PreflightError) as refused:
        check_adapters(job(model, adapter), {})
    sentence = str(refused.value)
    assert re.fullmatch(r"adapter: .*[^.]\.", sentence), sentence
    return sentence


def without(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def with_file(name: str, content: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


WEIGHTS = "adapter_model.safetensors"
POINTER = b"version https://git-lfs.github.com/spec/v1"
WIDE = safetensors({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": numpy.ones((4, 512))})


def test_an_adapter_that_can_t_be_loaded_is_refused(
    model: str, tmp_path: Path, assert_sentences: AssertSentences
) -> None:
    def said(change: Callable[[Path], None] | None = None, **config: Any) -> str:
        shutil.rmtree(tmp_path / "adapter", ignore_errors=True)
        folder = save_adapter(tmp_path / "adapter", **config)
        if change is not None:
            change(folder)
        return refusal(model, folder)

    assert_sentences(said)


def test_a_folder_that_is_missing_is_refused(model: str, tmp_path: Path) -> None:
    assert "no folder is at '/none/here' on the node that checks it" in refusal(model, "/none/here")
    assert "is a whole model and no adapter; give it as model" in refusal(model, model)


def test_a_good_adapter_gives_rank_and_digest(model: str, tmp_path: Path) -> None:
    """The digest is that of weights and config, wherever they lie, and of no other file."""
    folder = save_adapter(tmp_path / "adapter", rank_pattern={"q_proj": 8})
    (found,) = check_adapters(job(model, folder), {}).values()
    assert (found.rank, found.location, found.base) == (8, str(folder), "model")
    assert found.size == (folder / WEIGHTS).stat().st_size
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "README.md").write_text("# Mine")
    assert check_adapters(job(model, copy), {})[str(copy)].digest == found.digest
    save_adapter(copy, seed=1, rank_pattern={"q_proj": 8})
    assert check_adapters(job(model, copy), {})[str(copy)].digest != found.digest


def test_other_base_model_is_a_warning(model: str, tmp_path: Path) -> None:
    """Its sizes fit, and a copy may have another name."""
    adapters = {"a": str(save_adapter(tmp_path / "a", base_model_name_or_path="org/Other-1B")), "b": ""}
    adapters["b"] = str(save_adapter(tmp_path / "b", base_model_name_or_path="hub/Model"))
    asked = spec(engine="vllm", model=model, adapters=adapters, adapter_column="customer")
    (note,) = notes_of(asked, check_adapters(asked, {}))
    assert note.startswith("adapters: a: its config names the model 'org/Other-1B', and the job's is")


def test_an_adapter_in_a_bucket_is_checked_there(put: Callable[..., str], model: str, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "adapter")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    location = put(**files)
    (found,) = check_adapters(job(model, location), {}).values()
    assert (found.rank, found.location) == (4, location)
    put(**{WEIGHTS: (save_adapter(tmp_path / "other", seed=1) / WEIGHTS).read_bytes()})
    (other,) = check_adapters(job(model, location), {}).values()
    assert other.digest != found.digest
    assert "nothing is at 's3://" in refusal(model, f"{location}-none")


def test_an_adapter_on_the_hub_is_pinned(hub: Hub, model: str, tmp_path: Path) -> None:
    """All nodes load the commit that was checked, and the digest is the commit's."""
    folder = save_adapter(tmp_path / "adapter")
    first = hub.push(NAME, folder)
    asked = job(model, NAME)
    checked = check_adapters(asked, {"HF_TOKEN": SecretStr("hf_x")})
    assert checked[NAME].location == f"{NAME}@{first}"
    pinned = as_checked(asked, ModelCheck(adapters=checked, lora_args={"enable_lora": True}))
    assert (pinned.adapter, pinned.adapter_digests) == (f"{NAME}@{first}", {NAME: checked[NAME].digest})
    assert pinned.engine_args == {"enable_lora": True}
    second = hub.push(NAME, save_adapter(folder, seed=1))
    assert check_adapters(asked, {})[NAME].location == f"{NAME}@{second}"
    again = check_adapters(job(model, f"{NAME}@{first}"), {})
    assert again[NAME] == checked[NAME]
    assert as_located(asked, {}) == {}
    assert "'acme/none' can't be read" in refusal(model, "acme/none")
