# SPDX-License-Identifier: Apache-2.0
"""Each failed row is a dead letter with step and reason, and all other rows are delivered."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.secrets import Secrets
from airflow_provider_raybatch.storage.folder import folder as open_folder
from tests.support.s3_server import S3Server

from .place import Place, function

LEADING = 1000


@dataclass(frozen=True)
class BadRow:
    """A row that fails among good ones. `row` is its line of JSONL or CSV."""

    step: str
    reason: str
    row: Any


JSONL_ROWS = {
    "null column": BadRow("template", "column 'text' is null", {"text": None}),
    "missing column": BadRow("template", "the row has no column 'text'", {"other": 1}),
    "broken line": BadRow("read", "the line is not JSON (", '{"text": "x'),
    "a key twice": BadRow("read", "has the key 'text' twice", '{"text": "x", "text": "y"}'),
    "line that is not an object": BadRow("read", "but a list instead of an object", '["x"]'),
    "half a surrogate pair": BadRow("read", "the line is not JSON (", '{"text": "\\ud800"}'),
    "too long a prompt": BadRow(
        "tokenize", "the prompt has 60 tokens and max_model_len is 50", {"text": "w " * 60}
    ),
    "refused by the engine": BadRow("engine", "fails requests that contain 'poison'", {"text": "poison"}),
    "junk in the sampling column": BadRow("template", "no JSON object", {"text": "x", "params": "{"}),
    "bad value in the sampling column": BadRow(
        "engine", "sampling.max_tokens: ", {"text": "x", "params": {"max_tokens": -1}}
    ),
    "a column that is an output column": BadRow(
        "template", "set output_prefix", {"text": "x", "response": "y"}
    ),
    "no json although asked for": BadRow("parse", "the response is not JSON (", {"text": "plain"}),
}
CSV_ROWS = {
    "a field too few": BadRow("read", "the row has 1 field, the header has 2", "only one"),
    "a field too many": BadRow("read", "the row has 3 fields, the header has 2", "1,2,3"),
    "not utf-8": BadRow("read", "the row is not UTF-8 text", b"1,\xff\xfe"),
    "a quote that is not doubled": BadRow("read", "the row is not CSV (", '"he said "hi" to me",1'),
    "a quote that the next line closes": BadRow("read", "the row is not CSV (", '"forgotten,1\n"x",2'),
    "a lone carriage return": BadRow("read", "the row is not CSV (", b"1,a\rb"),
}
CHAT_ROWS = {
    "no messages": BadRow("template", "column 'chat' has no message in it", {"chat": []}),
    "null messages": BadRow("template", "column 'chat' is null", {"chat": None}),
    "text that is not a chat": BadRow("template", "no JSON list of messages", {"chat": "hello"}),
    "message without a role": BadRow("template", "a message without a role", {"chat": [{"content": "x"}]}),
    "message without content": BadRow("template", "a message without content", {"chat": [{"role": "user"}]}),
}
FUNCTION_ROWS = {
    "function raises": BadRow("template", "RuntimeError: no way", {"text": "raise"}),
    "function returns nothing": BadRow("template", "returned is null", {"text": "none"}),
    "function returns a number": BadRow(
        "template", "returned is int, not a list of messages", {"text": "number"}
    ),
    "function exits": BadRow("template", "SystemExit: 3", {"text": "exit"}),
    "function interrupts": BadRow(
        "template", ":make raised KeyboardInterrupt: enough", {"text": "interrupt"}
    ),
}
FUNCTION = """
def make(row):
    if row["text"] == "raise":
        raise RuntimeError("no way")
    if row["text"] == "exit":
        raise SystemExit(3)
    if row["text"] == "interrupt":
        raise KeyboardInterrupt("enough")
    return {"none": None, "number": 5}.get(row["text"], row["text"])
