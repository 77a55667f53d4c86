# SPDX-License-Identifier: Apache-2.0
"""Models that vLLM would refuse are refused before it starts, by one sentence in the driver's last event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.row_template import RowTemplate
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Request
from tests.support.engine_processes import own_processes

from .place import Case, Place, assert_nothing_happened, assert_one_sentence, case

MODEL = Path(__file__).parents[3] / "dags_examples" / "demo_model" / "model"


def vllm(**fields: Any) -> dict[str, Any]:
    return {"model": str(MODEL), "engine": "vllm", **fields}


def engine(**args: Any) -> dict[str, Any]:
    return vllm(engine="vllm", engine_args=args)


def structured(**outputs: Any) -> dict[str, Any]:
    return vllm(sampling={"structured_outputs": outputs})


def without_a_template(place: Place) -> dict[str, Any]:
    """Copy the demo model's folder without its chat template."""
    folder = place.folder / "model"
    folder.mkdir()
    for path in MODEL.iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("chat_template", None)
    config.unlink()
    config.write_text(json.dumps(settings))
    return vllm(model=str(folder))


VLLM = [
    case(
        "misspelt engine argument",
        engine(max_modl_len=100),
        "has no argument 'max_modl_len'; did you mean 'max_model",
    ),
    case(
        "context that the model lacks",
        engine(max_model_len=100_000),
        "engine_args: max_model_len: 100,000 is more than the 1,024 tokens that model",
    ),
    case(
        "loader without its package",
        engine(load_format="tensorizer"),
        "load_format 'tensorizer' needs tensorizer, which the cluster's nodes lack; install it",
    ),
    case(
        "unknown loader",
        engine(load_format="safetensor"),
        "vLLM refuses load_format 'safetensor' (Load format `safetensor` is not supported)",
    ),
    case(
        "unknown argument of a loader",
        engine(load_format="runai_streamer", model_loader_extra_config={"threads": 4}),
        "vLLM refuses load_format 'runai_streamer'",
        "threads",
    ),
    case(
        "unknown argument of the usual loader",
        engine(model_loader_extra_config={"threads": 4}),
        "vLLM refuses load_format 'auto'",
        "threads",
    ),
    case(
        "bucket whose reader is not there",
        vllm(model="gs://models/llama"),
        "vLLM reads 'gs://models/llama' with runai-model-streamer-gcs, which the cluster's nodes lack",
    ),
    case("unknown sampling parameter", vllm(sampling={"temprature": 1}), "did you mean 'temperature'"),
    case("sampling value that vllm refuses", vllm(sampling={"top_p": 7}), "vLLM refuses", "'top_p': 7"),
    case(
        "parameter of the engine's own",
        vllm(sampling={"detokenize": False}),
        "'detokenize' is set by the engine",
    ),
    case(
        "unknown structured output",
        structured(json_schema={}),
        "has no parameter 'json_schema' (it has choice,",
    ),
    case("regex that does not compile", structured(regex="([a-z"), "([a-z", "does not compile"),
    case(
        "schema that does not compile",
        structured(json={"type": "no such type"}),
        "no such type",
        "is not a JSON schema",
    ),
    case("grammar that does not compile", structured(grammar="root ::= ::="), "does not compile"),
    case("empty choice", structured(choice=[]), "choice"),
    case(
        "model folder that is not there",
        vllm(model="/no/such/model"),
        "model: nothing is at '/no/such/model'",
    ),
    case(
        "model folder without a model",
        lambda p: vllm(model=str(Path(p.file("empty/readme.txt", "x")[0]).parent)),
        "has no config.json; give a model in Hugging Face's format",
    ),
    case(
        "model that embeds, by arguments",
        engine(runner="pooling"),
        "is a pooling model and generates no text",
    ),
    case("no chat template", without_a_template, "has none; give one with chat_template", "prompt_column"),
    case(
        "chat template that does not compile",
        vllm(model=str(MODEL), chat_template="{% if %}"),
        "chat_template: none of the first 20 rows becomes tokens; the first fails: TemplateSyntaxError",
    ),
    case(
        "every prompt too long",
        lambda p: vllm(source=p.jsonl(*[{"text": "word " * 5000}] * 3)),
        "all of the first 3 prompts exceed the model's context of",
        "shorten them, raise max_model_len",
    ),
]


@pytest.fixture(scope="module")
def apart() -> Iterator[Any]:
    """A process that has imported vLLM, as each replica has one."""
    pytest.importorskip("vllm")
    from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy

    with own_processes():
        made = EngineProxy()
        yield made
        made.close()


@pytest.mark.turn(0, 2, 4, 6)
@pytest.mark.parametrize("wrong", VLLM)
def test_what_vllm_would_refuse_is_refused_before_it_starts(wrong: Case, place: Place, apart: Any) -> None:
    from airflow_provider_raybatch.job.preflight.known_models import check_unless_kept

    spec = parse(BatchInferenceSpec, json.dumps(place.document(**wrong.fields(place))))
    rows = map(json.loads, Path(spec.source[0]).read_text().splitlines())
    chats = [Request(messages=[{"role": "user", "content": row["text"]}]) for row in rows]
    with pytest.raises(PreflightError) as refused:
        apart.call(check_unless_kept, spec, chats, {})
    assert_one_sentence(refused.value, wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(*one.values, id=one.id, marks=pytest.mark.turn(2 * n + 1))
        for n, one in enumerate(VLLM[-4:])
    ],
)
def test_a_refusal_is_the_last_event_of_the_driver(wrong: Case, place: Place, ray_here: Any) -> None:
    pytest.importorskip("vllm")
    assert_one_sentence(place.refused(**wrong.fields(place)), wrong)
    assert_nothing_happened(place)


@pytest.mark.turn(0, 2, 4, 6)
def test_some_prompts_too_long_are_counted(place: Place) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    pytest.importorskip("vllm")
    spec = parse(BatchInferenceSpec, json.dumps(place.document(**vllm())))
    chats = [Request(messages=[{"role": "user", "content": text}]) for text in ("hi", "word " * 5000, "ho")]
    checked = check_model(spec, chats, {})
    assert (checked.sampled, len(checked.failures)) == (3, 1)
    assert checked.longest > checked.context > 0
    assert checked.digests.model
    assert checked.special_tokens
    cuts = spec.model_copy(update={"on_overlong": "truncate", "special_tokens_in_text": "error"})
    filled = RowTemplate("Say {row.text}")
    texts = ("hi", "word " * 5000, f"ho {checked.special_tokens[-1]}")
    chats = [Request(messages=[{"role": "user", "content": filled.render({"text": text})}]) for text in texts]
    checked = check_model(cuts, chats, {})
    assert (checked.truncated, [place for place, _ in checked.failures]) == (1, [2])
