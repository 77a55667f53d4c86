# SPDX-License-Identifier: Apache-2.0
"""Writes what the docs say about the contract: ``spec.md``, ``manifest.md`` and ``schemas/*.json``.

Run ``python docs/generate.py`` after a change in ``contract/``; a test tells when it was forgotten. Texts
come from the models' docstrings: their summary, and each ``:param`` as the description of a field.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from airflow_provider_raybatch.contract import prompt, spec  # noqa: E402 - the line above finds it
from airflow_provider_raybatch.contract.base import ContractModel  # noqa: E402
from airflow_provider_raybatch.contract.manifest import BatchManifest  # noqa: E402

_NOTE = "<!-- made by docs/generate.py from the docstrings in contract/; do not edit -->\n"
_PARAM = re.compile(r"^:param (\w+):", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|data):`~?(?:[\w.]*\.)?(\w+)`")

SPEC_HEAD = """# The job's spec

`RayBatchInferenceOperator` turns its arguments into one JSON document, the spec, which travels with the job;
nothing else crosses from Airflow to the cluster. [operators.md](operators.md) has the arguments; this page
has the document. Unknown fields are refused, and every refusal is one sentence with field, value and remedy.
JSON schema: [batch_inference_spec.json](schemas/batch_inference_spec.json).

Two hashes are taken of it. The *fingerprint* covers everything but `submission` and `limits`; when a retry
finds a job with another fingerprint, `on_stale_state` decides. The *response digest* covers what decides a
response: prompt, model, sampling, response format, the engine and those of its arguments that change numbers
(not sizes). Rows that an earlier submission of the same task finished under the same digest and the same
input are not generated again.
"""

MANIFEST_HEAD = """# The manifest

One JSON document describes one committed dataset. It is written after the data and never changed.
JSON schema: [batch_manifest.json](schemas/batch_manifest.json).

| where | what |
| --- | --- |
| `<destination>/manifests/<commit>.json` | the manifest; `manifest_uri` in XCom and in the asset event |
| `<destination>/manifest.json` | a copy of the newest one under a fixed name, for people and simple tools |

The dataset has all columns of the input, then the output columns, each with `output_prefix` before its name:

| column | type | meaning |
| --- | --- | --- |
| `response` | string | text of the first completion; `response_column` gives it another name |
| `finish_reason` | string | of the first completion: `stop`, `length`, or another word of the engine's |
| `input_tokens` | int64 | tokens of the prompt, special tokens included |
| `cached_tokens` | int64 | of these, taken from the prefix cache |
| `output_tokens` | int64 | generated tokens, over all completions |
| `completions` | list of struct | all of them: `text`, `finish_reason`, `output_tokens`; if asked for |
| `reused_from` | string | the run that paid for the response, null where this one did; with `reuse` |

The columns that `postprocess` returns come last, under the names that it gives them.

`completions` is there with `n` > 1, and with `sampling_column` or `prompt_function`, by which a row may ask
for several.

A row that failed is not in the dataset. It is a line in `dead_letter_uri`, JSON in files `part-*.jsonl`:

| field | meaning |
| --- | --- |
| `ordinal` | position of the row in the input, from 0 |
| `step` | `read`, `template`, `tokenize`, `engine`, `parse` (no JSON), `length` (cut off) or `postprocess` |
| `reason` | one sentence |
| `request` | what was asked, as JSON text; the raw text of a row that could not be read |
| `response` | only with step `postprocess`, whose `request` is empty: the response, which is kept |
| `row` | the input columns |

`airflow_provider_raybatch.dataset.open_dataset` opens a dataset, and checks files and row counts against the
manifest. It takes what the task returned, the `extra` of the asset event, the manifest's uri, or the
destination, whose newest dataset is meant then:

```python
dataset = open_dataset(ti.xcom_pull("label_companies"), aws_conn_id="aws_default")
dataset.files, dataset.to_arrow(), dataset.duckdb(), dataset.manifest.counts
```
"""


def pages() -> dict[Path, str]:
    """Every generated file with its content."""
    return {
        DOCS / "spec.md": _page(SPEC_HEAD, spec.BatchInferenceSpec),
        DOCS / "manifest.md": _page(MANIFEST_HEAD, BatchManifest),
        DOCS / "schemas/batch_inference_spec.json": _schema_file(spec.BatchInferenceSpec),
        DOCS / "schemas/batch_manifest.json": _schema_file(BatchManifest),
    }


def _schema_file(model: type[ContractModel]) -> str:
    return json.dumps(_schema(model), indent=2, ensure_ascii=False) + "\n"


def _schema(model: type[ContractModel]) -> dict[str, Any]:
    """Pydantic's schema, with the docstrings' texts where they belong."""
    schema = model.model_json_schema(by_alias=True)
    known = {kind.__name__: kind for kind in _models()}
    _describe(schema, known[model.__name__])
    for name, part in schema.get("$defs", {}).items():
        _describe(part, known[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _models() -> Iterator[type[ContractModel]]:
    for module in (spec, prompt, sys.modules[BatchManifest.__module__]):
        for _, found in inspect.getmembers(module, inspect.isclass):
            if issubclass(found, ContractModel):
                yield found


def _describe(schema: dict[str, Any], model: type[ContractModel]) -> None:
    summary, parameters = _texts(model)
    schema["description"] = summary
    for name, field in model.model_fields.items():
        shown = schema["properties"][field.alias or name]
        shown.pop("title", None)
        if text := parameters.get(name):
            shown["description"] = text


def _texts(model: type[ContractModel]) -> tuple[str, dict[str, str]]:
    """Summary and parameters of a docstring, each on one line."""
    summary, *pairs = _PARAM.split(inspect.getdoc(model) or "")
    return _one_line(summary), {
        name: _one_line(text) for name, text in zip(pairs[::2], pairs[1::2], strict=True)
    }


def _one_line(text: str) -> str:
    plain = _ROLE.sub(r"`\1`", text).replace("``", "`").replace("`None`", "`null`")
    return " ".join(plain.split())


def _page(head: str, model: type[ContractModel]) -> str:
    schema = _schema(model)
    parts = [_NOTE, head, f"## {model.__name__}\n", *_section(schema)]
    for name, part in schema.get("$defs", {}).items():
        parts += [f"## {name}\n", *_section(part)]
    return "\n".join(parts)


def _section(schema: dict[str, Any]) -> Iterator[str]:
    yield schema["description"] + "\n"
    rows: list[str] = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    needed = schema.get("required", ())
    for name, field in schema["properties"].items():
        # Pydantic doesn't tell a default that a function makes; here all of them are empty.
        absent: object = [] if field.get("type") == "array" else {}
        default = "needed" if name in needed else f"`{json.dumps(field.get('default', absent))}`"
        meaning = field.get("description", "").replace("|", "\\|")
        rows.append(f"| `{name}` | {_type(field)} | {default} | {meaning} |")
    yield "\n".join(rows) + "\n"


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        return " or ".join(_type(option) for option in options)
    match field.get("type"):
        case "array":
            return f"list of {_type(field['items'])}"
        case "object":
            inner = field.get("additionalProperties")
            return f"object of {_type(inner)}" if isinstance(inner, dict) else "object"
        case kind:
            return str(kind or "any") + _bounds(field)


def _bounds(field: dict[str, Any]) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{sign} {field[name]:g}" for name, sign in signs.items() if name in field]
    return f" ({', '.join(found)})" if found else ""


def main() -> None:
    """Write the pages."""
    for path, content in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
