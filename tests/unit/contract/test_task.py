# SPDX-License-Identifier: Apache-2.0
"""Which arguments a kind of task takes."""

from __future__ import annotations

from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


def test_arguments_of_another_model_task_are_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_classify_takes_whole_chats_as_they_are() -> None:
    assert spec(model_task="classify", messages_column="chat", chat_template="{{ messages }}").pools


def test_wrong_pooling_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **pooling: spec_error(model_task="embed", pooling=pooling))


def test_a_score_needs_a_query_and_documents(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda **fields: spec_error(model_task="score", **fields))


def test_what_decides_a_score() -> None:
    """How many documents a ranking keeps does not."""
    fields = {"model_task": "score", "query": "{row.q}", "documents_column": "d"}
    one, other = spec(**fields), spec(**fields, top_n=2)
    assert one.response_digest == other.response_digest
    assert one.fingerprint != other.fingerprint
    assert one.response_digest != spec(**{**fields, "query": "{row.other}"}).response_digest
    assert one.column_arguments() == {"d": "documents_column", "q": "query"}


def test_a_column_of_texts_may_be_cut() -> None:
    assert spec(model_task="embed", prompt_column="text", on_overlong="truncate").pools


def test_what_decides_a_vector() -> None:
    """Its numbers' type does not, and the context only where texts are cut."""
    fields = {"model_task": "embed", "engine_args": {"max_model_len": 9}}
    one = spec(**fields)
    assert one.response_digest == spec(model_task="embed", embed_dtype="float16").response_digest
    assert one.response_digest != spec(**fields, pooling={"dimensions": 2}).response_digest
    assert one.response_digest != spec().response_digest
    cut = spec(**fields, on_overlong="truncate")
    assert cut.response_digest != spec(model_task="embed", on_overlong="truncate").response_digest
    assert one.fingerprint != spec(**fields, embed_dtype="float16").fingerprint
