# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.writer import DatasetWriter
from airflow_provider_raybatch.storage.folder import folder
from airflow_provider_raybatch.workflows.filters import Heuristics, LanguageFilter, Threshold
from airflow_provider_raybatch.workflows.rows import read_raw
from airflow_provider_raybatch.workflows.sift import (
    Funnel,
    count_tokens,
    sift,  # noqa: F401 - messages.txt uses it
)
from tests.support.approved import AssertSentences
from tests.support.datasets import batch
from tests.support.s3_server import serving

from .sifting import sifted

ENGLISH = (
    "The harbour was quiet in the morning and the boats came home with the fish that they had caught at night"
)
WORDS = sorted(set(ENGLISH.split()))
GERMAN = "Am Morgen war der Hafen still und die Boote kamen mit den Fischen nach Hause, die sie nachts fingen"


def test_each_row_is_kept_or_dropped_once_in_order(tmp_path: Path) -> None:
    batches = (batch(n=[k, k + 1, k + 2], tokens=[1, 10, 100]) for k in range(0, 30, 3))
    steps = [Threshold("n", least=5), Threshold("n", most=20, name="upper")]
    funnel, kept, dropped = sifted(tmp_path, batches, steps, tokens="tokens")
    assert [row["n"] for row in kept.rows()] == list(range(5, 21))
    gone = list(dropped.rows())
    assert sorted(row["n"] for row in gone) == [*range(5), *range(21, 30)]
    assert [row["reason"] for row in gone if row["n"] == 4] == ["n is 4, less than 5"]
    assert [one.tokens for one in funnel.steps] == [1110, 988, 655]
    assert Funnel.from_json(json.loads(json.dumps(funnel.as_json()))) == funnel
    assert "| upper | 16 | 53.3% | 655 | n_above: 9 |" in funnel.as_markdown()


def test_an_empty_night(tmp_path: Path) -> None:
    none = count_tokens([batch(id=["a"], text=["b"]).slice(0, 0)], "text")
    funnel, kept, dropped = sifted(tmp_path, none, [LanguageFilter(["en"])], tokens="tokens")
    assert (funnel.steps[-1].rows, kept.count, dropped.count) == (0, 0, 0)
    assert kept.schema.names == ["id", "text", "tokens", "language", "language_score"]
    assert dropped.schema.names == ["id", "text", "tokens", "dropped_by", "rule", "reason"]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (None, "empty"),
        (" \n ", "empty"),
        ("x" * 5_000_000, "too_long"),
        ("a b c", "too_few_words"),
        (f"{ENGLISH} \ufffd\ufffd\ufffd", "undecodable"),
        ("extraordinarilylongword " * 30, "word_length"),
        ("1000 2000 3000 4000 - = + 1200 " * 5 + "word", "not_alphabetic"),
        (f"{ENGLISH} # # # # #", "symbols"),
        ("\n".join(f"- item {word} of the list" for word in ENGLISH.split()), "bullets"),
        ("\n".join(f"and {word} goes on..." for word in ENGLISH.split() if word.isalpha()), "symbols"),
        ("\n".join(f"then {word} of many long words in a row goes on..." for word in WORDS), "ellipses"),
        ("\n".join([*(f"Chapter about {word} here" for word in ENGLISH.split()[:9]), *["Read more now"] * 9]),
         "repeated_lines"),
        ("buy now " * 20 + "the best of all offers", "repeated_phrase"),
        (ENGLISH, None),
    ],
)  # fmt: skip
def test_heuristics_name_their_rule(text: str | None, rule: str | None) -> None:
    drop = Heuristics().check(text)
    assert (drop and drop.rule) == rule


def test_threshold_of_none_disables_its_rule() -> None:
    assert Heuristics(min_words=None).check("a few words") is None
    assert Heuristics(max_characters=10).check(ENGLISH) == (
        "too_long",
        f"{len(ENGLISH)} characters, more than 10",
    )


def test_languages() -> None:
    checked = LanguageFilter(["en"])(batch(text=[ENGLISH, GERMAN, "12 34", None]))
    assert checked.batch["language"].to_pylist() == ["en", "de", None, None]
    assert [drop and drop.rule for drop in checked.drops] == [
        None,
        "language",
        "unsure_language",
        "unsure_language",
    ]
    assert LanguageFilter([])(batch(text=[GERMAN])).drops == [None]
    with pytest.raises(UsageError, match=r"languages: 'english' is not one of the \d+ that py3langid knows"):
        LanguageFilter(["english"])


