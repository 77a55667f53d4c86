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
from airflow_provider_raybatch.job.preflight import adapter_check
from airflow_provider_raybatch.job.preflight.adapter_check import (
    CheckedAdapter,
    CheckedAdapters,
    as_located,
    check_adapters,
    lora_arguments,
    notes_of,
)
from airflow_provider_raybatch.job.preflight.engine_check import as_checked
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
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
        check_adapters(AskedModel(job(model, adapter), [], {}))
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
    (found,) = check_adapters(AskedModel(job(model, folder), [], {})).values()
    assert (found.rank, found.location, found.base) == (8, str(folder), "model")
    assert found.size == (folder / WEIGHTS).stat().st_size
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "README.md").write_text("# Mine")
    assert check_adapters(AskedModel(job(model, copy), [], {}))[str(copy)].digest == found.digest
    save_adapter(copy, seed=1, rank_pattern={"q_proj": 8})
    assert check_adapters(AskedModel(job(model, copy), [], {}))[str(copy)].digest != found.digest


def test_other_base_model_is_a_warning(model: str, tmp_path: Path) -> None:
    """Its sizes fit, and a copy may have another name."""
    adapters = {"a": str(save_adapter(tmp_path / "a", base_model_name_or_path="org/Other-1B")), "b": ""}
    adapters["b"] = str(save_adapter(tmp_path / "b", base_model_name_or_path="hub/Model"))
    asked = spec(engine="vllm", model=model, adapters=adapters, adapter_column="customer")
    (note,) = notes_of(asked, check_adapters(AskedModel(asked, [], {})))
    assert note.startswith("adapters: a: its config names the model 'org/Other-1B', and the job's is")


def test_an_adapter_in_a_bucket_is_checked_there(put: Callable[..., str], model: str, tmp_path: Path) -> None:
    folder = save_adapter(tmp_path / "adapter")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    location = put(**files)
    (found,) = check_adapters(AskedModel(job(model, location), [], {})).values()
    assert (found.rank, found.location) == (4, location)
    put(**{WEIGHTS: (save_adapter(tmp_path / "other", seed=1) / WEIGHTS).read_bytes()})
    (other,) = check_adapters(AskedModel(job(model, location), [], {})).values()
    assert other.digest != found.digest
    assert "nothing is at 's3://" in refusal(model, f"{location}-none")


def test_an_adapter_on_the_hub_is_pinned(hub: Hub, model: str, tmp_path: Path) -> None:
    """All nodes load the commit that was checked, and the digest is the commit's."""
    folder = save_adapter(tmp_path / "adapter")
    first = hub.push(NAME, folder)
    asked = job(model, NAME)
    checked = check_adapters(AskedModel(asked, [], {"HF_TOKEN": SecretStr("hf_x")}))
    assert checked[NAME].location == f"{NAME}@{first}"
    pinned = as_checked(asked, ModelCheck(adapters=checked, lora_args={"enable_lora": True}))
    assert (pinned.adapter, pinned.adapter_digests) == (f"{NAME}@{first}", {NAME: checked[NAME].digest})
    assert pinned.engine_args == {"enable_lora": True}
    second = hub.push(NAME, save_adapter(folder, seed=1))
    assert check_adapters(AskedModel(asked, [], {}))[NAME].location == f"{NAME}@{second}"
    again = check_adapters(AskedModel(job(model, f"{NAME}@{first}"), [], {}))
    assert again[NAME] == checked[NAME]
    assert as_located(asked, {}) == {}
    assert "'acme/none' can't be read" in refusal(model, "acme/none")


class Sizes:
    """Engine arguments for adapters of some ranks, with a version of vLLM on GPUs or CPUs."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch

    def of(
        self,
        ranks: list[int],
        given: dict[str, Any] | None = None,
        *,
        largest: int = 2**20,
        on_cpu: bool = False,
        vllm: str = "0.29.0+cpu",
    ) -> dict[str, Any]:
        known = (1, 8, 16, 32, 64, 128, 256, 320, 512)
        self._patch.setattr(adapter_check.vllm_compat_models, "lora_ranks", lambda: known)
        self._patch.setattr(adapter_check.vllm_compat, "is_on_cpu", lambda: on_cpu)
        self._patch.setattr(adapter_check.vllm_compat, "installed_version", lambda: vllm)
        asked = AskedModel(spec(engine="vllm", engine_args=given or {}), [], {})
        made = {str(number): CheckedAdapter("", "", rank, largest) for number, rank in enumerate(ranks)}
        return lora_arguments(asked, CheckedAdapters(made))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Sizes:
    return Sizes(monkeypatch)


@pytest.mark.parametrize(
    ("ranks", "others", "rank", "at_once", "kept"),
    [
        ([4], {}, 8, 1, 1),
        ([8, 17], {}, 32, 2, 2),
        ([16] * 40, {}, 16, 8, 40),
        ([16] * 40, {"largest": 2**30}, 16, 8, 8),  # not 40 GiB of main memory
        ([16] * 40, {"largest": 0}, 16, 8, 40),
        ([4, 4], {"on_cpu": True}, 8, 3, 3),  # the last slot stays empty
        ([4] * 20, {"on_cpu": True, "vllm": "0.32.1"}, 8, 21, 21),
        ([4, 4], {"on_cpu": True, "vllm": "0.33.0"}, 8, 2, 2),
    ],
)
def test_sizes_follow_the_adapters(
    sizes: Sizes, ranks: list[int], others: dict[str, Any], rank: int, at_once: int, kept: int
) -> None:
    made = {"max_lora_rank": rank, "max_loras": at_once, "max_cpu_loras": kept}
    assert sizes.of(ranks, **others) == {"enable_lora": True, **made}


def test_given_sizes_are_kept(sizes: Sizes) -> None:
    given = {"max_lora_rank": 64, "max_loras": 16}
    assert sizes.of([4, 4], given) == {"enable_lora": True, "max_cpu_loras": 16}
    assert sizes.of([4, 4], {"max_loras": 7}, on_cpu=True)["max_cpu_loras"] == 7


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_lora_rank": 8}, "engine_args: max_lora_rank is 8, and an adapter has the rank 16"),
        ({"max_loras": 2}, "engine_args: max_loras is 2, and vLLM 0.29.0+cpu on CPUs needs one more"),
    ],
)
def test_a_size_that_gives_wrong_answers_is_refused(
    sizes: Sizes, given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PreflightError) as refused:
        sizes.of([16, 4], given, on_cpu=True)
    assert str(refused.value).startswith(sentence)
