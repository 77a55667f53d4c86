# SPDX-License-Identifier: Apache-2.0
"""Who calls, and which models the caller may use: Airflow's auth manager says so from the bearer token.

Cookies are ignored on purpose: a browser sends them along with requests that another site made it send.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag
from fastapi import HTTPException, Request
from jwt import InvalidTokenError
from sqlalchemy.exc import NoResultFound

from airflow_provider_raybatch.batch_api.server.objects import OpenAiError
from airflow_provider_raybatch.batch_api.store.settings import ServedModel, served_models
from airflow_provider_raybatch.batch_api.store.store import KnownDocuments
from airflow_provider_raybatch.contract.text import hex_digest

_BEARER = re.compile(r"bearer +([!-~]{1,16384})", re.IGNORECASE)
FRESH = 2.0
"""Seconds for which an answer from Airflow is reused: it takes time of the event loop."""
_USERS = KnownDocuments(1_000)
"""Users with the end of that time, by the digests of their tokens."""
_REMEDY = "get one from Airflow by POST /auth/token and send it as Authorization: Bearer <token>"


@dataclass(frozen=True)
class Caller:
    """A user who is logged in.

    :param id: as Airflow's auth manager has it; owns files and batches.
    :param roles: as far as the auth manager tells them; with others than Airflow's own and FAB's, none.
    :param token: of this request, for calls of Airflow's API in the caller's name.
    :param user: the auth manager's own object.
    """

    id: str
    name: str
    roles: frozenset[str]
    token: str = field(repr=False)
    user: Any = field(default=None, repr=False, compare=False)


def may_use(caller: Caller, model: ServedModel) -> bool:
    """Whether the configuration lets a user name a model, by id or by the name that Airflow shows."""
    return model.is_for(caller.id, caller.roles) or model.is_for(caller.name, caller.roles)


def may_run(user: Any, dag_id: str) -> bool:
    """Whether Airflow lets a user start runs of a DAG. Called in threads, since it may ask the database.

    :param user: the auth manager's own object.
    """
    permission = requires_access_dag("POST", DagAccessEntity.RUN, param_dag_id=dag_id)
    try:
        permission(cast(Request, None), user)  # it takes the DAG from the request only without the id
    except HTTPException:
        return False
    return True


def usable_models(caller: Caller) -> Iterator[ServedModel]:
    """The models whose batches a user may run, by the configuration and by Airflow. Called in threads."""
    models = served_models().values()
    return (one for one in models if may_use(caller, one) and may_run(caller.user, one.dag_id))


async def user_of(token: str) -> Any:
    """The auth manager's own object of a token's user, at most two seconds old.

    :raises InvalidTokenError: the token is not valid, or it has ended.
    """
    key, now = hex_digest(token), time.monotonic()
    user, ends = _USERS.get(key) or (None, now)
    if ends <= now:
        user = await get_auth_manager().get_user_from_token(token)
        _USERS.keep(key, (user, now + FRESH))
    return user


async def authenticated(request: Request) -> Caller:
    """The user of the request's token.

    :raises OpenAiError: 401, there is no token, or it has ended, was revoked, or is not Airflow's.
    """
    given = request.headers.getlist("authorization")
    found = _BEARER.fullmatch(given[0].strip()) if len(given) == 1 else None
    if found is None:
        raise _refused(f"There is no bearer token: {_REMEDY}.")
    token = found.group(1)
    try:
        user = await user_of(token)
    except (InvalidTokenError, NoResultFound):  # the second: of FAB, for a user who was deleted
        raise _refused(f"The token is not valid, or it has ended, as tokens do: {_REMEDY}.") from None
    if getattr(user, "is_active", True) is False:
        raise _refused("The user of this token is not active; ask the admin of Airflow.")
    return Caller(str(user.get_id()), str(user.get_name()), _roles(user), token, user)


def _roles(user: Any) -> frozenset[str]:
    """Of the simple auth manager's users `role`, of FAB's `roles` with names."""
    role, roles = getattr(user, "role", None), getattr(user, "roles", None)
    several = roles if isinstance(roles, (list, tuple, set, frozenset)) else ()
    names = [getattr(one, "name", one) for one in (role, *several)]
    return frozenset(str(name) for name in names if isinstance(name, str) and name)


def _refused(message: str) -> OpenAiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return OpenAiError(401, message, code="invalid_api_key", headers=headers)
