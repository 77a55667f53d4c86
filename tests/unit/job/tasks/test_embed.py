# SPDX-License-Identifier: Apache-2.0
"""Whole jobs of `model_task` embed: a vector for each row's text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.job.request.render import render_all
from airflow_provider_raybatch.job.row import Request, Response, RowFailure
from airflow_provider_raybatch.job.tasks.base import Task
from airflow_provider_raybatch.job.tasks.pooling import EmbedTask
from airflow_provider_raybatch.job.tasks.registry import task_of
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.echo_place import EchoPlace
from tests.support.specs import spec

TEXTS = ["a red fox", "a red fox", "deep blue sea", "a red dog"]


def embed(place: EchoPlace, number: int = 0, texts: Any = TEXTS, **fields: Any) -> BatchManifest:
    """Run a job over texts into a destination of its own."""
    place.folder = LocalFolder(str(place.root / f"out-{number}"))
    args = {"embedding_size": 16, "request_log": str(place.root / "log"), **fields.pop("engine_args", {})}
    other = {"prompt": None} if {"prompt_column", "prompt_function"} & fields.keys() else {}
    asked = {"model_task": "embed", "engine_args": args, **other, **fields}
    return place.job(number, [{"text": text} for text in texts], **asked)


def vectors(place: EchoPlace, manifest: BatchManifest, name: str = "embedding") -> Any:
    return np.array([row[name] for row in place.rows(manifest)], np.float64)


def test_rows_get_vectors_and_duplicates_share_one(place: EchoPlace) -> None:
    manifest = embed(place)
    assert [(column.name, column.type) for column in manifest.columns] == [
        ("text", "string"),
        ("embedding", "fixed_size_list<element: float>[16]"),
        ("input_tokens", "int64"),
    ]
    made = vectors(place, manifest)
    assert np.allclose(np.linalg.norm(made, axis=1), 1)
    likeness = made @ made[0]
    assert likeness[1] == pytest.approx(1)
    assert likeness[3] > likeness[2]  # words in common
    assert place.generated() == 3
    assert (manifest.counts.duplicates, manifest.tokens.input, manifest.tokens.output) == (1, 12, 0)
    assert (manifest.finish_reasons, manifest.response_column) == ({}, "embedding")


def test_dimensions_keep_the_first_numbers(place: EchoPlace) -> None:
    """Matryoshka: cut, and then normalised, unless that is switched off."""
    pooling = {"dimensions": 4, "use_activation": False}
    cut = vectors(place, embed(place, 0, pooling=pooling))
    whole = vectors(place, embed(place, 1, pooling={"use_activation": False}))
    normal = vectors(place, embed(place, 2, pooling={"dimensions": 4}))
    assert np.array_equal(cut, whole[:, :4])
    assert normal == pytest.approx(cut / np.linalg.norm(cut, axis=1, keepdims=True))


def test_embed_dtype_is_made_of_stored_vectors(place: EchoPlace) -> None:
    """The store keeps float32, so another `embed_dtype` asks no engine."""
    store = str(place.root / "store")
    whole = vectors(place, embed(place, 0, reuse=store))
    half = embed(place, 1, reuse=store, embed_dtype="float16", response_column="v")
    (column,) = [column for column in half.columns if column.name == "v"]
    assert column.type == "fixed_size_list<element: halffloat>[16]"
    assert half.counts.reused == 4
    assert place.generated() == 3
    assert np.array_equal(vectors(place, half, "v"), whole.astype(np.float16))


def test_blank_text_is_a_dead_letter(place: EchoPlace) -> None:
    manifest = embed(place, 0, ["a fox", "", " \n", None], max_errors=3, prompt_column="text")
    letters = place.letters(manifest)
    assert manifest.counts.errors_by_step == {"template": 3}
    assert letters[1]["reason"] == "column 'text' is empty, and a pooling model needs a text"


def test_text_of_exactly_the_context_is_taken(place: EchoPlace) -> None:
    manifest = embed(place, 0, ["a b c", "a b c d"], max_errors=1, engine_args={"max_model_len": 3})
    assert manifest.counts.ok == 1
    (letter,) = place.letters(manifest)
    assert (letter["step"], letter["reason"]) == (
        "tokenize",
        "the text has 4 tokens and the model takes 3; cut it with on_overlong='truncate', or split it before",
    )


def test_a_long_text_is_cut_by_choice(place: EchoPlace) -> None:
    args = {"max_model_len": 3}
    rows = place.rows(embed(place, 0, ["a b c d e", "a b c"], on_overlong="truncate", engine_args=args))
    assert [(row["input_tokens"], row["truncated_prompt_tokens"]) for row in rows] == [(3, 2), (3, 0)]
    assert rows[0]["embedding"] == rows[1]["embedding"]


def test_postprocess_gets_the_vector(place: EchoPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.root / "lengths.py").write_text("def of(row, vector):\n    return {'n': len(vector)}\n")
    monkeypatch.syspath_prepend(str(place.root))
    assert [row["n"] for row in place.rows(embed(place, postprocess="lengths:of"))] == [16] * 4


def test_a_dataset_without_vectors_has_their_column(place: EchoPlace) -> None:
    args = {"fail_pattern": "fox"}
    manifest = embed(place, 0, ["a fox"], max_errors=1, pooling={"dimensions": 4}, engine_args=args)
    schema = pq.read_schema(f"{manifest.uri}/{manifest.files[0].path}")
    assert str(schema.field("embedding").type) == "fixed_size_list<element: float>[4]"


@pytest.mark.parametrize(
    ("numbers", "fields", "reason"),
    [
        (None, {}, "the engine gave no vector"),
        ([[1.0, 2.0]], {}, "the engine gave no vector"),
        ([1.0, 2.0], {"pooling": {"dimensions": 3}}, "the vector has 2 dimensions, and pooling asks for 3"),
        (
            [1.0, float("nan")],
            {},
            "the vector has numbers that are not finite (NaN or infinite); try dtype='float32' in "
            "engine_args",
        ),
        (
            [70000.0],
            {"embed_dtype": "float16"},
            "the vector has numbers that embed_dtype 'float16' can't hold; set it to 'float32'",
        ),
    ],
)
def test_a_vector_that_is_none_fails_its_row(numbers: Any, fields: dict[str, Any], reason: str) -> None:
    task = task_of(spec(model_task="embed", prompt="{row.text}", **fields))
    pooled = None if numbers is None else np.array(numbers, np.float32)
    assert task.check(Response(input_tokens=2, pooled=pooled), {}) == RowFailure("engine", reason, 2)


def test_an_unknown_size_is_a_list_of_any_size() -> None:
    task = EmbedTask(spec(model_task="embed", prompt="{row.text}"))
    assert str(task.published_type.field("embedding").type) == "list<item: float>"
    assert task.measured(iter(())) is task


def test_function_makes_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "embed_texts.py").write_text("def of(row):\n    return row['made']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    render = task_of(spec(model_task="embed", prompt_function="embed_texts:of")).renderer()
    chat, text, blank = render_all(render, [{"made": made} for made in ([{"role": "user"}], "a fox", " ")])
    assert text == Request(prompt="a fox")
    assert [made.reason for made in (chat, blank) if isinstance(made, RowFailure)] == [
        "embed_texts:of returned list, and model_task 'embed' needs a text",
        "the text that embed_texts:of returned is empty, and a pooling model needs a text",
    ]


@pytest.mark.parametrize("fields", [{}, {"on_overlong": "truncate"}])
def test_outputs_of_many_rows_are_those_of_each(fields: dict[str, Any]) -> None:
    task = task_of(spec(model_task="embed", prompt="{row.text}", **fields))
    one = Response(input_tokens=3, truncated_prompt_tokens=1, pooled=np.array([1.5, -2.0], np.float32))
    other = Response(input_tokens=4, pooled=np.array([0.25, 7.0], np.float32))
    for responses in ([], [None], [one], [None, one, None, other]):
        made = task.outputs(responses)
        assert made.type == task.output_type
        made.validate(full=True)
        assert made.to_pylist() == Task.outputs(task, responses).to_pylist()
