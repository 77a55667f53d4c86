# SPDX-License-Identifier: Apache-2.0
"""Ray's own processors as engine: against a server over HTTP, and with real vLLM on the CPU."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.manifest import Summary
from tests.support.http_server import Handler, listening
from tests.support.ray_data_page import page_of
from tests.support.specs import spec, submitted

MODEL = Path(__file__).parents[2] / "dags_examples/demo_model/model"
NAMES = ["Redwood Dairy Farms", "Hansen Savings Bank", "Blue Peak Solar", "Northgate Freight Lines"]
CHOICES = ["Zebra", "Yak"]  # which the model would never generate by itself

Run = Callable[..., Summary]


@pytest.fixture
def run(ray_here: Any, tmp_path: Path) -> Run:
    def run(rows: list[dict[str, Any]], **fields: Any) -> Summary:
        from airflow_provider_raybatch.job.phases.driver import run as run_job

        (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        spec = submitted(
            source=[str(tmp_path / "in.jsonl")],
            messages_column="messages",
            destination=str(tmp_path / "out"),
            max_error_fraction=0.5,
            no_progress_timeout=600,
            engine="ray_data_llm",
            **fields,
        )
        return run_job(spec, spec.submission, lambda event: None)

    return run


def asked(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def rows_of(summary: Summary) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in pq.read_table(summary.uri).to_pylist()}


def letters_of(summary: Summary) -> dict[str, dict[str, Any]]:
    files = sorted(Path(summary.dead_letter_uri or "").iterdir())
    letters = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    return {letter["row"]["name"]: letter for letter in letters}


class Server(Handler):
    """Serves a minimal form of OpenAI's chat completions; refuses a message that asks for it."""

    def reply(self) -> None:
        body = json.loads(self.body())
        text = body["messages"][-1]["content"]
        choice = {"message": {"role": "assistant", "content": text.upper()}, "finish_reason": "stop"}
        usage = {"prompt_tokens": len(text.split()), "completion_tokens": body["max_tokens"]}
        status, answer = 200, {"choices": [choice], "usage": usage}
        if "refuse" in text:
            status, answer = 400, {"error": {"message": "not this one"}}
        self.send(status, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    do_POST = reply  # noqa: N815 - http.server's name


@pytest.fixture
def server() -> Iterator[str]:
    with listening(Server) as port:
        yield f"http://127.0.0.1:{port}/v1/chat/completions"


def shout(run: Run, **processor: Any) -> Summary:
    """Ask a processor that answers in capitals, and refuses a message that asks for it."""
    rows = [{"name": name, "messages": asked(name)} for name in NAMES]
    rows += [{"name": "refused", "messages": asked("please refuse")}, {"name": "empty", "messages": []}]
    return run(rows, model="m", sampling={"max_tokens": 7}, processor=processor)


def assert_shouted(summary: Summary) -> None:
    answers = rows_of(summary)
    assert {name: row["response"] for name, row in answers.items()} == {name: name.upper() for name in NAMES}
    assert {row["output_tokens"] for row in answers.values()} == {7}
    letters = letters_of(summary)
    assert letters.keys() == {"refused", "empty"}
    assert (letters["refused"]["step"], letters["empty"]["step"]) == ("engine", "template")
    assert "not this one" in letters["refused"]["reason"]


def test_a_server_over_http(run: Run, server: str) -> None:
    assert_shouted(shout(run, config="HttpRequestProcessorConfig", url=server))
    page = page_of("nightly.label_")
    *_, last = page["operators"].values()
    for shown in (page, last):
        assert (shown["progress"], shown["total"], shown["state"]) == (6, 6, "FINISHED")


@pytest.fixture
def application(ray_here: Any) -> Iterator[str]:
    """A Serve application with the interface of Ray's LLM server: a request object in, answers out."""
    from ray import serve

    @serve.deployment(ray_actor_options={"num_cpus": 0.1})
    class Shouts:
        async def chat(self, request: Any) -> AsyncIterator[dict[str, Any]]:
            text = request.messages[-1]["content"]
            if "refuse" in text:
                raise ValueError("not this one")
            choice = {"message": {"role": "assistant", "content": text.upper()}, "finish_reason": "stop"}
            usage = {"prompt_tokens": len(text.split()), "completion_tokens": request.max_tokens}
            yield {"choices": [choice], "usage": usage}

    serve.start(proxy_location="Disabled")
    serve.run(Shouts.bind(), name="shouting", route_prefix=None)
    yield "shouting"
    serve.shutdown()


@pytest.mark.thorough("a Serve deployment in Ray Data LLM; a server over HTTP runs always")
def test_a_serve_deployment(run: Run, application: str) -> None:
    serve = {"config": "ServeDeploymentProcessorConfig", "app_name": application}
    with pytest.raises(RaybatchError) as unnamed:
        shout(run, **serve)
    assert str(unnamed.value) == (
        "processor: ServeDeploymentProcessorConfig needs 'deployment_name', the deployment that answers."
    )
    with pytest.raises(RaybatchError) as missing:
        shout(run, **serve, deployment_name="Whispers")
    assert str(missing.value) == (
        "processor: Ray Serve runs no deployment 'Whispers' in an application 'shouting' on this cluster; "
        "it runs 'Shouts' in 'shouting'."
    )
    assert_shouted(shout(run, **serve, deployment_name="Shouts"))


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.thorough("vLLM in Ray Data LLM; a server over HTTP runs always")
@pytest.mark.timeout(600)
def test_vllm_in_rays_processor_on_two_cpus(run: Run) -> None:
    """The BOS token comes once, answers are constrained, and a row without messages fails alone."""
    from transformers import AutoTokenizer

    rows = [{"name": name, "messages": asked(f"What industry is this company in: {name}")} for name in NAMES]
    summary = run(
        [*rows, {"name": "empty", "messages": []}],
        model=str(MODEL),
        sampling={"temperature": 0, "max_tokens": 16, "structured_outputs": {"choice": CHOICES}},
        engine_args={"max_model_len": 256, "enforce_eager": True},
    )
    answers = rows_of(summary)
    assert answers.keys() == set(NAMES)
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    for row in rows:
        prompt = tokenizer.apply_chat_template(row["messages"], tokenize=False, add_generation_prompt=True)
        expected = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
        assert answers[row["name"]]["input_tokens"] == expected
        assert answers[row["name"]]["response"] in CHOICES
    assert letters_of(summary)["empty"]["step"] == "template"


def columns_of(**fields: Any) -> Any:
    """Return what Ray's processor gets of a row."""
    from airflow_provider_raybatch.job.run.ray_data_llm.variants import variant

    return variant(spec(messages_column="messages", engine="ray_data_llm", **fields)).columns(None, [1])


def test_a_schema_travels_as_text_that_arrow_leaves_alone() -> None:
    """As structs, the branches of an anyOf would get each other's keywords as nulls."""
    any_of = {"anyOf": [{"type": "string", "enum": CHOICES}, {"type": "integer", "minimum": 3}]}
    columns = columns_of(sampling={"structured_outputs": {"json": any_of}})
    block = pa.Table.from_pylist([{"row": columns}, {"row": columns}])
    (first, _) = block.to_pylist()
    assert json.loads(first["row"]["sampling_params"]["structured_outputs"]["json"]) == any_of


@pytest.mark.parametrize(
    "processor", [{}, {"config": "HttpRequestProcessorConfig", "url": "http://server/v1/chat/completions"}]
)
def test_max_tokens_cuts_no_choice_off(processor: dict[str, Any]) -> None:
    sampling = {"max_tokens": 2, "structured_outputs": {"choice": CHOICES}}
    columns = columns_of(sampling=sampling, processor=processor)
    asked = json.loads(columns["body"]) if processor else columns["sampling_params"]
    assert asked["max_tokens"] == len("Zebra") + 1


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"sampling": {"n": 3}}, "sampling: engine 'ray_data_llm' keeps one of n=3 completions"),
        ({"sampling_column": "name"}, "sampling_column: engine 'ray_data_llm'"),
        ({"sampling": {"logit_bias": {"7": 1}}}, "sampling: logit_bias can't be sent through Ray Data LLM"),
        ({"processor": {"tokenize_stage": True}}, "processor: 'tokenize_stage' is set by the operator"),
        ({"processor": {"config": "NoSuchConfig"}}, "processor: 'NoSuchConfig' is not a processor"),
        (
            {
                "processor": {"config": "SGLangEngineProcessorConfig"},
                "sampling": {"structured_outputs": {"choice": CHOICES}},
            },
            "sampling: SGLang has no 'structured_outputs'",
        ),
        (
            {"processor": {"config": "HttpRequestProcessorConfig"}},
            "processor: HttpRequestProcessorConfig needs",
        ),
    ],
)
def test_options_that_ray_would_get_wrong_are_refused(
    run: Run, fields: dict[str, Any], sentence: str
) -> None:
    processor = fields.pop("processor", {})
    with pytest.raises(RaybatchError) as refused:
        run(
            [{"name": "a", "messages": asked("b")}],
            model=str(MODEL),
            processor=processor,
            **fields,
        )
    assert sentence in str(refused.value)
