# SPDX-License-Identifier: Apache-2.0
"""Names and values are checked against the installed vLLM, whose import takes half a minute here."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.job.engine.base import overlong
from airflow_provider_raybatch.job.engine.chat import ChatEncoder
from airflow_provider_raybatch.job.row import Request, RowFailure
from tests.support.specs import spec
from tests.support.vllm_engine import vllm_engine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def vllm_args() -> Any:
    pytest.importorskip("vllm")
    from airflow_provider_raybatch.job.engine import vllm_args

    return vllm_args


def vllm(args: dict[str, Any] | None = None, **fields: Any) -> Any:
    return spec(engine="vllm", engine_args=args or {}, **{"model": "some/model", **fields})


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            {"TENSOR_PARALEL_SIZE": 2},
            "has no argument 'TENSOR_PARALEL_SIZE'; did you mean 'tensor_parallel_size'.",
        ),
        ({"xyzzy": 1}, "has no argument 'xyzzy'; see vLLM's documentation for its names."),
    ],
)
def test_engine_arguments_that_vllm_does_not_know(
    vllm_args: Any, args: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PreflightError) as caught:
        vllm_args.engine_args(vllm(args))
    assert str(caught.value).startswith("engine_args: ")
    assert str(caught.value).endswith(sentence)


def test_engine_args_of_the_user_win(vllm_args: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    assert vllm_args.engine_args(vllm())["model"] == "some/model"
    assert vllm_args.engine_args(vllm())["enforce_eager"] is True
    assert vllm_args.engine_args(vllm({"enforce_eager": False}))["enforce_eager"] is False
    assert vllm_args.engine_args(vllm())["disable_log_stats"] is True
    assert vllm_args.engine_args(vllm({"disable_log_stats": False}))["disable_log_stats"] is False
    assert 0 < vllm_args.engine_args(vllm())["kv_cache_memory_bytes"] <= 4 * 1024**3
    assert "kv_cache_memory_bytes" not in vllm_args.engine_args(vllm({"gpu_memory_utilization": 0.3}))
    assert "distributed_executor_backend" not in vllm_args.engine_args(vllm())
    parallel = vllm({"tensor_parallel_size": 2})
    assert vllm_args.engine_args(parallel)["distributed_executor_backend"] == "mp"
    assert vllm_args.engine_args(parallel, spans_nodes=True)["distributed_executor_backend"] == "ray"


def test_an_engine_with_a_share_of_a_gpu_gets_its_memory(
    vllm_args: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On CPUs there is none to share; a GPU whose memory NVML does not tell has the least to spare."""
    half, name = vllm(num_gpus=0.5), "gpu_memory_utilization"
    assert name not in vllm_args.engine_args(half)
    monkeypatch.setattr(vllm_args.vllm_compat, "is_on_cpu", lambda: False)
    assert vllm_args.engine_args(half)[name] == 0.46
    monkeypatch.setattr(vllm_args, "memory_of_own_gpu", lambda: int(139.8 * 2**30))
    assert vllm_args.engine_args(half)[name] == 0.455
    assert vllm_args.engine_args(vllm({name: 0.3}, num_gpus=0.5))[name] == 0.3
    assert name not in vllm_args.engine_args(vllm(num_gpus=1))


