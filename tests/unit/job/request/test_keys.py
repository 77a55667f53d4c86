# SPDX-License-Identifier: Apache-2.0
"""Request keys never change; they are equal for equal answers, and differ if answers may differ."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.request import keys
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, Request
from tests.support.specs import spec

ASKED = Request(messages=[{"role": "user", "content": "Was ist ein Café? \u2028"}])
SAMPLING = {"temperature": 0.7, "top_p": 0.1 + 0.2, "max_tokens": 16}
DIGESTS = Digests(model="m", tokenizer="t", chat_template="c")


def keyer(defaults: dict[str, Any] | None = None, digests: Digests = DIGESTS, **fields: Any) -> Keyer:
    return Keyer(spec(**{"sampling": SAMPLING, **fields}), defaults or {}, digests)


def test_a_key_never_changes() -> None:
    """All existing stores depend on this value: another one needs a new version of the rule."""
    assert keyer().key(ASKED).hex() == "b869ad3934189553b9ce370a734c0128"


MESSAGES = st.fixed_dictionaries({"role": st.text(), "content": st.text()}, optional={"name": st.text()})


@given(st.lists(MESSAGES))
def test_a_key_is_over_the_canonical_json_of_the_chat(chat: list[dict[str, Any]]) -> None:
    canonical = json.dumps([chat, []], sort_keys=True, separators=(",", ":")).encode("ascii")
    assert keys.content_of(Request(messages=chat)) == canonical


def test_key_has_the_versions_of_images_and_not_their_places() -> None:
    one, other = Image(uri="s3://b/1", version="etag:a:1"), Image(uri="/2", version="etag:b:1")
    chat = [{"role": "user", "content": [dict(IMAGE_PART), {"type": "text", "text": "x"}]}]
    asked = Request(messages=chat, images=(one,))
    made = keyer().key(asked)
    assert keyer().key(replace(asked, images=(replace(one, uri="s3://c/copy"),))) == made
    assert keyer().key(replace(asked, images=(Image(content=b"x", version="etag:a:1"),))) == made
    others = [(other,), (one, other), (other, one), (one, one), ()]
    assert len({made, *(keyer().key(replace(asked, images=images)) for images in others)}) == 6
    assert keyer(image_roots=["/photos"], max_image_bytes=5, keep_images=True, images="a").key(asked) == made


def test_the_key_of_a_group_is_over_all_its_requests() -> None:
    one, other = ASKED, Request(prompt="x")
    key = keyer().key
    groups = [(one,), (one, other), (other, one), (one, other, other)]
    keys = {key(Request(each=group)) for group in groups}
    assert len(keys) == len(groups)
    assert key(one) not in keys
    assert not keyer().is_greedy(Request(each=(replace(one, sampling={"temperature": 0}), other)))


def test_what_decides_the_answer_decides_the_key() -> None:
    one = Request(prompt="x")
    made = [
        keyer().key(one),
        keyer().key(Request(prompt="y")),
        keyer().key(Request(messages=[{"role": "user", "content": "x"}])),
        keyer().key(Request(prompt="x", sampling={"max_tokens": 17})),
        keyer(sampling={**SAMPLING, "seed": 1}).key(one),
        keyer({"top_k": 20}).key(one),
        keyer(digests=Digests(model="other", tokenizer="t", chat_template="c")).key(one),
        keyer(digests=Digests(model="m", tokenizer="other", chat_template="c")).key(one),
        keyer(digests=Digests(model="m", tokenizer="t", chat_template="other")).key(one),
        keyer(engine="vllm", engine_args={"quantization": "fp8"}).key(one),
        keyer(response_format="json_object").key(one),
        keyer(special_tokens_in_text="escape").key(one),
        keyer(special_tokens_in_text="error").key(one),
        keyer(on_overlong="truncate").key(one),
        keyer(on_overlong="truncate", engine_args={"max_model_len": 100}).key(one),  # decides what is cut
    ]
    assert len(set(made)) == len(made)


def test_adapter_decides_the_key_by_its_content() -> None:
    """Whether it is the job's or a row's; rows without one share responses with jobs without adapters."""
    rows = {"adapters": {"a": "/a", "b": "/b"}, "adapter_column": "customer"}
    contents = {"a": "1", "b": "2", "/other": "1"}
    of_rows = keyer(digests=DIGESTS.model_copy(update={"adapters": contents}), **rows)
    of_job = keyer(digests=DIGESTS.model_copy(update={"adapters": contents}), adapter="/other")
    by_a, by_b = (of_rows.key(replace(ASKED, adapter=name)) for name in ("a", "b"))
    assert of_job.key(replace(ASKED, adapter="/other")) == by_a
    assert of_rows.key(ASKED) == keyer().key(ASKED)
    assert len({by_a, by_b, of_rows.key(ASKED)}) == 3
    changed = keyer(digests=DIGESTS.model_copy(update={"adapters": {**contents, "b": "3"}}), **rows)
    assert changed.key(replace(ASKED, adapter="a")) == by_a
    assert changed.digest != of_rows.digest != keyer().digest


def test_room_for_adapters_changes_no_key() -> None:
    args = {"enable_lora": True, "max_loras": 4, "max_lora_rank": 64, "max_cpu_loras": 9}
    sized = keyer(adapter="/a", engine_args=args)
    assert sized.key(replace(ASKED, adapter="/a")) == keyer(adapter="/a").key(replace(ASKED, adapter="/a"))
    assert keyer(engine_args=args).key(ASKED) == keyer().key(ASKED)


def test_a_row_has_the_same_key_whatever_rows_came_before_it() -> None:
    values: list[Any] = [1, 1.0, True, "1", [1], {"seed": 1}, 1]
    asked = [Request(prompt="p", sampling={"top_k": value}) for value in values]
    keys = keyer()
    assert [keys.key(one) for one in asked] == [keyer().key(one) for one in asked]
    assert len({keys.key(one) for one in asked}) == len(values) - 1


def test_what_does_not_decide_the_answer_is_left_out() -> None:
    one = Request(prompt="x")
    same = [
        keyer(engine="echo", engine_args={"max_num_seqs": 7}, replicas=3),
        keyer(engine="echo", engine_args={"max_model_len": 64}),  # SAMPLING has max_tokens
        keyer(max_errors=3),
        keyer(preserve_order=True),
        keyer({"temperature": 0.3}),  # the job's sampling wins over the model's
    ]
    assert {other.key(one) for other in same} == {keyer().key(one)}
    spelled = Request(prompt="x", sampling={"max_tokens": 16})  # the job's own value
    assert keyer().key(spelled) == keyer().key(one)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0, "max_tokens": None}])
def test_the_context_counts_where_it_bounds_the_response(sampling: dict[str, Any]) -> None:
    one = Request(prompt="x")
    short = keyer(sampling=sampling, engine="echo", engine_args={"max_model_len": 64})
    assert short.key(one) != keyer(sampling=sampling, engine="echo").key(one)


def test_header_token_is_not_part_of_the_key() -> None:
    made = {
        keyer(engine="ray_data_llm", processor={"headers": {"Authorization": token}, "qps": rate}).key(
            Request(prompt="x")
        )
        for token, rate in (("Bearer a", 1), ("Bearer b", 2))
    }
    assert len(made) == 1


@pytest.mark.parametrize(
    ("defaults", "sampling", "row", "greedy"),
    [
        ({}, {}, {}, False),
        ({}, {"temperature": 0}, {}, True),
        ({"temperature": 0.0}, {}, {}, True),
        ({"temperature": 0.0}, {"temperature": 0.5}, {}, False),
        ({}, {"temperature": 0}, {"temperature": 1}, False),
        ({}, {"temperature": None}, {}, False),
    ],
)
def test_greedy_follows_from_the_effective_temperature(
    defaults: dict[str, Any], sampling: dict[str, Any], row: dict[str, Any], greedy: bool
) -> None:
    made = Keyer(spec(sampling=sampling), defaults, Digests())
    assert made.is_greedy(Request(prompt="x", sampling=row)) is greedy


@given(st.lists(st.tuples(st.sampled_from([b"a" * 16, b"b" * 16, b"\0" * 16]), st.booleans()), max_size=40))
def test_equal_sampled_requests_get_distinct_keys(rows: list[tuple[bytes, bool]]) -> None:
    own = keys.as_array([key for key, _ in rows])
    sampled = np.array([one for _, one in rows], np.bool_)
    numbers = keys.repetitions(own, sampled)
    seen: dict[bytes, int] = {}
    for place, (key, one) in enumerate(rows):
        assert numbers[place] == (seen.get(key, 0) if one else 0)
        seen[key] = seen.get(key, 0) + one
    apart = keys.disambiguate(own, numbers)
    assert [apart[place : place + 1].tobytes() for place in range(len(rows))] == [
        keys.nth(key, int(number)) for (key, _), number in zip(rows, numbers, strict=True)
    ]


def test_what_decides_a_vector_decides_its_key() -> None:
    """The model's `generation_config` does not, and the type of the numbers is made of what is kept."""
    one = Request(prompt="x")

    def key(defaults: dict[str, Any] | None = None, **fields: Any) -> bytes:
        task = {"model_task": "embed", "engine": "vllm", "model": "m", **fields}
        return Keyer(spec(**task), defaults or {}, Digests()).key(one)

    assert key() == key({"temperature": 0.6}) == key(embed_dtype="float16")
    changes: list[dict[str, Any]] = [
        {},
        {"pooling": {"dimensions": 4}},
        {"pooling": {"use_activation": False}},
        {"on_overlong": "truncate"},
        {"engine_args": {"dtype": "float32"}},
    ]
    assert len({key(**fields) for fields in changes}) == len(changes)


def test_pooling_is_repeatable_whatever_the_model_samples() -> None:
    made = Keyer(spec(model_task="embed"), {"temperature": 0.6}, Digests())
    assert made.is_greedy(Request(prompt="x"))
    assert made.may_be_greedy