def test_thresholds() -> None:
    labels = Threshold("topic", labels=["sea"])(batch(topic=["sea", "sky", None]))
    assert labels.drops == [
        None,
        ("topic_unwanted", "topic is 'sky'"),
        ("topic_missing", "topic has no value"),
    ]
    assert Threshold("score", least=0.5)(batch(score=[float("nan")])).drops[0] is not None
    with pytest.raises(UsageError, match="column: 'score' holds string and not numbers"):
        Threshold("score", least=1)(batch(score=["7"]))
    with pytest.raises(UsageError, match="threshold: none is given for 'score'"):
        Threshold("score")


def test_tokens_are_counted_from_the_text() -> None:
    (found,) = count_tokens([batch(text=["x" * 40, "\u00e4" * 4, None])], "text")
    assert found["tokens"].to_pylist() == [10, 2, 0]
    (found,) = count_tokens(
        [batch(text=["a b c"])], "text", into="words", count=lambda text: len(text.split())
    )
    assert found["words"].to_pylist() == [3]


def test_raw_documents_of_a_csv(tmp_path: Path) -> None:
    rows = ["id,text", '1,"two\nlines, one value"', "2,short,and more", "3", "4,caf\u00e9", ""]
    path = tmp_path / "raw.csv"
    path.write_bytes("\n".join(rows).encode("utf-8-sig"))
    found = pa.Table.from_batches(read_raw([str(path)], ["text"])).to_pylist()
    assert [(row["line"], row["text"], row["broken"]) for row in found] == [
        (1, "two\nlines, one value", None),
        (2, None, "the row has 3 fields, the header has 2"),
        (3, None, "the row has 1 field, the header has 2"),
        (4, "caf\u00e9", None),
    ]
    path.write_bytes(b"id,text\n1,caf\xe9\n2,good\n")
    found = pa.Table.from_batches(read_raw([str(path)], ["text"])).to_pylist()
    assert [row["text"] for row in found] == [None, "good"]
    assert found[0]["broken"].startswith("the row is not UTF-8")
    with pytest.raises(UsageError, match=r"columns: 'body' is not in .*raw\.csv, which has id, text"):
        list(read_raw([str(path)], ["body"]))
    options = {"csv_options": {"encoding": "latin-1"}}
    found = pa.Table.from_batches(read_raw([str(path)], ["text"], **options)).to_pylist()
    assert [row["text"] for row in found] == ["caf\u00e9", "good"]
    path.write_bytes(b"")
    assert pa.Table.from_batches(read_raw([str(path)], ["text"])).num_rows == 0


@pytest.mark.parametrize("format", ["parquet", "jsonl"])
def test_folders_of_raw_documents_are_columns(tmp_path: Path, format: str) -> None:
    for language in ("de", "en"):
        place = tmp_path / f"language={language}"
        place.mkdir()
        if format == "parquet":
            pq.write_table(pa.table({"text": [language * 2]}), place / "a.parquet")
        else:
            (place / "a.jsonl").write_text(f'{{"text": "{language * 2}"}}\n')
    found = pa.Table.from_batches(read_raw([str(tmp_path)], ["text", "language"])).to_pylist()
    assert [(row["text"], row["language"]) for row in found] == [("dede", "de"), ("enen", "en")]


@pytest.mark.parametrize("path", ["", "/", "/raw", "/raw/a.jsonl"])
def test_raw_documents_in_s3(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with serving() as server:
        bucket = server.new_bucket()
        server.open_to_this_process(monkeypatch)
        folder(f"s3://{bucket}").write("raw/a.jsonl", b'{"text": "a"}\n')
        (found,) = pa.Table.from_batches(read_raw([f"s3://{bucket}{path}"], ["text"])).to_pylist()
    assert (found["text"], found["source"]) == ("a", f"s3://{bucket}/raw/a.jsonl")
    assert found["origin"] == f"s3://{bucket}/raw/a.jsonl:1"


def test_what_is_refused(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")

    def refused(call: Callable[[str, DatasetWriter], object]) -> object:
        return call(str(tmp_path), DatasetWriter(str(tmp_path)))

    assert_sentences(refused, (UsageError, PreflightError))
