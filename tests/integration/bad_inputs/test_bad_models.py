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
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.row import Request
from tests.support.bad_inputs import GOOD, Place, assert_one_sentence
from tests.support.engine_processes import own_processes

MODEL = Path(__file__).parents[3] / "dags_examples" / "demo_model" / "model"


def vllm(**fields: Any) -> dict[str, Any]:
    return {"model": str(MODEL), "engine": "vllm", **fields}


def engine(**args: Any) -> dict[str, Any]:
    return vllm(engine_args=args)


def without_a_template(place: Place) -> dict[str, Any]:
    """Copy the demo model's folder without its chat template."""
    folder = place.folder / "model"
    folder.mkdir(parents=True)
    for path in MODEL.iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text())
    settings.pop("chat_template", None)
    config.unlink()
    config.write_text(json.dumps(settings))
    return vllm(model=str(folder))


REFUSED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "context that the model lacks": (
        engine(max_model_len=100_000),
        ("engine_args: max_model_len: 100,000 is more than the 1,024 tokens that model",),
    ),
    "loader without its package": (
        engine(load_format="tensorizer"),
        ("load_format 'tensorizer' needs tensorizer, which the cluster's nodes lack; install it",),
    ),
    "unknown loader": (
        engine(load_format="safetensor"),
        ("vLLM refuses load_format 'safetensor' (Load format `safetensor` is not supported)",),
    ),
    "unknown argument of a loader": (
        engine(load_format="runai_streamer", model_loader_extra_config={"threads": 4}),
        ("vLLM refuses load_format 'runai_streamer'", "threads"),
    ),
    "unknown argument of the usual loader": (
        engine(model_loader_extra_config={"threads": 4}),
        ("vLLM refuses load_format 'auto'", "threads"),
    ),
    "bucket whose reader is not there": (
        vllm(model="gs://models/llama"),
        ("vLLM reads 'gs://models/llama' with runai-model-streamer-gcs, which the cluster's nodes lack",),
    ),
    "grammar that does not compile": (
        vllm(sampling={"structured_outputs": {"grammar": "root ::= ::="}}),
        ("does not compile",),
    ),
    "model that embeds, by arguments": (
        engine(runner="pooling"),
        ("is a pooling model and generates no text",),
    ),
    "chat template that does not compile": (
        vllm(chat_template="{% if %}"),
        ("chat_template: none of the first 20 rows becomes tokens; the first fails: TemplateSyntaxError",),
    ),
    "every prompt too long": (
        vllm(prompt="{row.text}" + " word" * 5000),
        ("all of the first 20 prompts exceed the model's context of", "shorten them, raise max_model_len"),
    ),
}
"""What vLLM alone refuses. ``unit/job/engine/test_vllm_args.py`` has names and values."""


@pytest.fixture(scope="module")
def apart(ray_here: Any) -> Iterator[Any]:
    """A process that has imported vLLM, as each replica has one."""
    pytest.importorskip("vllm")
    from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy

    with own_processes():
        made = EngineProxy()
        yield made
        made.close()


@pytest.mark.parametrize("name", REFUSED)
def test_what_vllm_would_refuse_is_refused_before_it_starts(name: str, place: Place, apart: Any) -> None:
    from airflow_provider_raybatch.job.preflight.known_models import check_unless_kept

    fields, fragments = REFUSED[name]
    spec = parse(BatchInferenceSpec, json.dumps(place.document(**fields)))
    template = RowTemplate(spec.prompt or "")
    chats = [Request(messages=[{"role": "user", "content": template.render(row)}]) for row in GOOD]
    with pytest.raises(PreflightError) as refused:
        apart.call(check_unless_kept, AskedModel(spec, chats, {}))
    assert_one_sentence(refused.value, *fragments)


def test_a_refusal_is_the_last_event_of_the_driver(place: Place, ray_here: Any) -> None:
    """The replica that has checked the model is another process."""
    pytest.importorskip("vllm")
    failed = place.refused(**without_a_template(place))
    assert_one_sentence(failed, "has none; give one with chat_template", "prompt_column")
    place.assert_nothing_happened()


def test_some_prompts_too_long_are_counted(place: Place, apart: Any) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    spec = parse(BatchInferenceSpec, json.dumps(place.document(**vllm())))
    chats = [Request(messages=[{"role": "user", "content": text}]) for text in ("hi", "word " * 5000, "ho")]
    checked = apart.call(check_model, AskedModel(spec, chats, {}))
    assert (checked.sampled, len(checked.failures)) == (3, 1)
    assert checked.longest > checked.context > 0
    assert checked.digests.model
    assert checked.special_tokens
    cuts = spec.model_copy(update={"on_overlong": "truncate", "special_tokens_in_text": "error"})
    filled = RowTemplate("Say {row.text}")
    texts = ("hi", "word " * 5000, f"ho {checked.special_tokens[-1]}")
    chats = [Request(messages=[{"role": "user", "content": filled.render({"text": text})}]) for text in texts]
    checked = apart.call(check_model, AskedModel(cuts, chats, {}))
    assert (checked.truncated, [place for place, _ in checked.failures]) == (1, [2])
