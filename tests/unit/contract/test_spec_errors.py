# SPDX-License-Identifier: Apache-2.0
"""An error in a spec is one sentence with field, value and remedy."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from tests.support.approved import AssertSentences
from tests.support.specs import spec_error


def test_an_error_is_one_sentence_with_field_value_and_remedy(assert_sentences: AssertSentences) -> None:
    assert_sentences(spec_error)


def test_many_errors_and_broken_json_are_one_sentence() -> None:
    assert spec_error(sampling={"n": 0}, sorce=1).endswith(" (and 1 more).")
    assert len(spec_error(engine="x" * 5000)) < 300
    with pytest.raises(SpecError, match="BatchInferenceSpec: invalid JSON"):
        parse(BatchInferenceSpec, b"{")
