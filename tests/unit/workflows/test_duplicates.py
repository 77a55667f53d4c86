# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_raybatch.dataset import Rows
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.workflows.accepted import Accepted, remember
from airflow_provider_raybatch.workflows.duplicates import ExactDuplicates, NearDuplicates
from airflow_provider_raybatch.workflows.minhash import Shingles, SignatureIndex, signatures
from tests.support.approved import AssertSentences
from tests.support.datasets import batch, written

WORDS = [f"word{number}" for number in range(5000)]


def document(rng: random.Random, words: int = 120) -> list[str]:
    return rng.choices(WORDS, k=words)


def changed(rng: random.Random, words: list[str], share: float) -> list[str]:
    """Replace some consecutive words, as in an edited paragraph."""
    count = max(1, round(share * len(words)))
    start = rng.randrange(len(words) - count)
    return words[:start] + rng.choices(WORDS, k=count) + words[start + count :]


def test_exact_duplicates_keep_the_first() -> None:
    step = ExactDuplicates(["q", "a"], id_column="id")
    first = step(batch(id=[1, 2, 3], q=["Why?", "why? ", "Why?"], a=["x", "x", "y"]))
    assert [drop and drop.reason for drop in first.drops] == [None, "its text equals that of '1'", None]
    later = step(batch(id=[4, 5], q=["WHY?", "New?"], a=["y", None]))
    assert [drop and drop.reason for drop in later.drops] == ["its text equals that of '3'", None]


def test_columns_don_t_run_into_each_other() -> None:
    step = ExactDuplicates(["q", "a"], id_column="id")
    assert step(batch(id=[1, 2], q=["a b", "a"], a=["c", "b c"])).drops == [None, None]


def test_similarity_is_that_of_the_shingles() -> None:
    rng = random.Random(7)
    shingles, errors = Shingles("word", 3), []
    for _ in range(300):
        one = document(rng)
        other = changed(rng, one, rng.uniform(0.01, 0.3))
        a, b = set(shingles.of(" ".join(one))), set(shingles.of(" ".join(other)))
        exact = len(a & b) / len(a | b)
        index = SignatureIndex(0.5)
        _, match = index.keep_new(signatures([" ".join(one), " ".join(other)], shingles))
        if match:
            errors.append(match[1] - exact)
    assert len(errors) > 200
    assert abs(np.mean(errors)) < 0.01
    assert np.std(errors) < 0.05


@pytest.mark.parametrize("threshold", [0.6, 0.8, 0.9])
def test_the_index_finds_what_comparing_all_pairs_finds(threshold: float) -> None:
    """Sorted runs and their merges lose no pair: many small batches, compared with all pairs."""
    rng = random.Random(8)
    texts: list[str] = []
    for number in range(600):
        base = texts[rng.randrange(number)].split() if number and rng.random() < 0.5 else document(rng)
        texts.append(" ".join(changed(rng, base, rng.choice([0.01, 0.03, 0.1, 0.3]))))
    rows = signatures(texts, Shingles())
    index = SignatureIndex(threshold)
    found = [one for start in range(0, 600, 37) for one in index.keep_new(rows[start : start + 37])]
    kept: list[int] = []
    missed = checked = 0
    for number, match in enumerate(found):
        best = max((float((rows[number] == rows[one]).mean()) for one in kept), default=0.0)
        similar = (best - 1 / 256) / (1 - 1 / 256) >= threshold
        assert similar or match is None  # each dropped row is similar to a kept row
        checked += similar
        missed += similar and match is None
        if match is None:
            kept.append(number)
    assert len(index) == len(kept)
    assert checked > 50
    assert missed / checked <= 0.01


def test_short_texts_by_characters() -> None:
    step = NearDuplicates(["text"], id_column="id", threshold=0.7, shingles=Shingles("char", 5))
    texts = [
        "Which sugar do plants make in photosynthesis?",
        "Which sugars do plants make in photosynthesis?",
        "Why is it?",
    ]
    assert [bool(one) for one in step(batch(id=[1, 2, 3], text=texts)).drops] == [False, True, False]


def test_empty_texts_and_texts_of_megabytes() -> None:
    step = NearDuplicates(["text"], id_column="id")
    drops = step(batch(id=[1, 2, 3, 4], text=["", None, "a " * 2_500_000, "a " * 2_500_000 + "b"])).drops
    assert [bool(one) for one in drops] == [False, True, False, False]


def test_rows_that_earlier_nights_accepted(tmp_path: Path) -> None:
    rng = random.Random(9)
    old, edited, new = document(rng), document(rng), document(rng)
    accepted = written(tmp_path / "first", batch(id=["a", "b"], text=[" ".join(old), " ".join(edited)]))
    index = str(tmp_path / "index")
    assert len(Accepted(index, "2026-01-01")) == 0  # the first night has no earlier rows
    assert remember(Rows(accepted), index, "2026-01-01", ["text"], "id") == 2

    earlier = Accepted(index, "2026-01-02")
    tonight = batch(
        id=["x", "y", "z"], text=[" ".join(old).upper(), " ".join(changed(rng, edited, 0.02)), " ".join(new)]
    )
    exact = ExactDuplicates(["text"], "id", earlier)(tonight).drops
    assert exact == [("accepted_earlier", "its text equals that of 'a' of '2026-01-01'"), None, None]
    near = NearDuplicates(["text"], "id", earlier=earlier)(tonight).drops
    assert [drop and drop.rule for drop in near] == ["similar_to_accepted", "similar_to_accepted", None]
    assert near[1] is not None
    assert near[1].reason.endswith("to 'b' of '2026-01-01'")


def test_a_repeated_night_does_not_find_itself(tmp_path: Path) -> None:
    accepted = Rows(written(tmp_path / "data", batch(id=["a"], text=["one two three four"])))
    index = str(tmp_path / "index")
    for _ in range(2):
        remember(accepted, index, "run/2026-01-01", ["text"], "id")
        assert len(Accepted(index, "run/2026-01-01")) == 0
        assert Accepted(index, "other").nights == ["run/2026-01-01"]
        assert len(Accepted(index, "other")) == 1


def test_an_index_of_another_kind_is_refused(tmp_path: Path) -> None:
    accepted = Rows(written(tmp_path / "data", batch(id=["a"], text=["one two"])))
    index = str(tmp_path / "index")
    remember(accepted, index, "1", ["text"], "id", Shingles("char", 5))
    earlier = Accepted(index, "2")
    with pytest.raises(UsageError, match=r"earlier: the index .* has shingles \['char', 5\], and here"):
        NearDuplicates(["text"], "id", earlier=earlier)
    with pytest.raises(UsageError, match=r"has columns \['text'\], and here they are \['q'\]"):
        ExactDuplicates(["q"], "id", earlier)
    (tmp_path / "index/3.parquet").write_bytes(b"half a file")
    with pytest.raises(UsageError, match=r"index: '3.parquet' in .* is not the index of a run"):
        Accepted(index, "2")


def test_what_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda made: made, UsageError)
