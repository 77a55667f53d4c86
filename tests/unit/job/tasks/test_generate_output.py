# SPDX-License-Identifier: Apache-2.0
"""The files of text generation stay byte-equal to those from before the task seam."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest, Summary
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.whole_job import attempt, without_cluster

EXPECTED = Path(__file__).with_name("generate_output.json")
_VOLATILE = (
    (re.compile(r"~[0-9a-f]{8}"), "~*"),
    (re.compile(r"(parts/[0-9a-f]{16}/[0-9a-f]{16})-[0-9a-f]{16}"), r"\1-*"),
    (re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}"), "*"),
    (re.compile(r"/replica-\d+-[0-9a-f]{8}-"), "/*-"),
    (re.compile(r"\.\d+(\.[\d_-]+\.\d+\.\d+\.parquet)"), r"\1"),
    (re.compile(r"/[0-9a-f]{10,16}(\d{4,6}\.parquet)"), r"/*\1"),
)
_KINDS_OF_MANIFEST = {"format", "ordered", "columns", "counts", "tokens", "finish_reasons", "digests"}

ROWS = [
    {"id": "a", "text": "one two three", "n": 1},
    {"id": "b", "text": "one two three", "n": 2.5},
    {"id": "c", "text": "please break", "n": None},
    {"id": "d", "text": "four five six seven eight", "n": 3},
    {"id": "e", "text": None, "n": 4},
    {"id": "f", "text": "ünïcödé 🙂", "n": 5},
    {"id": "g", "text": '{"a": 1}', "n": 6},
]
ASKS = {"prompt": "{row.text}", "system_prompt": "Answer {row.id}."}
LIMITS = {"max_error_fraction": 1.0}
PLAIN = {
    "prompt": "{row.text}",
    "engine": "echo",
    "batch_size": 3,
    "engine_args": {"fail_pattern": "break"},
}
JOBS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "completions": {
        **ASKS,
        "sampling": {"n": 2, "temperature": 0.7, "seed": 3},
        "destination_format": "jsonl",
        "output_prefix": "llm_",
    },
    "json": {"prompt_column": "text", "response_format": "json_object"},
    "truncated": {**ASKS, "sampling": {"max_tokens": 4}, "on_truncated": "error"},
    "again": PLAIN,
}


def written(tmp_path: Path) -> dict[str, Any]:
    """Return all files and manifests of some jobs, and of their response store, in a comparable form."""
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found: dict[str, Any] = {}
    for number, (name, fields) in enumerate(JOBS.items()):
        place = LocalFolder(str(tmp_path / name))
        summary = attempt(
            place,
            number,
            str(source),
            **{
                "source": [str(source)],
                "id_column": "id",
                **LIMITS,
                "reuse": str(tmp_path / "store"),
                "destination": place.uri,
                "rows_per_part": 5,
                **fields,
            },
        )
        found[name] = {"files": _files(place), "manifest": _manifest(place, summary)}
    found["store"] = _files(LocalFolder(str(tmp_path / "store")))
    return found


def _manifest(place: LocalFolder, summary: Summary) -> dict[str, Any]:
    manifest = parse(BatchManifest, place.read(summary.manifest_uri.removeprefix(f"{place.uri}/")))
    content: dict[str, Any] = manifest.model_dump(mode="json", include=_KINDS_OF_MANIFEST)
    return content


def _files(folder: LocalFolder) -> dict[str, Any]:
    """Return digests of content and bytes, by path without its random parts."""
    found = {}
    for entry in folder.list():
        path = entry.path
        for volatile, fixed in _VOLATILE:
            path = volatile.sub(fixed, path)
        content = folder.read(entry.path)
        if path.endswith(".parquet") and not path.startswith("v1/index/"):  # which has times and random names
            found[path] = {"content": _of_table(pq.read_table(io.BytesIO(content)))}
            if not path.startswith("v1/"):
                found[path]["bytes"] = hashlib.sha256(content).hexdigest()
        elif path.startswith(("data/", "dead_letter/")):
            found[path] = {"bytes": hashlib.sha256(content).hexdigest()}
    return found


def _drop_bytes(found: dict[str, Any]) -> None:
    for files in (found["store"], *(found[name]["files"] for name in JOBS)):
        for path in files:
            if path.endswith(".parquet"):
                files[path].pop("bytes", None)


def _of_table(table: pa.Table) -> str:
    metadata = sorted((table.schema.metadata or {}).items())
    contents = [str(table.schema.remove_metadata()), str(metadata), repr(table.to_pylist())]
    return hashlib.sha256("\n".join(contents).encode()).hexdigest()


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    with monkeypatch.context() as patch:
        without_cluster(patch)
        return written(tmp_path)


def test_generate_writes_what_it_wrote_before_there_were_tasks(found: dict[str, Any]) -> None:
    """The expected digests are from the commit before the task seam; a change of them changes users' data.

    Parts are the exception: they are fewer and larger since replicas write finished rows at once, and their
    footers count filled tokens, as the manifest does, and say where the bytes lie. Later, all Parquet files
    got checksums, which changed their bytes but not what they hold.
    """
    expected = json.loads(EXPECTED.read_text())
    if expected.pop("pyarrow") != pa.__version__:  # which each Parquet file has in its footer
        _drop_bytes(expected)
        _drop_bytes(found)
    assert found == expected