def test_small_models_run_in_float32_on_cpus_without_bfloat16(
    vllm_args: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def dtype(args: dict[str, Any] | None = None) -> Any:
        return vllm_args.engine_args(vllm(args, model=str(tmp_path))).get("dtype")

    (tmp_path / "config.json").write_text('{"dtype": "bfloat16"}')
    monkeypatch.setattr(vllm_args.vllm_compat, "has_bfloat16_kernels", lambda: False)
    assert dtype() is None  # nothing says how large it is
    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    assert dtype() == "float32"
    assert dtype({"dtype": "bfloat16"}) == "bfloat16"
    assert dtype({"quantization": "awq"}) is None
    with (tmp_path / "model-2.safetensors").open("wb") as file:
        file.truncate(psutil.virtual_memory().total // 8)
    assert dtype() is None  # it would take twice its size
    (tmp_path / "model-2.safetensors").unlink()
    (tmp_path / "config.json").write_text('{"quantization_config": {}}')
    assert dtype() is None
    (tmp_path / "config.json").write_text("{}")
    assert dtype() == "float32"
    monkeypatch.setattr(vllm_args.vllm_compat, "has_bfloat16_kernels", lambda: True)
    assert dtype() is None


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"temprature": 1}, "has no parameter 'temprature'; did you mean 'temperature'."),
        (
            {"output_kind": 1},
            "sampling: 'output_kind' is set by the engine, which asks for final outputs only",
        ),
        ({"detokenize": False}, "sampling: 'detokenize' is set by the engine"),
        (
            {"structured_outputs": {"json_schema": {}}},
            "has no parameter 'json_schema' (it has choice, disable_additional_properties,",
        ),
        (
            {"structured_outputs": {"choice": ["a"], "disable_any_whitespaces": True}},
            "has no parameter 'disable_any_whitespaces'; did you mean 'disable_any_whitespace'.",
        ),
        (
            {"repetition_detection": {"max_patern_size": 3, "min_count": 3}},
            "has no parameter 'max_patern_size'; did you mean 'max_pattern_size'.",
        ),
    ],
)
def test_sampling_parameters_that_vllm_does_not_know(
    vllm_args: Any, values: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(PreflightError) as caught:
        vllm_args.sampling_params(values)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": -1},
        {"top_p": 2},
        {"structured_outputs": {}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        # These would end the engine's process.
        {"max_tokens": 10.5},
        {"seed": 2**70},
        {"seed": "x"},
    ],
)
def test_values_that_vllm_refuses(vllm_args: Any, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        vllm_args.sampling_params(values)


def test_schemas_reach_vllm_unchanged(vllm_args: Any) -> None:
    schema = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"a": {"minimum": 1}}}]}
    params = vllm_args.sampling_params({"n": 3, "seed": 1, "structured_outputs": {"json": schema}})
    assert params.structured_outputs.json == schema
    assert (params.n, params.seed) == (3, 1)


def test_values_as_json_and_structs_write_them_reach_vllm(vllm_args: Any) -> None:
    given = json.loads(json.dumps({"logit_bias": {2: 100, 7: -1.5}, "max_tokens": 24.0, "top_p": None}))
    params = vllm_args.sampling_params(given)
    assert (params.logit_bias, params.max_tokens, params.top_p) == ({2: 100, 7: -1.5}, 24, 1.0)
    repeats = {"max_pattern_size": 3, "min_count": 2}
    made = vllm_args.sampling_params({"repetition_detection": {**repeats, "min_pattern_size": None}})
    assert (made.repetition_detection.max_pattern_size, made.repetition_detection.min_count) == (3, 2)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"logit_bias": {"yes": 1}}, "logit_bias: {'yes': 1} has a key that is not a token id"),
        ({"repetition_detection": {"max_pattern_size": 3, "min_count": 1}}, "min_count must be >= 2"),
    ],
)
def test_a_value_that_fails_its_row_alone(vllm_args: Any, values: dict[str, Any], reason: str) -> None:
    """Any other error than this one would end the job."""
    with pytest.raises(ValueError) as caught:
        vllm_args.sampling_params(values)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "args",
    [
        {"reasoning_parser": "qwen3", "structured_outputs_config": {"backend": "xgrammar"}},
        {"compilation_config": 3},
    ],
)
def test_arguments_in_the_form_that_llm_takes(vllm_args: Any, args: dict[str, Any]) -> None:
    from airflow_provider_raybatch.job.engine import vllm_compat

    given = copy.deepcopy(args)
    model = Path(__file__).parents[4] / "dags_examples/demo_model/model"
    assert vllm_compat.model_config({"model": str(model), **args}).max_model_len == 1024
    assert args == given


