# SPDX-License-Identifier: Apache-2.0
"""Airflow's REST API, which masks by a key's name, shows nothing that is secret in a connection's extra."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.api_fastapi.core_api.datamodels.connections import ConnectionBody, ConnectionResponse
from airflow.api_fastapi.core_api.services.public.connections import update_orm_from_pydantic
from airflow.models.connection import Connection

from airflow_provider_raybatch.get_provider_info import get_provider_info
from airflow_provider_raybatch.hooks.extras import Extras, read_extras

(KIND,) = get_provider_info()["connection-types"]
SECRET = {name for name, field in KIND["conn-fields"].items() if field["schema"].get("format") == "password"}
OBJECTS: dict[str, Any] = {
    "secret_headers": {"X-Api-Key": "h-secret", "X-Tenant": "t-secret"},
    "secret_cookies": {"session": "c-secret"},
}
EXTRA: dict[str, Any] = {
    **OBJECTS,
    "secret_seal_key": "s-secret",
    "namespace": "team-a",
    "path_prefix": "/ray",
}
FORMS = pytest.mark.parametrize(
    "extra",
    [EXTRA, {**EXTRA, **{name: json.dumps(value) for name, value in OBJECTS.items()}}],
    ids=["objects", "texts"],
)


def shown(connection: Connection) -> str:
    answer = ConnectionResponse.model_validate(connection, from_attributes=True)
    return answer.model_dump_json(by_alias=True)


def test_the_form_hides_what_is_secret() -> None:
    assert {name for name, field in Extras.model_fields.items() if not field.repr} == SECRET
    assert EXTRA.keys() >= SECRET


@FORMS
def test_airflows_api_shows_no_secret(extra: dict[str, Any]) -> None:
    answer = shown(Connection(conn_id="my_ray", conn_type="ray", extra=json.dumps(extra)))
    assert "-secret" not in answer
    assert all(text in answer for text in ("team-a", "/ray", "***"))


@FORMS
def test_what_the_form_sends_back_masked_stays_as_it_was(extra: dict[str, Any]) -> None:
    connection = Connection(conn_id="my_ray", conn_type="ray", extra=json.dumps(extra))
    masked = json.loads(json.loads(shown(connection))["extra"])
    body = ConnectionBody(
        connection_id="my_ray", conn_type="ray", extra=json.dumps({**masked, "namespace": "team-b"})
    )
    update_orm_from_pydantic(connection, body)
    assert read_extras("my_ray", connection.extra) == read_extras(
        "my_ray", json.dumps({**EXTRA, "namespace": "team-b"})
    )
