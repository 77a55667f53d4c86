# SPDX-License-Identifier: Apache-2.0
"""Provider info against Airflow's own two schemas, and against the code it names."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import airflow
import jsonschema
import pytest

from airflow_provider_raybatch import __version__
from airflow_provider_raybatch.get_provider_info import get_provider_info


def violations(info: dict[str, Any], name: str) -> list[str]:
    """Return the violations of a schema of Airflow."""
    schema = json.loads((Path(airflow.__file__).parent / name).read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(info)]


def test_run_time_schema_accepts_it() -> None:
    info = get_provider_info()
    assert violations(info, "provider_info.schema.json") == []
    assert violations({**info, "name": None}, "provider_info.schema.json") != []


def test_the_strict_schema_accepts_it() -> None:
    # Airflow's own repository adds these keys to each provider.yaml; this schema refuses unknown ones.
    released = {"state": "ready", "source-date-epoch": 0, "versions": [__version__]}
    info = {**get_provider_info(), **released}
    assert violations(info, "provider.yaml.schema.json") == []
    assert violations({**info, "unknown": 1}, "provider.yaml.schema.json") != []


def test_info_names_the_distribution() -> None:
    assert get_provider_info()["package-name"] == "airflow-provider-raybatch"


def named_modules() -> Iterator[str]:
    info = get_provider_info()
    for kind in ("operators", "sensors", "hooks", "triggers"):
        for item in info[kind]:
            yield from item["python-modules"]


def named_objects() -> Iterator[str]:
    info = get_provider_info()
    yield from (item["hook-class-name"] for item in info["connection-types"])
    yield from info["extra-links"]
    yield from (item["class-name"] for item in info["task-decorators"])


@pytest.mark.parametrize("module", named_modules())
def test_modules_it_names_exist(module: str) -> None:
    assert importlib.import_module(module).__doc__


@pytest.mark.parametrize("path", named_objects())
def test_objects_it_names_exist(path: str) -> None:
    module, _, name = path.rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
