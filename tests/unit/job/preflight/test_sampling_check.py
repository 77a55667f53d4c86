# SPDX-License-Identifier: Apache-2.0
"""What vLLM would refuse row after row is one sentence before an engine starts."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.sampling_check import check_sampling, compact_json
from airflow_provider_raybatch.job.row import Request
from tests.support.specs import spec

IGNORING_CASE = {"structured_outputs": {"regex": "(?i)yes|no"}}
OBJECT = {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}
STEPS = {"json": {"type": "integer", "multipleOf": 5}}
"""XGrammar does not know it, so that `auto` takes guidance."""
NAMED = {"json": {"type": "object", "patternProperties": {"^a": {"type": "integer"}}}}
"""Only outlines knows it, by vLLM's account."""
XGRAMMAR = {"backend": "xgrammar", "disable_any_whitespace": True}
GUIDANCE = {"backend": "guidance", "disable_any_whitespace": True}


def compact(job: Any = None, *rows: Any, config: Any = None, **fields: Any) -> dict[str, Any]:
    """The engine's config for a job and rows with these `structured_outputs`."""
    args = {} if config is None else {"structured_outputs_config": config}
    asking = spec(
        engine="vllm",
        model="some/model",
        sampling={} if job is None else {"structured_outputs": job},
        engine_args=args,
        **fields,
    )
    requests = [Request(prompt="x", sampling={"structured_outputs": row} if row else {}) for row in rows]
    return compact_json(asking, requests, tokenizer=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "rows", "config"),
    [
        (OBJECT, [None], XGRAMMAR),
        ({"json_object": True}, [], XGRAMMAR),
        (STEPS, [None], GUIDANCE),
        (NAMED, [None], {}),
        (None, [None, OBJECT, {"choice": ["a"]}], XGRAMMAR),
        (None, [OBJECT, STEPS], GUIDANCE),
        (None, [OBJECT, {"json": {"type": "strin"}}], XGRAMMAR),
        (None, [{"json": {"type": "array", "uniqueItems": True, "items": {}}}], {}),
        (OBJECT, [STEPS], GUIDANCE),
    ],
)
def test_json_is_asked_for_compactly(job: Any, rows: list[Any], config: dict[str, Any]) -> None:
    """By the backend that vLLM's `auto` would take, which takes no such setting itself."""
    structured_outputs = pytest.importorskip("vllm.config.structured_outputs")
    found = compact(job, *rows, sampling_column="sampling")
    assert found == config
    structured_outputs.StructuredOutputsConfig(**found)


@pytest.mark.parametrize(
    ("given", "config"),
    [
        ({"disable_any_whitespace": False}, {}),
        ({"backend": "auto"}, {}),
        ({"backend": "outlines"}, {}),
        ({"backend": "guidance", "disable_any_whitespace": False}, {}),
        ({"backend": "xgrammar"}, XGRAMMAR),
        ({"backend": "guidance"}, GUIDANCE),
    ],
)
def test_what_the_user_sets_stays(given: dict[str, Any], config: dict[str, Any]) -> None:
    assert compact(OBJECT, None, config=given) == config


@pytest.mark.parametrize("own", [{"disable_any_whitespace": False}, {"whitespace_pattern": " ?"}])
def test_a_wish_beside_the_schema_counts_too(own: dict[str, Any]) -> None:
    assert compact({**OBJECT, **own}) == {}


def test_engines_of_text_are_the_same_as_those_of_json() -> None:
    """So that a warm engine serves both, and jobs whose rows may ask for JSON: until then, none decides."""
    assert compact(None, None) == XGRAMMAR
    assert compact(None, None, sampling_column="sampling") == XGRAMMAR
    assert compact(None, None, config={"reasoning_parser": "qwen3"}) == {
        "reasoning_parser": "qwen3",
        **XGRAMMAR,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "backend", "begins"),
    [
        (IGNORING_CASE, None, None),
        (IGNORING_CASE, "guidance", None),
        (IGNORING_CASE, "xgrammar", 'sampling: structured_outputs {"regex": "(?i)yes|no"} does not compile'),
        ({"min_tokens": 20}, None, None),
        ({"min_tokens": 20, "max_tokens": 10}, None, "sampling: vLLM refuses"),
    ],
)
def test_sampling_of_the_job(sampling: dict[str, Any], backend: str | None, begins: str | None) -> None:
    pytest.importorskip("vllm")
    args = {} if backend is None else {"structured_outputs_config": {"backend": backend}}
    job = spec(engine="vllm", model="some/model", sampling=sampling, engine_args=args)
    if begins is None:
        check_sampling(job)
    else:
        with pytest.raises(PreflightError) as caught:
            check_sampling(job)
        assert str(caught.value).startswith(begins)