"""


@dataclass(frozen=True)
class Delivered:
    """A finished job with bad rows after `leading` good ones, which are not in `rows`."""

    rows: list[dict[str, Any]]
    letters: dict[int, dict[str, Any]]
    manifest: BatchManifest
    leading: int
    bad: dict[str, int]


GOOD: dict[str, Callable[[int], Any]] = {
    "jsonl": lambda number: {"text": json.dumps({"n": number}), "params": None},
    "csv": lambda number: b'"good, %d",%d' % (number, number),
    "chat": lambda number: {"chat": [{"role": "user", "content": f"good {number}"}]},
    "function": lambda number: {"text": f"good {number}"},
}
BAD = {"jsonl": JSONL_ROWS, "csv": CSV_ROWS, "chat": CHAT_ROWS, "function": FUNCTION_ROWS}
FIELDS: dict[str, dict[str, Any]] = {
    "jsonl": {
        "sampling_column": "params",
        "response_format": "json_object",
        "engine_args": {"max_model_len": 50, "fail_pattern": "poison"},
    },
    "chat": {"messages_column": "chat"},
}


@pytest.fixture(scope="module")
def deliveries(
    tmp_path_factory: pytest.TempPathFactory, s3: S3Server, modules: Path, ray_here: Any
) -> dict[str, Delivered]:
    """Four jobs, each with a bad row after every good one."""
    out = {}
    for name, found in BAD.items():
        place = Place(tmp_path_factory.mktemp(name), s3, modules)
        # Preflight, which would refuse the output column, reads the first rows.
        leading = LEADING if name == "jsonl" else 0
        rows = [GOOD[name](number) for number in range(-leading, 0)]
        rows += [row for number, bad in enumerate(found.values()) for row in (GOOD[name](number), bad.row)]
        lines = (row if isinstance(row, bytes) else str(row).encode() for row in ["text,id", *rows])
        source = place.file("x.csv", b"\n".join(lines)) if name == "csv" else place.jsonl(*rows)
        fields = function(place, FUNCTION) if name == "function" else FIELDS.get(name, {})
        manifest = place.run(source=source, max_error_fraction=0.9, **fields)
        bad_ordinals = {bad: leading + 2 * number + 1 for number, bad in enumerate(found)}
        delivered = place.rows(manifest)
        assert all(row["response"] for row in delivered[:leading])
        out[name] = Delivered(
            delivered[leading:], place.dead_letters(manifest), manifest, leading, bad_ordinals
        )
    return out


def row_cases() -> list[Any]:
    return [
        pytest.param(group, name, bad, id=f"{group}-{name}".replace(" ", "-"))
        for group, found in BAD.items()
        for name, bad in found.items()
    ]


@pytest.mark.parametrize(("group", "name", "bad"), row_cases())
def test_a_bad_row_becomes_a_dead_letter(
    group: str, name: str, bad: BadRow, deliveries: dict[str, Delivered]
) -> None:
    delivered = deliveries[group]
    letter = delivered.letters[delivered.bad[name]]
    assert letter["step"] == bad.step
    assert bad.reason in letter["reason"]
    assert letter["request"] or bad.step == "template"
    assert "row" in letter


@pytest.mark.parametrize("group", BAD)
def test_all_other_rows_are_delivered(group: str, deliveries: dict[str, Delivered]) -> None:
    delivered = deliveries[group]
    count = len(delivered.bad)
    assert sorted(delivered.letters) == sorted(delivered.bad.values())
    assert len(delivered.rows) == count
    assert all(row["response"] for row in delivered.rows)
    counts = delivered.manifest.counts
    assert counts.input == delivered.leading + 2 * count
    assert (counts.ok, counts.error) == (delivered.leading + count, count)
    assert sum(counts.errors_by_step.values()) == count
    expected = {"jsonl": '{"n": %d}', "csv": "good, %d", "chat": "good %d", "function": "good %d"}[group]
    assert [row["response"] for row in delivered.rows] == [expected % number for number in range(count)]


@pytest.mark.parametrize("in_s3", [False, True])
def test_too_many_errors_end_the_job_and_publish_nothing(
    in_s3: bool, place: Place, ray_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last event counts the failed rows and says where their dead letters are."""
    aws = place.s3.credentials if in_s3 else None
    uri = f"s3://{place.s3.new_bucket()}/out" if in_s3 else str(place.out)
    monkeypatch.setattr(
        "airflow_provider_raybatch.job.control.private_package.PrivatePackage.secrets",
        lambda package: Secrets(aws=aws),
    )
    rows = [{"text": f"fine {number}"} for number in range(1000)] + [{"text": "poison"}] * 50
    failed = place.refused(
        source=place.jsonl(*rows),
        engine="echo",
        engine_args={"fail_pattern": "poison"},
        max_error_fraction=0.01,
        destination=uri,
    )
    assert failed.failure_class is FailureClass.TOO_MANY_ERRORS
    matched = re.fullmatch(
        r"max_error_fraction: \d+ rows failed(?: so far)?, more than the 10 of 1,050 rows that "
        r"max_error_fraction=0.01 allows; "
        r"[\d,]+ of 1,050 rows are kept, and a clear of the task goes on from there; "
        r"the dead letters of (\d+) failed rows are in (\S+): (\d+) in step 'engine' \(row (\d+): .*\)\.",
        failed.message,
    )
    assert matched is not None, failed.message
    folder = open_folder(matched[2], aws)
    letters = [json.loads(line) for entry in folder.list() for line in folder.read(entry.path).splitlines()]
    assert len(letters) == int(matched[1]) == int(matched[3]) > 10
    assert {letter["row"]["text"] for letter in letters} == {"poison"}
    assert int(matched[4]) in {letter["ordinal"] for letter in letters}
    kinds = {entry.path.split("/")[0] for entry in open_folder(uri, aws).list()}
    assert kinds == {"_raybatch", "dead_letter"}