class WordsTokenizer:
    """Each word is one token, so that a text shows its length."""

    is_fast = True

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(range(len(text.split()))) for text in texts]}


@pytest.fixture
def engine(vllm_args: Any) -> Any:
    """A VllmEngine whose engine counts as running, to test the steps before a request."""
    return vllm_engine(WordsTokenizer(), 8, {"temperature": 0.6, "top_p": 0.9})


class TestEncode:
    def test_a_row_of_bad_parameters_fails_alone(self, engine: Any) -> None:
        made = engine.encode([
            Request(prompt="a b"),
            Request(prompt="a b", sampling={"temprature": 1}),
            Request(prompt="a b", sampling={"temperature": -3}),
            Request(prompt="a b", sampling={"n": "many"}),
            Request(prompt="a b", sampling={"temperature": 0}),
        ])
        assert [isinstance(one, RowFailure) for one in made] == [False, True, True, True, False]
        assert "did you mean 'temperature'" in made[1].reason
        assert {one.step for one in made if isinstance(one, RowFailure)} == {"engine"}
        assert made[4].params.temperature == 0
        assert made[0].params.temperature == 0.6

    def test_max_tokens_is_what_the_context_leaves(self, engine: Any) -> None:
        made = engine.encode([
            Request(prompt="a b c"),
            Request(prompt="a"),
            Request(prompt="a b c", sampling={"max_tokens": 100}),
            Request(prompt="a b c", sampling={"max_tokens": 2}),
            Request(prompt="a b c d e f g"),
        ])
        assert [one.params.max_tokens for one in made] == [5, 7, 5, 2, 1]

    def test_prompts_without_room_for_tokens_fail(self, engine: Any) -> None:
        (made,) = engine.encode([Request(prompt="a b c d e f g h")])
        assert made == RowFailure(
            "tokenize",
            "the prompt has 8 tokens and max_model_len is 8, which leaves no room for a response",
        )

    def test_on_overlong_truncate_cuts_prompts_without_room(self, engine: Any) -> None:
        """The response gets the room that it asks for, at most half of the context."""
        engine._chat = ChatEncoder(WordsTokenizer(), lambda chat: chat[0]["content"], on_overlong="truncate")
        content = RowTemplate("Say {row.text}").render({"text": "a " * 100})
        long = Request(messages=[{"role": "user", "content": content}])
        made = engine.encode([
            long,
            replace(long, sampling={"max_tokens": 2}),
            replace(long, sampling={"max_tokens": 100}),
            Request(prompt="a b"),
            Request(prompt="a " * 8),
        ])
        assert [(len(one.ids), one.params.max_tokens, one.cut) for one in made[:4]] == [
            (7, 1, 94),
            (6, 2, 95),
            (4, 4, 97),
            (2, 6, 0),
        ]
        assert made[4] == overlong(8, 8)

    def test_each_request_has_parameters_of_its_own(self, engine: Any) -> None:
        # vLLM makes no copy of them here, and writes the end-of-sequence token into them.
        made = engine.encode([Request(prompt="a"), Request(prompt="a"), Request(prompt="a b")])
        assert len({id(one.params) for one in made}) == 3
        assert all(one.params.skip_clone for one in made)
        assert made[0].params == made[1].params

    def test_a_schema_of_a_row_keeps_its_order(self, engine: Any) -> None:
        """Grammars write properties in the order of the schema."""
        names = [["b", "a"], ["a", "b"]]
        schemas = [{"properties": {name: {"type": "string"} for name in order}} for order in names]
        made = engine.encode([
            Request(prompt="a", sampling={"structured_outputs": {"json": schema}}) for schema in schemas
        ])
        assert [list(one.params.structured_outputs.json["properties"]) for one in made] == names

    def test_vllm_detokenises_only_if_a_stop_string_needs_it(self, engine: Any) -> None:
        made = engine.encode([Request(prompt="a"), Request(prompt="a", sampling={"stop": ["x"]})])
        assert [one.params.detokenize for one in made] == [False, True]
