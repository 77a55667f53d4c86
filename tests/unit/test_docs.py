# SPDX-License-Identifier: Apache-2.0
"""The documentation says what the code has: pages are current, names complete, links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.get_provider_info import get_provider_info
from airflow_provider_raybatch.operators.base import RayOperator
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.glob("*.md")])
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")


def generated() -> dict[Path, str]:
    spec = importlib.util.spec_from_file_location("generate_docs", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: dict[Path, str] = module.pages()
    return pages


@pytest.mark.parametrize("path", sorted(generated()), ids=lambda path: path.name)
def test_generated_files_are_current(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generated()[path], "run python docs/generate.py"


def test_the_schema_accepts_a_spec_and_refuses_a_misspelt_one() -> None:
    schema = json.loads((DOCS / "schemas/batch_inference_spec.json").read_text(encoding="utf-8"))
    spec = BatchInferenceSpec.model_validate({
        "source": {"paths": ["s3://lake/in/"]},
        "prompt": {"kind": "template", "template": "{row.a}"},
        "model": {"name": "m"},
        "destination": {"uri": "s3://lake/out"},
    })
    document = spec.model_dump(mode="json")
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError, match="sorce"):
        jsonschema.validate({**document, "sorce": {}}, schema)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_inside_the_repository_lead_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


def own_parameters(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name not in {"self", "kwargs"}]


def documented(page: Path) -> set[str]:
    """Names in the first column of the page's tables."""
    lines = page.read_text(encoding="utf-8").splitlines()
    return {
        name
        for line in lines
        if line.startswith("| `")
        for name in re.findall(r"`(\w+)`", line.split("|")[1])
    }


@pytest.mark.parametrize("kind", [RayOperator, RayBatchInferenceOperator, RayJobOperator])
def test_every_argument_of_an_operator_is_documented(kind: type) -> None:
    assert set(own_parameters(kind)) <= documented(DOCS / "operators.md")


@pytest.mark.parametrize("kind", [RayBatchInferenceOperator, RayJobOperator])
def test_template_fields_are_marked(kind: type[RayOperator]) -> None:
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    marked = {
        name
        for row in re.findall(r"^\| (`.+?) \*t\* \|", text, re.MULTILINE)
        for name in re.findall(r"\w+", row)
    }
    assert set(kind.template_fields) <= marked


def test_no_argument_is_marked_that_is_no_template_field() -> None:
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    marked = set(re.findall(r"^\| `(\w+)` \*t\* \|", text, re.MULTILINE))
    assert marked <= {*RayBatchInferenceOperator.template_fields, *RayJobOperator.template_fields}


def test_every_failure_class_is_documented_with_its_consequence() -> None:
    text = (DOCS / "operators.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| .* \| (yes|no) \|$", text, re.MULTILINE))
    assert told == {one.value: "yes" if one.retryable else "no" for one in FailureClass}


def test_every_field_of_the_connection_is_documented() -> None:
    (kind,) = get_provider_info()["connection-types"]
    fields = set(kind["conn-fields"])
    assert fields <= documented(DOCS / "connection.md")
    labels = kind["ui-field-behaviour"]["relabeling"].values()
    text = (DOCS / "connection.md").read_text(encoding="utf-8")
    assert [label for label in labels if f"| {label} |" not in text] == []


def test_the_readmes_code_uses_arguments_that_exist() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    calls = [node for node in ast.walk(ast.parse(block)) if isinstance(node, ast.Call)]
    (call,) = [node for node in calls if getattr(node.func, "id", "") == "RayBatchInferenceOperator"]
    used = {keyword.arg for keyword in call.keywords}
    known = {*own_parameters(RayOperator), *own_parameters(RayBatchInferenceOperator)}
    assert used - known == {"task_id", "outlets", "retries"}


def test_the_readmes_code_runs_twice_a_day_and_without_a_logical_date() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    destinations = set()
    for minute in (0, 1):
        found: dict[str, Any] = {}
        exec(block.replace("\nlabel_companies()", "\nlabelled = label_companies()"), found)
        label = found["labelled"].get_task("label")
        run_after = datetime(2026, 1, 1, 12, minute, tzinfo=UTC)
        label.render_template_fields({"dag_run": SimpleNamespace(run_after=run_after), "params": {}})
        assert label.source == "s3://lake/customers/2026-01-01/"
        destinations.add(label.destination)
    assert destinations == {f"s3://lake/industries/20260101T120{minute}00/" for minute in (0, 1)}


def test_modules_that_the_docs_name_exist() -> None:
    named = {
        name for page in PAGES for name in re.findall(r"`(\w+/[\w/]+\.py)", page.read_text(encoding="utf-8"))
    }
    missing = [name for name in named if not (ROOT / "airflow_provider_raybatch" / name).is_file()]
    assert "job/output/commit.py" in named
    assert missing == []
