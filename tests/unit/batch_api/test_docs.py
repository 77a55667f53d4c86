# SPDX-License-Identifier: Apache-2.0
"""Pages of the Batch API have its settings, its bounds and its routes; the plugin knows its operator."""

from __future__ import annotations

import re

import pytest

from airflow_provider_raybatch.batch_api.dags import serve_batches, sweep
from airflow_provider_raybatch.batch_api.dags.operators import LATE, ServedBatchOperator
from airflow_provider_raybatch.batch_api.dags.served_dag import RETRIES
from airflow_provider_raybatch.batch_api.store.settings import ServedModel
from airflow_provider_raybatch.get_provider_info import get_provider_info
from airflow_provider_raybatch.plugins.raybatch import RayBatchPlugin
from tests.support.documents import DOCS, blocks, commands

OPERATING = (DOCS / "batch_api/operating.md").read_text(encoding="utf-8")
CALLS = [words for block in blocks("bash") for words in commands(block) if words[0] == "curl"]


def test_settings_and_their_defaults() -> None:
    options = get_provider_info()["config"]["raybatch"]["options"]
    listed = dict(re.findall(r"^\| `(batch_api_\w+)` \| `?(\w*)`? ?\|", OPERATING, re.MULTILINE))
    known = {name: option["default"] for name, option in options.items() if name.startswith("batch_api_")}
    assert listed == known


def test_bounds_of_served_batches() -> None:
    assert f"| `retries` | {RETRIES} |" in OPERATING
    flat = " ".join(OPERATING.split())
    assert f"retried, {RETRIES} times by default" in flat
    assert f"go on after the window, for {LATE / sweep.DAY:.0f} day".replace("1 day", "a day") in flat
    assert f"| idempotency keys | {sweep.CREATES_KEPT / sweep.DAY:.0f} days after" in OPERATING
    assert sweep.STRAYS_KEPT == sweep.DAY
    assert "has left | after a day |" in OPERATING
    assert f"the first run {sweep.SLACK / 60:.0f} minutes later" in flat
    assert sweep.BATCHES_KEPT == 365 * sweep.DAY


def test_fields_of_a_served_model() -> None:
    table = OPERATING.partition("| field |")[2].partition("\n\n")[0]
    listed = re.findall(r"`(\w+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:]))
    assert set(listed) == set(ServedModel.model_fields) - {"name", "created", "arguments"}


def test_the_example_of_models_can_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", OPERATING, re.DOTALL)
    monkeypatch.setenv("AIRFLOW__RAYBATCH__BATCH_API_MODELS", example)
    dags = serve_batches()
    assert [dag.dag_id for dag in dags] == ["batches_llama", "team_search_vectors", "batches_sweep"]


@pytest.mark.parametrize("words", CALLS, ids=lambda words: words[-1])
def test_a_call_in_the_docs_has_a_route(words: list[str]) -> None:
    """It asks Airflow for a token, or the Batch API for what that has."""
    from airflow_provider_raybatch.batch_api.server import batches, files

    (url,) = [word for word in words if word.startswith("http")]
    path = url.removeprefix("http://localhost:8080")
    assert path != url
    wanted = re.sub(r"\$[A-Z]+", "name", path.removeprefix("/raybatch/v1"))
    known = [route.path for module in (batches, files) for route in module.router.routes]
    patterns = [re.sub(r"\{[\w:]+\}", "name", one) for one in ["/auth/token", *known]]
    assert any(re.fullmatch(one, wanted) for one in patterns), url


def test_links_belong_to_the_operator() -> None:
    """The API server compares names alone, so that it need not import the operator."""
    named = (ServedBatchOperator.__module__, ServedBatchOperator.__name__)
    for link in RayBatchPlugin.operator_extra_links:
        assert named in {(one.__module__, one.__name__) for one in link.operators}
