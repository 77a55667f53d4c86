# SPDX-License-Identifier: Apache-2.0
"""What preflight knows about source and rows; ``job/test_bad_inputs.py`` has whole jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.arguments.limits import LimitArguments
from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.budgets import Tolerance
from airflow_provider_raybatch.job.preflight.input_check import check_rows, sample
from airflow_provider_raybatch.job.row import Request
from tests.support.approved import AssertSentences
from tests.support.sources import look_at_source
from tests.support.specs import asking, spec


def source_of(path: Path, **fields: Any) -> Source:
    return look_at_source(spec(**{"source": [str(path)], **asking("{row.text}", fields), **fields}))


def sampled(path: Path, fraction: float = 0.5, **fields: Any) -> tuple[list[Request], list[Notice]]:
    whole = spec(**{"source": [str(path)], **asking("{row.text}", fields), **fields})
    source = look_at_source(whole)
    notices: list[Notice] = []
    tolerance = Tolerance(LimitArguments(max_error_fraction=fraction), source.rows)
    found = sample(whole, source, None)
    check_rows(whole, found, tolerance, notices.append)
    return found.requests, notices


def jsonl(folder: Path, rows: list[Any], name: str = "x.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "Name {row.text} {row.b}", "system_prompt": "Be brief."},
        {"prompt": None, "prompt_column": "text"},
        {"prompt": None, "messages": [{"role": "user", "content": "Name {row.text}{row.b}"}]},
    ],
)
def test_prompts_of_blank_cells_alone_are_counted(tmp_path: Path, fields: dict[str, Any]) -> None:
    rows = [{"text": text, "b": " "} for text in ("a", " ", " \t\n", "c")]
    requests, notices = sampled(jsonl(tmp_path, rows), **fields)
    assert len(requests) == 4
    (message,) = (notice.message for notice in notices)
    assert message.startswith("prompt: 2 of the first 4 rows have only blank text for it and are asked all")
    assert sampled(jsonl(tmp_path, [rows[0], rows[3]]), **fields)[1] == []
    requests, notices = sampled(jsonl(tmp_path, rows), on_blank="null", **fields)
    assert (len(requests), notices) == (2, [])
    _, (notice,) = sampled(jsonl(tmp_path, rows), on_blank="error", fraction=0.5, **fields)
    assert notice.message.startswith("2 of the first 4 rows will be dead letters: 2 in step 'template'")


def test_rows_columns_and_types_are_known(tmp_path: Path) -> None:
    source = source_of(jsonl(tmp_path, [{"text": "a", "n": 1}, {"text": "b", "x": [1.5]}] * 300))
    assert source.rows == 600
    assert source.schema == pa.schema([
        ("text", pa.string()),
        ("n", pa.int64()),
        ("x", pa.list_(pa.float64())),
    ])
    assert sum(chunk.rows for chunk in source.chunks(100)) == 600


def test_a_limit_counts(tmp_path: Path) -> None:
    path = jsonl(tmp_path, [{"text": "a"}] * 100)
    for limit, rows in [(7, 7), (100, 100), (1000, 100)]:
        source = source_of(path, source=[str(path)], limit=limit)
        assert source.rows == rows
        assert sum(chunk.rows for chunk in source.chunks(3)) == rows


def test_columns_of_all_files_come_together(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["a"], "one": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"two": [1], "text": ["a"]}), tmp_path / "2.parquet")
    assert source_of(tmp_path).columns == ["text", "one", "two"]


def test_a_column_without_row_is_refused(tmp_path: Path, assert_sentences: AssertSentences) -> None:
    path = jsonl(tmp_path, [{"text": "a", "the tone": "b"}])
    assert_sentences(lambda **fields: source_of(path, **fields), PreflightError)


@pytest.mark.parametrize(
    "text",
    [
        "{'{text}'}",
        '{"text": {row.text}}',
        "{text: 1} {other} {} {1}",
        "{{row.text}}",
        "{row.a b}",
        "{row[1]}",
        "{'{row.the tone}'}",
    ],
)
def test_braces_that_name_no_column_are_text(tmp_path: Path, text: str) -> None:
    path = jsonl(tmp_path, [{"text": "a", "the tone": "b", "1": "digits are not a name here"}])
    assert source_of(path, prompt="{row.text}" + text).rows == 1


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", ""), ("x.csv", "text\n"), ("x.csv", "\n\n"), ("x.jsonl", ""), ("x.jsonl", "\n\n")],
)
def test_an_input_without_rows_is_fine(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    assert sampled(tmp_path) == ([], [])


def test_the_first_thousand_rows_are_rendered(tmp_path: Path) -> None:
    requests, notices = sampled(jsonl(tmp_path, [{"text": str(number)} for number in range(3000)]))
    assert len(requests) == 1000
    assert requests[999].messages == [{"role": "user", "content": "999"}]
    assert notices == []


def test_rows_that_will_fail_are_reported_with_an_example(tmp_path: Path) -> None:
    requests, notices = sampled(jsonl(tmp_path, [{"text": "a"}, {"text": None}, {"text": "c"}, {}]))
    assert len(requests) == 2
    assert [(notice.level, notice.message) for notice in notices] == [
        (
            "warning",
            "2 of the first 4 rows will be dead letters: 1 in step 'template' (row 1: column 'text' is "
            "null), 1 in step 'template' (row 3: the row has no column 'text').",
        )
    ]


def test_text_like_a_placeholder_is_reported(tmp_path: Path) -> None:
    prompt = {"prompt": "{row.text} {row.text.more}", "system_prompt": "{ row.note }"}
    _, notices = sampled(jsonl(tmp_path, [{"text": "a"}]), **prompt)
    assert [notice.message.partition(" is taken")[0] for notice in notices] == [
        "prompt: '{row.text.more}'",
        "system_prompt: '{ row.note }'",
    ]


@pytest.mark.parametrize(
    ("prompt", "field"),
    [
        ({"prompt": "{row.Text}"}, "prompt"),
        ({"prompt": "x", "system_prompt": "{row.Text}"}, "system_prompt"),
        ({"messages": [{"role": "user", "content": "{row.Text}"}]}, "messages"),
        ({"messages_column": "Text"}, "messages"),
        ({"prompt_column": "Text"}, "prompt_column"),
    ],
)
def test_missing_column_is_reported_under_its_field(
    tmp_path: Path, prompt: dict[str, Any], field: str
) -> None:
    with pytest.raises(PreflightError) as caught:
        source_of(jsonl(tmp_path, [{"text": "a", "id": 1}]), **prompt)
    assert str(caught.value) == (
        f"{field}: the source has no column 'Text'; did you mean 'text' (its columns: text, id)."
    )


def test_a_source_of_many_columns_is_refused_shortly(tmp_path: Path) -> None:
    names = [f"column_{number}" for number in range(3000)]
    (tmp_path / "x.csv").write_text(f"{','.join(names)}\n{','.join('x' for _ in names)}\n")
    with pytest.raises(PreflightError) as caught:
        source_of(tmp_path / "x.csv", prompt="{row.column_2999} and {row.culumn_7}")
    assert str(caught.value).startswith(
        "prompt: the source has no column 'culumn_7'; did you mean 'column_7'"
    )
    assert str(caught.value).endswith("and 2,980 more).")


STEP = {"name": "late", "prompt": "{row.text}"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"prompt": "{row['größe']}"}, "prompt"),
        ({"messages_column": "größe"}, "messages"),
        ({"prompt": "{row.text}", "system_prompt": "{row['größe']}"}, "system_prompt"),
        ({"prompt": "{row.text}", "images": ["größe"]}, "images"),
        ({"prompt": "{row.text}", "id_column": "größe"}, "id_column"),
        ({"prompt": "{row.text}", "sampling_column": "größe"}, "sampling_column"),
        ({"steps": [{**STEP, "when": ["größe", "is not null"]}]}, "steps: late: when"),
        ({"steps": [{**STEP, "prompt": "{row['größe']}"}]}, "steps: late: prompt"),
    ],
)
def test_a_column_that_begins_late_in_jsonl_is_there(
    tmp_path: Path, fields: dict[str, Any], field: str
) -> None:
    """A dataset carries all keys of JSONL; of types, the first 1,000 rows tell."""
    early: list[Any] = [{"text": "größe"}] * 1200
    for late in ({"größe": "a"}, '{"größe": null}\n', '{"gr\\u00F6\\u00dFe": [1]}\n'):
        source = source_of(jsonl(tmp_path, [*early, late, {}]), **fields)
        assert (source.columns, source.rows) == (["text", "größe"], 1202)
    for other in ('{"größe": \n', {"text": {"größe": 1}}, {"x": ["größe"]}, {"Größe": 1}):
        with pytest.raises(PreflightError, match=f"^{field}: the source .*has no column 'größe'"):
            source_of(jsonl(tmp_path, [*early, other]), **fields)
    limited = jsonl(tmp_path, [*early, {"größe": 1}])
    with pytest.raises(PreflightError, match="has no column"):
        source_of(limited, **fields, limit=1200)


IMAGES = {"images": ["photo"], "prompt": "What is it?"}


@pytest.mark.parametrize(
    ("values", "kind"),
    [([1, 2], "int64"), ([True, False], "bool"), ([{"x": 1}], "struct<x: int64>"), ([[1.5]], "list<")],
)
def test_column_of_images_holds_no_numbers(tmp_path: Path, values: list[Any], kind: str) -> None:
    pq.write_table(pa.table({"photo": values}), tmp_path / "x.parquet")
    with pytest.raises(PreflightError, match="images: column 'photo' has the type ") as refused:
        source_of(tmp_path, **IMAGES)
    assert kind in str(refused.value)
    assert str(refused.value).endswith("; name the column that holds them.")


def test_column_without_images_that_may_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreflightError) as refused:
        sampled(jsonl(tmp_path, [{"photo": "/etc/passwd"}] * 3), **IMAGES)
    assert str(refused.value).startswith(
        "images: none of the first 3 rows makes a request; the first fails in step 'media': /etc/passwd is "
        "not below image_roots"
    )
    assert refused.value.public is not None
    assert "passwd" not in refused.value.public


def test_image_roots_are_by_default_the_source_folders(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path, [{"photo": str(tmp_path / "photos/1.png")}, {"photo": None}, {"photo": "/x/1.png"}]
    )
    requests, notices = sampled(path, **IMAGES)
    assert [len(one.images) for one in requests] == [1, 0]
    assert "1 of the first 3 rows will be dead letters" in notices[0].message
