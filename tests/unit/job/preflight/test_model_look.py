# SPDX-License-Identifier: Apache-2.0
"""What a look at a model's files shows is refused before vLLM is imported."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input import hub_http
from airflow_provider_raybatch.job.preflight import model_check
from airflow_provider_raybatch.job.preflight.adapter_check import check_adapters
from airflow_provider_raybatch.job.preflight.model_look import refuse_by_files, refuse_missing
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
    refuse_by_files(of_model, environment)  # raises nothing


REFUSED: dict[str, tuple[Files, str]] = {
    "LoRA adapter": (
        {
            "adapter_config.json": {"base_model_name_or_path": "meta-llama/Llama-3.1-8B"},
            "adapter_model.safetensors": b"weights",
            "tokenizer.json": b"tokens",
            "training_args.bin": b"",
        },
        "is an adapter (LoRA) for 'meta-llama/Llama-3.1-8B'; give that one as model, and this as adapter",
    ),
    "adapter of no named model": (
        without("model.safetensors", **{"adapter_config.json": {}, "adapter_model.bin": b"weights"}),
        "is an adapter (LoRA) for another model; give that one",
    ),
    "no config": (without("config.json"), "has no config.json; "),
    "no files": ({"README.md": b"# Tiny"}, "has no config.json; "),
    "checkpoints in folders of their own": (
        {f"checkpoint-{number}/{name}": content for number in (9, 10) for name, content in GOOD.items()},
        "has no config.json, but 'checkpoint-10' and 'checkpoint-9' inside of it have; name one of them",
    ),
    "no weights": (
        without("model.safetensors", **{"optimizer.pt": b"", "training_args.bin": b"", "model.onnx": b""}),
        "has no weights (*.safetensors, *.bin or *.pt)",
    ),
    "GGUF alone": (
        without("model.safetensors", **{"tiny-Q4_K_M.gguf": b"weights"}),
        "has no weights (*.safetensors, *.bin or *.pt)",
    ),
    "a missing shard": (
        without(
            "model.safetensors",
            **{"model-00001-of-00002.safetensors": b"weights", "model.safetensors.index.json": INDEX},
        ),
        "lacks 1 of its 2 files of weights (first 'model-00002-of-00002.safetensors')",
    ),
    "no tokenizer": (without("tokenizer.json"), "has no tokenizer"),
    "a tokenizer's settings alone": (
        without("tokenizer.json", **{"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer"}}),
        "has no tokenizer",
    ),
    "pointers": (
        {**GOOD, "model.safetensors": POINTER, "tokenizer.json": POINTER},
        "has pointers of Git LFS in place of model.safetensors and tokenizer.json; run 'git lfs pull'",
    ),
    "a pointer among shards": (
        without(
            "model.safetensors",
            **{
                "model-00001-of-00002.safetensors": b"weights",
                "model-00002-of-00002.safetensors": POINTER,
                "model.safetensors.index.json": INDEX,
            },
        ),
        "has pointers of Git LFS in place of model-00002-of-00002.safetensors;",
    ),
    "encoder": (of("BertModel"), "(BertModel) makes embeddings and generates no text"),
    "encoder with its head": (of("XLMRobertaForMaskedLM"), "(XLMRobertaForMaskedLM) makes embeddings"),
    "decoder that embeds": (
        {**GOOD, "modules.json": POOLING},
        "(LlamaForCausalLM) makes embeddings and generates no text",
    ),
    "classifier": (
        of("Qwen2ForSequenceClassification"),
        "(Qwen2ForSequenceClassification) classifies and generates no text; choose",
    ),
    "a config that is a pointer": (
        {**GOOD, "config.json": POINTER},
        "in place of config.json; run 'git lfs pull'",
    ),
    "reward model": (of("Qwen2ForRewardModel"), "(Qwen2ForRewardModel) classifies each token and generates"),
}
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
        refuse_by_files(spec(engine="vllm", model=model, **fields), environment or {})
    sentence = str(refused.value)
    assert sentence.startswith(f"model: {model!r} ")
    return sentence.removeprefix(f"model: {model!r} ")


@pytest.mark.parametrize(("files", "told"), REFUSED.values(), ids=REFUSED)
def test_a_folder_that_can_not_generate_is_refused_without_vllm(
    files: Files, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # importing it fails
    model = write(tmp_path / "model", files)
    with pytest.raises(PreflightError) as refused:
        model_check.check_model(spec(engine="vllm", model=model), [], {})
    sentence = str(refused.value)
    assert sentence.startswith(f"model: {model!r} ")
    assert told in sentence
    assert ";" in sentence
    assert sentence.endswith(".")


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
def test_a_bucket_is_looked_into(put: Callable[..., str], kind: str) -> None:
    files, told = REFUSED[kind]
    model = put(**{name: content(value) for name, value in files.items()})
    assert told in refusal(model)


def test_a_whole_model_in_a_bucket_passes(put: Callable[..., str]) -> None:
    model = put(**{name: content(value) for name, value in GOOD.items()})
    assert_passes(spec(engine="vllm", model=model), {})


@pytest.mark.parametrize("kind", ["LoRA adapter", "no weights", "no tokenizer", "encoder", "classifier"])
def test_a_model_on_the_hub_is_looked_at(hub: Hub, tmp_path: Path, kind: str) -> None:
    """By its list of files and its config alone: weights are not downloaded."""
    files, told = REFUSED[kind]
    hub.push(NAME, Path(write(tmp_path / "model", files)))
    assert told in refusal(NAME)
    assert not [asked for asked in hub.asked if ".safetensors" in asked or ".bin" in asked]


def test_hub_is_asked_with_the_jobs_token_and_revision(hub: Hub, tmp_path: Path) -> None:
    hub.tokens, hub.is_private = {"hf_job"}, True
    first = hub.push(NAME, Path(write(tmp_path / "first", REFUSED["classifier"][0])))
    hub.push(NAME, Path(write(tmp_path / "second", GOOD)))
    refuse_by_files(spec(engine="vllm", model=NAME), {"HF_TOKEN": SecretStr("hf_job")})
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
    refuse_by_files(spec(engine="vllm", model="acme/other"), {})
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

    monkeypatch.setattr(hub_http, "_SILENCE", 0.3, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    named = {"adapter": NAME} if field == "adapter" else {"engine_args": {"tokenizer": NAME}}
    job = spec(engine="vllm", model=NAME) if field == "model" else spec(engine="vllm", model="/", **named)

    def check() -> None:
        refuse_missing(job)
        check_adapters(job, {})

    with out_of_reach(kind) as url:
        monkeypatch.setattr(constants, "ENDPOINT", url)
        with pytest.raises(StorageError) as error:
            check()
        said = str(error.value)
        assert said.startswith(f"{field}: {NAME!r} is on the hub at {url}, which can't be reached from the ")
        assert said.endswith("copy it to S3, or fill their caches and set HF_HUB_OFFLINE=1.")
        refuse_missing(spec(engine="vllm", model="/"))
        cached = cache / "models--acme--tiny"
        write(cached / "snapshots" / ("a" * 40), GOOD)
        (cached / "refs").mkdir()
        (cached / "refs/main").write_text("a" * 40)
        refuse_missing(job)
        for quantized in (f"{NAME}:Q4_K_M", f"{NAME}/tiny-Q4_K_M.gguf"):
            refuse_missing(spec(engine="vllm", model=quantized, engine_args={"tokenizer": NAME}))


def test_the_hub_may_be_behind_a_proxy(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setattr(constants, "ENDPOINT", "http://no-such-host.invalid")
    monkeypatch.setenv("HTTP_PROXY", hub.url)
    close_session()  # the client reads the environment once
    request.addfinalizer(close_session)
    refuse_missing(spec(engine="vllm", model=NAME))
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


@pytest.mark.parametrize(
    ("files", "args"),
    [
        (of("BertModel"), {}),
        ({**GOOD, "modules.json": POOLING}, {}),  # a decoder that was trained to embed
        (GOOD, {"runner": "pooling", "convert": "embed"}),
        (of("UltravoxModel"), {}),
    ],
)
def test_a_model_that_may_embed_passes(files: Files, args: dict[str, Any], tmp_path: Path) -> None:
    of_model = spec(engine="vllm", model=write(tmp_path, files), model_task="embed", engine_args=args)
    assert_passes(of_model, {})


HEADLESS = (
    "has no head that classifies a text; model_task 'classify' needs a model with one, such as a "
    "...ForSequenceClassification."
)


def test_a_model_without_labels_is_refused(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda files: refusal(write(tmp_path, files), model_task="classify"))


@pytest.mark.parametrize(
    ("files", "args"),
    [
        (of("BertForSequenceClassification"), {}),
        (GOOD, {"runner": "pooling", "convert": "classify"}),
        (of("UltravoxModel"), {}),
    ],
)
def test_a_model_that_may_classify_passes(files: Files, args: dict[str, Any], tmp_path: Path) -> None:
    of_model = spec(engine="vllm", model=write(tmp_path, files), model_task="classify", engine_args=args)
    assert_passes(of_model, {})
