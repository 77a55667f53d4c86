# SPDX-License-Identifier: Apache-2.0
"""OpenAI batch files: lines to ask, and the files of answers as a client reads them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.arguments.openai_batch import CHAT, COMPLETIONS, EMBEDDINGS
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.whole_job import attempt

IN_AND_OUT = {"format": "openai_batch", "destination_format": "openai_batch", "prompt": None}
"""Arguments of a job that reads batch lines and answers them."""


def line(custom_id: str, body: Any, url: str = CHAT, **fields: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **fields}


def chat(text: Any = "hello there", **fields: Any) -> dict[str, Any]:
    """Return the body of a chat."""
    return {"model": "echo", "messages": [{"role": "user", "content": text}], **fields}


def completion(prompt: Any = "one two three", **fields: Any) -> dict[str, Any]:
    """Return the body of a raw prompt."""
    return {"model": "echo", "prompt": prompt, **fields}


def ask(path: Path, lines: Iterable[Any]) -> str:
    """Write a batch file of objects, texts or bytes; return its path."""
    written = (one if isinstance(one, (str, bytes)) else json.dumps(one) for one in lines)
    path.write_bytes(b"".join((one.encode() if isinstance(one, str) else one) + b"\n" for one in written))
    return str(path)


def both_files(folder: Folder) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the lines of the output and of the error files of the newest dataset.

    Each line of the input must have one of them.
    """
    manifest = parse(BatchManifest, folder.read("manifest.json"))
    files = [f"{manifest.uri}/{file.path}" for file in manifest.files]
    output = _lines(folder, files)
    errors: list[dict[str, Any]] = []
    if manifest.errors_uri is not None:
        place = manifest.errors_uri.removeprefix(f"{folder.uri}/")
        errors = _lines(folder, [f"{folder.uri}/{entry.path}" for entry in folder.list(place)])
    assert (len(output), len(errors)) == (manifest.counts.ok, manifest.counts.error)
    assert len(output) + len(errors) == manifest.counts.input
    names = [one["id"] for one in output + errors]
    assert len(set(names)) == len(names)
    for one in output + errors:
        assert list(one) == ["id", "custom_id", "response", "error"]
    return output, errors


def answered(folder: Folder) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the same of a dataset in which the model or a check has answered each line."""
    output, errors = both_files(folder)
    for one in output + errors:
        assert list(one["response"]) == ["status_code", "request_id", "body"]
        assert one["error"] is None
    assert {one["response"]["status_code"] for one in output} <= {200}
    assert {one["response"]["status_code"] for one in errors} <= {400, 500}
    return output, errors


def _lines(folder: Folder, files: Sequence[str]) -> list[dict[str, Any]]:
    contents = [folder.read(file.removeprefix(f"{folder.uri}/")).decode() for file in files]
    return [json.loads(text) for content in contents for text in content.split("\n")[:-1]]


def run(folder: Path, lines: Sequence[Any], number: int = 0, **fields: Any) -> LocalFolder:
    """Run a job over `lines` below `folder`, and return its destination; each line must be answered."""
    out = LocalFolder(str(folder / "out"))
    source = ask(folder / "in.jsonl", lines)
    summary = attempt(out, number, source, **{**IN_AND_OUT, **fields})
    assert summary.rows + summary.errors == len(lines)
    return out


def by_id(lines: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the responses of lines by their ids."""
    return {one["custom_id"]: one["response"] for one in lines}


__all__ = [
    "CHAT",
    "COMPLETIONS",
    "EMBEDDINGS",
    "IN_AND_OUT",
    "answered",
    "ask",
    "both_files",
    "by_id",
    "chat",
    "completion",
    "line",
    "run",
]
