# SPDX-License-Identifier: Apache-2.0
"""What a look at a model's files shows is refused before vLLM is imported."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input import hub as hub_module
from airflow_provider_raybatch.job.preflight import model_check
from airflow_provider_raybatch.job.preflight.adapter_check import check_adapters
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.model_files import refuse_by_files, refuse_missing
from airflow_provider_raybatch.storage.errors import StorageError
from tests.support.approved import AssertSentences
from tests.support.http_server import OUT_OF_REACH, out_of_reach
from tests.support.hub import Hub
from tests.support.specs import spec

NAME = "acme/tiny"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 11421896\n"
INDEX = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
POOLING = [{"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]
GOOD: dict[str, Any] = {
    "config.json": {"architectures": ["LlamaForCausalLM"]},
    "model.safetensors": b"weights",
    "tokenizer.json": b"tokens",
}
Files = dict[str, Any]


def of(*architectures: str, **fields: Any) -> Files:
    return {**GOOD, "config.json": {"architectures": architectures, **fields}}


def without(*names: str, **more: Any) -> Files:
    return {**{name: content for name, content in GOOD.items() if name not in names}, **more}


def assert_passes(of_model: Any, environment: dict[str, Any]) -> None:
    refuse_by_files(AskedModel(of_model, [], environment))  # raises nothing


KINDS: dict[str, Files] = {
    "LoRA adapter": {
        "adapter_config.json": {"base_model_name_or_path": "meta-llama/Llama-3.1-8B"},
        "adapter_model.safetensors": b"weights",
        "tokenizer.json": b"tokens",
        "training_args.bin": b"",
    },
    "no weights": without(
        "model.safetensors", **{"optimizer.pt": b"", "tiny-Q4_K_M.gguf": b"", "model.onnx": b""}
    ),
    "no tokenizer": without("tokenizer.json"),
    "pointers": {**GOOD, "model.safetensors": POINTER, "tokenizer.json": POINTER},
    "encoder": of("BertModel"),
    "classifier": of("Qwen2ForSequenceClassification"),
}
SHARDS = {
    "model-00001-of-00002.safetensors": b"weights",
    "model.safetensors.index.json": INDEX,
}
"""One is missing."""
CHECKPOINTS = {f"checkpoint-{number}/{name}": content for number in (9, 10) for name, content in GOOD.items()}
TAKEN: dict[str, tuple[Files, dict[str, Any]]] = {
    "whole": (GOOD, {}),
    "PyTorch's own weights": (without("model.safetensors", **{"pytorch_model.bin": b"weights"}), {}),
    "Mistral's own files": (
        {"params.json": {}, "consolidated.safetensors": b"weights", "tekken.json": b"tokens"},
        {},
    ),
    "weights in a folder": (without("model.safetensors", **{"transformer/model.safetensors": b"w"}), {}),
    "another file that is a pointer": ({**GOOD, "pytorch_model.bin": POINTER, "a.onnx": POINTER}, {}),
    "files in folders that are pointers": (
        {**GOOD, "original/tokenizer.model": POINTER, "original/consolidated.00.pth": POINTER},
        {},
    ),
    "merged, with its adapter": ({**GOOD, "adapter_config.json": {}, "adapter_model.bin": b"weights"}, {}),
    "vocabulary": (without("tokenizer.json", **{"vocab.json": {}, "merges.txt": b""}), {}),
    "sentencepiece": (without("tokenizer.json", **{"spiece.model": b"tokens"}), {}),
    "bytes as tokens": (
        without("tokenizer.json", **{"tokenizer_config.json": {"tokenizer_class": "ByT5Tokenizer"}}),
        {},
    ),
    "tokenizer of its own code": (
        without(
            "tokenizer.json", **{"tokenizer_config.json": {"auto_map": {"AutoTokenizer": ["a.T", None]}}}
        ),
        {},
    ),
    "tokenizer elsewhere": (without("tokenizer.json"), {"tokenizer": "acme/tokens"}),
    "made-up weights": (without("model.safetensors"), {"load_format": "dummy"}),
    "weights elsewhere": (without("model.safetensors"), {"model_weights": "s3://bucket/weights"}),
    "config elsewhere": (without("config.json"), {"hf_config_path": "acme/config"}),
    "decoder that embeds, told to generate": ({**GOOD, "modules.json": POOLING}, {"runner": "generate"}),
    "other architecture by arguments": (
        of("LlamaModel"),
        {"hf_overrides": {"architectures": ["LlamaForCausalLM"]}},
    ),
    "modules without pooling": ({**GOOD, "modules.json": [{"type": "acme.Custom"}]}, {}),
    "architecture of unknown kind": (of("UltravoxModel"), {}),
    "no architecture": ({**GOOD, "config.json": {}}, {}),
}


def content(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()


def write(at: Path, files: Files) -> str:
    for name, value in files.items():
        (at / name).parent.mkdir(parents=True, exist_ok=True)
        (at / name).write_bytes(content(value))
    return str(at)


def refusal(model: str, environment: dict[str, Any] | None = None, **fields: Any) -> str:
    """Return the sentence that refuses a model, without its beginning."""
    with pytest.raises(PreflightError) as refused:
        refuse_by_files(AskedModel(spec(engine="vllm", model=model, **fields), [], environment or {}))
    sentence = str(refused.value)
    assert sentence.startswith(f"model: {model!r} ")
    return sentence.removeprefix(f"model: {model!r} ")


def test_a_folder_that_can_not_generate_is_refused_without_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_sentences: AssertSentences
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it fails
    folders = (tmp_path / str(number) for number in itertools.count())

    def said(files: Files) -> str:
        model = write(next(folders), files)
        with pytest.raises(PreflightError) as refused:
            model_check.check_model(AskedModel(spec(engine="vllm", model=model), [], {}))
        return str(refused.value).replace(model, "<model>")

    assert_sentences(said)


@pytest.mark.parametrize(("files", "args"), TAKEN.values(), ids=TAKEN)
def test_a_folder_that_may_generate_passes(files: Files, args: dict[str, Any], tmp_path: Path) -> None:
    assert_passes(spec(engine="vllm", model=write(tmp_path, files), engine_args=args), {})


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"architectures": "BertModel"}', b'{"architectures": [1]}'])
def test_a_config_that_is_none_is_left_to_vllm(text: bytes, tmp_path: Path) -> None:
    assert_passes(spec(engine="vllm", model=write(tmp_path, {**GOOD, "config.json": text})), {})


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    """As the hub's cache has them after a download that broke off."""
    model = write(tmp_path, without("model.safetensors"))
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs/0")
    assert refusal(model).startswith("has no weights")


