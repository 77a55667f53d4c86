# SPDX-License-Identifier: Apache-2.0
"""What is said of a failed row without quoting it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_provider_raybatch
from airflow_provider_raybatch.job.engine.base import overlong, too_long
from airflow_provider_raybatch.job.failures import public_reasons
from airflow_provider_raybatch.job.failures.public_reasons import public_reason
from airflow_provider_raybatch.job.input.text_rows import json_rows
from airflow_provider_raybatch.job.media.load import load
from airflow_provider_raybatch.job.request.openai_batch.parameters import wrong
from airflow_provider_raybatch.job.request.row_text import SpecialTokens
from airflow_provider_raybatch.job.row import Image, ImageError, Request, RowFailure
from tests.support.approved import AssertSentences
from tests.support.image_files import access
from tests.support.row_canaries import CANARY, canary

PACKAGE = Path(airflow_provider_raybatch.__file__).parent
SOURCES = re.sub(
    r'["\']\n\s*f?["\']',
    "",
    "".join(path.read_text() for path in PACKAGE.rglob("*.py") if path.name != "public_reasons.py"),
)
"""Of the package, with texts of several lines joined."""
_OPEN = re.compile(r"\.\*|\\d\+\(\?:,\\d\{3\}\)\*|\(\?:.*?\)\??|\w+s\?|'|\$|the function returned (?=a)")
"""Between the words of a listed reason: what a regular expression leaves open, or the code writes apart."""
STEPS = ("read", "template", "media", "tokenize", "engine", "parse", "length", "postprocess", "another")


def public(step: str, reason: str) -> str:
    return public_reason(RowFailure(step, reason))


def test_counts_stay_and_values_go() -> None:
    assert public_reason(overlong(9000, 8192)) == overlong(9000, 8192).reason
    assert public_reason(too_long(1, 1)) == "the text has 1 token and the model takes 1"
    found = SpecialTokens([canary("token")]).failure(Request(prompt=canary("token")))
    assert found is not None
    assert public_reason(found) == "the row's text has a special token of the model"
    where = "chunk 3 (from character 1,200): the text has 1 token and the model takes 1"
    assert public("tokenize", where) == "the text has 1 token and the model takes 1"


def test_lines_that_are_no_rows_have_a_kind(assert_sentences: AssertSentences) -> None:
    def said(data: str) -> str:
        (row,) = json_rows(data.encode())
        assert not isinstance(row, dict)
        return public("read", row.reason)

    assert_sentences(said)


def test_fields_of_lines_are_named_and_keys_of_rows_are_not() -> None:
    assert public("template", str(wrong("temperature", "a number", canary("x")))) == (
        "the line's temperature is refused"
    )
    nested = str(wrong(f"messages.0.{canary('key')}", "a text", 1))
    assert public("template", nested) == "the line's messages is refused"
    assert public("template", str(wrong(canary("key"), "a text", 1))) == "the row makes no request"


def test_classes_of_exceptions_are_named_and_texts_are_not() -> None:
    error = ValueError(canary("text"))
    assert public_reason(RowFailure.of("engine", error)) == "the engine made no response (ValueError)"
    assert public("template", f"{CANARY}Error: x") == "the row makes no request"
    assert public("another", canary("text")) == "the dead letter has the reason"


def test_a_failure_of_a_step_has_the_words_of_its_kind() -> None:
    for kind in STEPS:
        assert public(f"judge.{kind}", "anything") == public(kind, "anything")


def test_images_of_rows_have_a_kind_of_failure() -> None:
    with pytest.raises(ImageError) as caught:
        access().located(f"/{canary('folder')}/a.png")
    assert public("media", str(caught.value)) == "an image is not below image_roots"
    failure = load([Image(content=canary("x").encode() * 10)], access(most_bytes=9))
    assert isinstance(failure, RowFailure)
    assert public_reason(failure) == "an image has more than max_image_bytes"


@given(st.sampled_from(STEPS), st.sampled_from(public_reasons._SAYS), st.booleans())
def test_no_reason_lets_a_row_through(step: str, says: tuple[str, str | None], quoted: bool) -> None:
    begins = re.sub(r"\\d\+\(\?:,\\d\{3\}\)\*", "7", says[0])
    begins = re.sub(r"\(\?:([^|)]*)[^)]*\)\??", r"\1", begins).replace("s?", "s").replace(".*", CANARY)
    reason = f"{begins} {CANARY!r} {CANARY}" if quoted else f"{begins}{CANARY}"
    said = public(step, reason)
    assert CANARY not in said
    assert said


@given(st.sampled_from(STEPS), st.text())
def test_any_reason_becomes_words_of_the_list(step: str, text: str) -> None:
    assert public(step, f"{CANARY}{text}") in {*public_reasons._OF_STEP.values(), public_reasons._OTHER}


@pytest.mark.parametrize("says", [one for one, _ in public_reasons._SAYS])
def test_each_listed_reason_is_written_somewhere(says: str) -> None:
    """A reason that is worded anew must be listed anew, or the job says less of it."""
    assert max(_OPEN.split(says), key=len).strip() in SOURCES
