# SPDX-License-Identifier: Apache-2.0
"""Who calls, by tokens of a real auth manager of Airflow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request
from sqlalchemy.exc import NoResultFound

from airflow_provider_raybatch.batch_api.server import access as module
from airflow_provider_raybatch.batch_api.server.access import Caller, authenticated, may_use
from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.store.settings import ServedModel
from tests.support.airflow_server import Server
from tests.support.airflow_server import token as token_of
from tests.support.batch_server import BatchServer


def request(*authorizations: str, **headers: str) -> Request:
    given = [("authorization", one) for one in authorizations] + list(headers.items())
    raw = [(name.encode(), value.encode("latin-1")) for name, value in given]
    return Request({"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": raw})


@pytest.mark.parametrize("scheme", ["Bearer ", "bearer ", "BEARER   "])
async def test_the_user_of_a_token(server: Server, scheme: str) -> None:
    token = token_of("viewer")
    caller = await authenticated(request(scheme + token))
    assert caller == Caller("viewer", "viewer", frozenset({"viewer"}), token)
    assert token not in repr(caller)


@pytest.mark.parametrize(
    "given",
    [
        (), ("",), ("Bearer",), ("Bearer ",), ("Basic YTpi",), ("Bearer nonsense",), ("Bearer a b",),
        ("Bearer é",), ("Bearer " + "x" * 20_000,), ("Bearer a", "Bearer b"),
    ],
)  # fmt: skip
async def test_other_logins_are_refused(server: Server, given: tuple[str, ...]) -> None:
    with pytest.raises(OpenAiError, match=r"POST /auth/token") as refusal:
        await authenticated(request(*given))
    assert refusal.value.status == 401
    assert refusal.value.body["error"]["code"] == "invalid_api_key"
    assert refusal.value.headers == {"WWW-Authenticate": "Bearer"}


async def test_two_good_tokens_are_refused(server: Server) -> None:
    """Otherwise a proxy and this server could take different users for the caller."""
    with pytest.raises(OpenAiError):
        await authenticated(request(f"Bearer {token_of('viewer')}", f"Bearer {token_of('admin')}"))


def test_a_cookie_logs_nobody_in(on_disk: BatchServer) -> None:
    """A page of another site could make a browser send it."""
    cookie = {"Cookie": f"_token={token_of('admin')}"}
    assert on_disk.get("/files", None, headers=cookie).status_code == 401
    assert on_disk.ask("POST", "/files", None, headers=cookie).status_code == 401
    assert on_disk.get("/files", "viewer", headers=cookie).status_code == 200


def test_a_token_that_ended_or_was_revoked(on_disk: BatchServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow is asked about a token every two seconds, since that keeps the event loop from all else."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def status(token: str) -> int:
        answer = on_disk.get("/files", None, headers={"Authorization": f"Bearer {token}"})
        return int(answer.status_code)

    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    user = SimpleAuthManagerUser(username="viewer", role="viewer", teams=[])
    over = get_auth_manager().generate_jwt(user, expiration_time_in_seconds=-60)
    assert status(over) == 401
    token = token_of("viewer")
    assert status(token) == 200
    get_auth_manager().revoke_token(token)
    now += 1.9
    assert status(token) == 200
    now += 0.1
    assert status(token) == 401


def test_a_token_of_a_task_is_refused(on_disk: BatchServer) -> None:
    """Tasks have tokens of the same Airflow for another audience."""
    from airflow.api_fastapi.auth.tokens import JWTGenerator

    signer = JWTGenerator(secret_key="x" * 64, audience="urn:airflow.apache.org:task", valid_for=600)
    token = signer.generate({"sub": "viewer", "role": "viewer"})
    assert on_disk.get("/files", None, headers={"Authorization": f"Bearer {token}"}).status_code == 401


class Manager:
    """An auth manager with users of other kinds."""

    def __init__(self, user: Any) -> None:
        self._user = user

    async def get_user_from_token(self, token: str) -> Any:
        if isinstance(self._user, Exception):
            raise self._user
        return self._user


def user(**fields: Any) -> Any:
    return SimpleNamespace(get_id=lambda: 7, get_name=lambda: "ann", **fields)


@pytest.mark.parametrize(
    ("found", "roles"),
    [
        (user(), set()),
        (user(roles=[SimpleNamespace(name="Op"), SimpleNamespace(name="Team A")]), {"Op", "Team A"}),
        (user(role="admin", roles=["Op"], is_active=True), {"admin", "Op"}),
        (user(role=None, roles=None), set()),
    ],
)
async def test_roles_as_far_as_they_are_told(
    monkeypatch: pytest.MonkeyPatch, found: Any, roles: set[str]
) -> None:
    monkeypatch.setattr(module, "get_auth_manager", lambda: Manager(found))
    caller = await authenticated(request("Bearer t"))
    assert (caller.id, caller.name, caller.roles) == ("7", "ann", frozenset(roles))


@pytest.mark.parametrize("found", [user(is_active=False), NoResultFound()])
async def test_a_user_who_was_deleted_or_is_not_active(monkeypatch: pytest.MonkeyPatch, found: Any) -> None:
    monkeypatch.setattr(module, "get_auth_manager", lambda: Manager(found))
    with pytest.raises(OpenAiError) as refusal:
        await authenticated(request("Bearer t"))
    assert refusal.value.status == 401


@pytest.mark.parametrize(("user", "allowed"), [("7", True), ("ann", True), ("bob", False)])
def test_a_user_is_named_by_id_or_name(user: str, allowed: bool) -> None:
    model = ServedModel(name="small", dag_id="d", endpoints=(), users=(user,), arguments={})
    assert may_use(Caller("7", "ann", frozenset({"Op"}), "t"), model) is allowed
