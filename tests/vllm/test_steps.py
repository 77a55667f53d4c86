# SPDX-License-Identifier: Apache-2.0
"""A job of several steps gets what one gets who asks ``LLM.chat`` one question after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest

pytest.importorskip("vllm")
pytest.importorskip("ray")
from tests.support.adapters import save_adapter
from tests.support.local_ray import local_ray
from tests.support.real_model import ARGS, MODEL
from tests.support.repeated_task import RepeatedTask, rows_of

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(600)]

TOPICS = [
    "photosynthesis",
    "gravity",
    "the moon",
    "bread",
    "Redwood Dairy Farms",
    "iron",
    "rain",
    "volcanoes",
]
QUESTION = {
    "type": "object",
    "properties": {"question": {"type": "string"}, "answer": {"type": "string"}},
    "required": ["question", "answer"],
    "additionalProperties": False,
}
SCORE = {
    "type": "object",
    "properties": {"score": {"type": "integer", "minimum": 1, "maximum": 5}},
    "required": ["score"],
    "additionalProperties": False,
}
SYSTEM = "Answer in JSON."
DRAFT = {"temperature": 0.0, "max_tokens": 26}
"""Some questions are longer, and are cut off."""
REPAIR = {"temperature": 0.0, "max_tokens": 60}
JUDGE = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "seed": 5, "n": 3, "max_tokens": 9}
VERDICT = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "seed": 6, "max_tokens": 9}
"""Some are cut off."""
STEPS: list[dict[str, Any]] = [
    {
        "name": "draft",
        "system_prompt": SYSTEM,
        "prompt": "Write one question and answer about: {row.text}",
        "sampling": DRAFT,
        "response_format": QUESTION,
        "on_rejected": "continue",
    },
    {
        "name": "repair",
        "prompt": "Write a question and an answer about {row.text}, not like: {row.draft_response}",
        "sampling": REPAIR,
        "when": ["draft_rejected", "is not null"],
    },
    {"name": "judge", "prompt": "How good is this? {row.draft_response}", "sampling": JUDGE},
    {
        "name": "verdict",
        "prompt": "A score for: {row.judge_response}",
        "sampling": VERDICT,
        "response_format": SCORE,
        "each": "judge",
        "best": "score",
        "on_rejected": "continue",
    },
]

ASIDE: dict[str, Any] = {"temperature": 0.0, "max_tokens": 9}
"""Of the last step, which an adapter answers."""


@dataclass
class Answer:
    """What ``LLM.chat`` gives a question.

    :param texts: of all completions, each with why it ended.
    :param asked: tokens of the prompt, `answered` of all completions.
    """

    texts: list[tuple[str, str]]
    asked: int
    answered: int


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_adapter(tmp_path_factory.mktemp("adapter"), seed=3))


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory, adapter: str) -> Iterator[BatchManifest]:
    """Of the job."""
    aside = {"name": "aside", "prompt": "And {row.text}?", "sampling": ASIDE, "adapter": adapter}
    with local_ray():
        task = RepeatedTask(tmp_path_factory.mktemp("job"))
        task.input(TOPICS)
        yield task.run(
            engine="vllm", model=str(MODEL), engine_args=ARGS, sampling={"top_p": 0.9}, steps=[*STEPS, aside]
        )


@pytest.fixture(scope="module")
def expected(llm: Any, adapter: str) -> list[list[Answer | None]]:
    """Of each row, the answers to its questions, which are asked after each other."""
    return [asked_by_hand(llm, topic, adapter) for topic in TOPICS]


def asked_by_hand(llm: Any, topic: str, adapter: str) -> list[Answer | None]:
    system = {"role": "system", "content": SYSTEM}
    draft = chat(llm, DRAFT, system, f"Write one question and answer about: {topic}", schema=QUESTION)
    ((text, _),) = draft.texts
    repair = None
    if not is_question(text):
        repair = chat(llm, REPAIR, f"Write a question and an answer about {topic}, not like: {text}")
    judge = chat(llm, JUDGE, f"How good is this? {text}")
    verdicts = [chat(llm, VERDICT, f"A score for: {text}", schema=SCORE) for text, _ in judge.texts]
    return [draft, repair, judge, joined(verdicts), chat(llm, ASIDE, f"And {topic}?", adapter=adapter)]


def joined(answers: list[Answer]) -> Answer:
    texts = [text for answer in answers for text in answer.texts]
    return Answer(texts, sum(one.asked for one in answers), sum(one.answered for one in answers))


def chat(
    llm: Any, sampling: dict[str, Any], *messages: Any, schema: Any = None, adapter: str | None = None
) -> Answer:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.sampling_params import StructuredOutputsParams

    outputs = {} if schema is None else {"structured_outputs": StructuredOutputsParams(json=schema)}
    params = SamplingParams(**{"top_k": 7, "top_p": 0.9, **sampling}, **outputs)
    chat = [{"role": "user", "content": one} if isinstance(one, str) else one for one in messages]
    lora = None if adapter is None else LoRARequest("aside", 1, adapter)
    (output,) = llm.chat([chat], params, use_tqdm=False, lora_request=lora)
    return Answer(
        [(one.text, one.finish_reason) for one in output.outputs],
        len(output.prompt_token_ids),
        sum(len(one.token_ids) for one in output.outputs),
    )


def is_question(text: str) -> bool:
    try:
        return set(json.loads(text)) == {"question", "answer"}
    except ValueError:
        return False


def test_each_step_is_answered_as_by_vllm(
    manifest: BatchManifest, expected: list[list[Answer | None]]
) -> None:
    rows = rows_of(manifest)
    assert [row["text"] for row in rows] == TOPICS
    for row, (draft, repair, judge, verdict, aside) in zip(rows, expected, strict=True):
        assert draft is not None
        assert aside is not None
        assert [(row["aside_response"], row["aside_finish_reason"])] == aside.texts
        assert judge is not None
        assert verdict is not None
        assert [(row["draft_response"], row["draft_finish_reason"])] == draft.texts
        if repair is None:
            question = {"question": row["draft_question"], "answer": row["draft_answer"]}
            assert question == json.loads(row["draft_response"])
            assert (row["draft_rejected"], row["repair_response"]) == (None, None)
        else:
            assert row["draft_rejected"]
            assert (row["draft_question"], row["draft_answer"]) == (None, None)
            assert [(row["repair_response"], row["repair_finish_reason"])] == repair.texts
        order = sorted(range(3), key=lambda place: -score_of(verdict.texts[place][0]))
        for step, answer in (("judge", judge), ("verdict", verdict)):
            made = [(one["text"], one["finish_reason"]) for one in row[f"{step}_completions"]]
            assert made == [answer.texts[place] for place in order]
            assert row[f"{step}_response"] == made[0][0]
        assert [one["candidate"] for one in row["verdict_completions"]] == order
        best = score_of(verdict.texts[order[0]][0])
        assert (row["verdict_score"], row["verdict_rejected"] is None) == (best or None, best > 0)
    repaired = sum(repair is not None for _, repair, *_ in expected)
    assert 0 < repaired < len(TOPICS)
    assert any(row["verdict_candidate"] for row in rows)


def score_of(text: str) -> int:
    """Return 0 for a text without a score, which comes last."""
    try:
        return int(json.loads(text)["score"])
    except ValueError:
        return 0


def test_tokens_of_each_step_are_those_of_vllm(
    manifest: BatchManifest, expected: list[list[Answer | None]]
) -> None:
    counts = manifest.steps or ()
    assert [one.name for one in counts] == ["draft", "repair", "judge", "verdict", "aside"]
    for one, answers in zip(counts, zip(*expected, strict=True), strict=True):
        asked = [answer for answer in answers if answer is not None]
        assert one.asked == len(asked)
        assert one.input_tokens == sum(answer.asked for answer in asked), one.name
        assert one.output_tokens == sum(answer.answered for answer in asked), one.name
    assert manifest.tokens.input == sum(one.input_tokens for one in counts)
    assert manifest.tokens.output == sum(one.output_tokens for one in counts)


def test_the_adapter_of_a_step_is_not_that_of_others(llm: Any, expected: list[list[Answer | None]]) -> None:
    plain = [chat(llm, ASIDE, f"And {topic}?") for topic in TOPICS]
    assert sum(one != answers[-1] for one, answers in zip(plain, expected, strict=True)) > len(TOPICS) // 2


def test_one_engine_answers_all_steps(manifest: BatchManifest) -> None:
    (replica,) = manifest.replicas
    assert replica.rows == len(TOPICS)
    assert replica.output_tokens == sum(one.output_tokens for one in manifest.steps or ())