@pytest.mark.parametrize("model", ["/no/such/model", "gs://models/tiny", "az://models/tiny"])
def test_what_can_not_be_seen_is_not_judged(model: str) -> None:
    assert_passes(spec(engine="vllm", model=model), {})


@pytest.mark.parametrize("kind", ["LoRA adapter", "no weights", "no tokenizer", "pointers", "classifier"])
def test_a_bucket_is_looked_into(put: Callable[..., str], tmp_path: Path, kind: str) -> None:
    on_disk = refusal(write(tmp_path, KINDS[kind]))
    assert refusal(put(**{name: content(value) for name, value in KINDS[kind].items()})) == on_disk


def test_a_whole_model_in_a_bucket_passes(put: Callable[..., str]) -> None:
    model = put(**{name: content(value) for name, value in GOOD.items()})
    assert_passes(spec(engine="vllm", model=model), {})


@pytest.mark.parametrize("kind", ["LoRA adapter", "no weights", "no tokenizer", "encoder", "classifier"])
def test_a_model_on_the_hub_is_looked_at(hub: Hub, tmp_path: Path, kind: str) -> None:
    """By its list of files and its config alone: weights are not downloaded."""
    on_disk = write(tmp_path / "model", KINDS[kind])
    hub.push(NAME, Path(on_disk))
    assert refusal(NAME) == refusal(on_disk)
    assert not [asked for asked in hub.asked if ".safetensors" in asked or ".bin" in asked]


def test_hub_is_asked_with_the_jobs_token_and_revision(hub: Hub, tmp_path: Path) -> None:
    hub.tokens, hub.is_private = {"hf_job"}, True
    first = hub.push(NAME, Path(write(tmp_path / "first", KINDS["classifier"])))
    hub.push(NAME, Path(write(tmp_path / "second", GOOD)))
    job = spec(engine="vllm", model=NAME)
    refuse_by_files(AskedModel(job, [], {"HF_TOKEN": SecretStr("hf_job")}))
    args = {"revision": first}
    other = {"HF_TOKEN": SecretStr("hf_other")}
    assert_passes(spec(engine="vllm", model=NAME, engine_args=args), other)  # which sees nothing
    assert "classifies" in refusal(NAME, {"HF_TOKEN": SecretStr("hf_job")}, engine_args=args)


def test_offline_the_hub_cache_is_looked_into(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    commit = "a" * 40
    repository = Path(constants.HF_HUB_CACHE, "models--acme--tiny")
    write(repository / "snapshots" / commit, without("model.safetensors"))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert refusal(NAME).startswith("has no weights")
    refuse_by_files(AskedModel(spec(engine="vllm", model="acme/other"), [], {}))
    assert hub.asked == []


def test_a_hub_that_is_down_refuses_nothing(hub: Hub) -> None:
    hub.is_down = True
    assert_passes(spec(engine="vllm", model=NAME), {})


@pytest.mark.parametrize("field", ["model", "engine_args: tokenizer", "adapter"])
@pytest.mark.parametrize("kind", OUT_OF_REACH)
def test_a_name_on_a_hub_out_of_reach_is_refused(
    cache: Path, kind: str, field: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the node's cache has it, or a proxy answers for the hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(hub_module, "_SILENCE", 0.3, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    named = {"adapter": NAME} if field == "adapter" else {"engine_args": {"tokenizer": NAME}}
    job = spec(engine="vllm", model=NAME) if field == "model" else spec(engine="vllm", model="/", **named)

    def check() -> None:
        refuse_missing(AskedModel(job, [], {}))
        check_adapters(AskedModel(job, [], {}))

    with out_of_reach(kind) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        with pytest.raises(StorageError) as error:
            check()
        said = str(error.value)
        assert said.startswith(f"{field}: {NAME!r} is on the hub at {url}, which can't be reached from the ")
        assert said.endswith("copy it to S3, or fill their caches and set HF_HUB_OFFLINE=1.")
        refuse_missing(AskedModel(spec(engine="vllm", model="/"), [], {}))
        cached = cache / "models--acme--tiny"
        write(cached / "snapshots" / ("a" * 40), GOOD)
        (cached / "refs").mkdir()
        (cached / "refs/main").write_text("a" * 40)
        refuse_missing(AskedModel(job, [], {}))
        for quantized in (f"{NAME}:Q4_K_M", f"{NAME}/tiny-Q4_K_M.gguf"):
            other = spec(engine="vllm", model=quantized, engine_args={"tokenizer": NAME})
            refuse_missing(AskedModel(other, [], {}))


def test_the_hub_may_be_behind_a_proxy(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setattr(constants, "ENDPOINT", "http://no-such-host.invalid")
    monkeypatch.setenv("HTTP_PROXY", hub.url)
    close_session()  # the client reads the environment once
    request.addfinalizer(close_session)
    refuse_missing(AskedModel(spec(engine="vllm", model=NAME), [], {}))
    assert hub.pings


NEEDS = "makes no embeddings; model_task 'embed' needs an embedding model, such as one of "
LAST_TOKEN = ", or engine_args={'runner': 'pooling', 'convert': 'embed'} for this one's last token"


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (GOOD, f"(LlamaForCausalLM) generates text and {NEEDS}sentence-transformers{LAST_TOKEN}."),
        (
            of("BertForSequenceClassification"),
            f"(BertForSequenceClassification) classifies and {NEEDS}sentence-transformers.",
        ),
    ],
)
def test_a_model_that_makes_no_vectors_is_refused(files: Files, told: str, tmp_path: Path) -> None:
    assert refusal(write(tmp_path, files), model_task="embed") == told


def test_a_model_without_labels_is_refused(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda files: refusal(write(tmp_path, files), model_task="classify"))


@pytest.mark.parametrize(
    ("model_task", "files", "args"),
    [
        ("embed", of("BertModel"), {}),
        ("embed", {**GOOD, "modules.json": POOLING}, {}),  # a decoder that was trained to embed
        ("embed", GOOD, {"runner": "pooling", "convert": "embed"}),
        ("embed", of("UltravoxModel"), {}),
        ("classify", of("BertForSequenceClassification"), {}),
    ],
)
def test_a_model_that_may_do_the_task_passes(
    model_task: str, files: Files, args: dict[str, Any], tmp_path: Path
) -> None:
    of_model = spec(engine="vllm", model=write(tmp_path, files), model_task=model_task, engine_args=args)
    assert_passes(of_model, {})
