# SPDX-License-Identifier: Apache-2.0
"""Airflow's settings of the Batch API: where its files lie, what signs records, which models it serves.

``batch_api_models`` is a JSON object, or the absolute path of a file with one: each name that clients use,
with the arguments of ``RayBatchInferenceOperator`` and the fields of :class:`ServedModel`. API servers and
DAG files read it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from airflow.sdk.configuration import conf
from pydantic import Field

from airflow_provider_raybatch.argument_fields import HOMES, argument_of, fields_of
from airflow_provider_raybatch.contract.arguments.openai_batch import ENDPOINTS, OPENAI_BATCH
from airflow_provider_raybatch.contract.base import ContractModel, ascii_name, parse, shown
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.json_lines import LONGEST_LINE, RepeatedKeyError, object_of
from airflow_provider_raybatch.contract.location import checked_folder
from airflow_provider_raybatch.contract.spec import NOT_ARGUMENTS, BatchInferenceSpec
from airflow_provider_raybatch.contract.text import nearest

SECTION = "raybatch"
_SETTING = "[raybatch] batch_api_models"
_OF_THE_BATCH = frozenset({
    "source", "destination", "format", "destination_format", "csv_options", "limit", "id_column",
    "served_model_name", "report_samples", "on_destination_owned", "on_clear", "output_prefix",
    "response_column", "preserve_order",
})  # fmt: skip
"""Fields of the job that the task of a batch sets itself, or that its lines have no use for."""
_STAND_INS: Mapping[str, Any] = {
    "source": ["s3://unknown-source"],
    "destination": "s3://unknown-destination",
    "format": OPENAI_BATCH,
    "destination_format": OPENAI_BATCH,
}


@dataclass(frozen=True)
class BatchApiSettings:
    """Where the state of the Batch API lies.

    :param root: a folder that API servers, workers and the Ray clusters see under one path, or ``s3://``.
    :param aws_conn_id: for the bucket; ``None`` for each machine's own identity.
    :param secret: signs records.
    """

    root: str
    aws_conn_id: str | None = None
    secret: bytes = field(default=b"", repr=False)


def batch_api_settings() -> BatchApiSettings | None:
    """The settings; ``None`` where `batch_api_root` is not set, and the Batch API is off.

    :raises SpecError: a setting can't be used.
    """
    root = (conf.get(SECTION, "batch_api_root", fallback="") or "").strip()
    if not root:
        return None
    try:
        root = checked_folder(root)
    except ValueError as error:
        raise SpecError(f"[raybatch] batch_api_root: {error}.") from None
    conn_id = (conf.get(SECTION, "batch_api_aws_conn_id", fallback="") or "").strip()
    return BatchApiSettings(root, conn_id or None, _secret())


def required_settings() -> BatchApiSettings:
    """The settings, on a machine that works for the Batch API.

    :raises SpecError: `batch_api_root` is not set, or a setting can't be used.
    """
    settings = batch_api_settings()
    if settings is None:
        raise SpecError("[raybatch] batch_api_root: it is not set on this machine; set it as on API servers.")
    return settings


def _secret() -> bytes:
    own = (conf.get(SECTION, "batch_api_secret", fallback="") or "").strip()
    shared = own or (conf.get("core", "fernet_key", fallback="") or "").strip()
    if len(shared) < 32:
        name = "batch_api_secret" if own else "batch_api_secret (and [core] fernet_key)"
        raise SpecError(
            f"[raybatch] {name}: records are signed with 32 characters or more; "
            "set the same random text on API servers and workers."
        )
    return f"raybatch batch api\n{shared}".encode()


class _TaskArguments(ContractModel):
    """Arguments of the operator that are not the job's."""

    ray_conn_id: str | None = Field(default=None, min_length=1)
    ray_cluster: dict[str, Any] | None = None
    deferrable: bool | None = None
    poll_interval: float | None = Field(default=None, gt=0)
    cancel_on_kill: bool | None = None
    aws_conn_id: str | None = Field(default=None, min_length=1)
    hf_conn_id: str | None = Field(default=None, min_length=1)
    runtime_env: dict[str, Any] | None = None


class ServedModel(ContractModel):
    """A model that clients of the Batch API may name.

    :param name: what clients write as ``model``.
    :param created: epoch seconds: when the file that configures it was changed; 0 for the setting's own text.
    :param dag_id: the DAG whose runs answer its batches; by default of the name.
    :param endpoints: what lines may ask; by default those of the model's `model_task`.
    :param users: user names that may use it, and `roles` those of the auth manager. By default, where both
        are ``None``, whoever Airflow lets trigger the DAG.
    :param max_requests: of one batch; ``None`` for the server's limit.
    :param max_file_bytes: of one batch's input; ``None`` for the server's limit.
    :param max_line_bytes: of one line; ``None`` for 16 MiB.
    :param batches_at_once: runs of the DAG at once; others wait in Airflow's queue.
    :param retries: of the task; ``None`` for the default of the served DAG.
    :param pool: Airflow's pool of the task.
    :param arguments: of the operator.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,199}$")
    created: int = 0
    dag_id: str = Field(pattern=r"^[A-Za-z0-9._-]{1,250}$")
    endpoints: tuple[str, ...]
    users: tuple[str, ...] | None = None
    roles: tuple[str, ...] | None = None
    max_requests: int | None = Field(default=None, ge=1)
    max_file_bytes: int | None = Field(default=None, ge=1)
    max_line_bytes: int | None = Field(default=None, ge=1, le=LONGEST_LINE)
    batches_at_once: int = Field(default=1, ge=1)
    retries: int | None = Field(default=None, ge=0)
    pool: str | None = Field(default=None, min_length=1)
    arguments: dict[str, Any]

    def is_for(self, user: str, roles: Collection[str]) -> bool:
        """Whether the configuration lets a user name it; Airflow's own permission comes on top."""
        if self.users is None and self.roles is None:
            return True
        return user in (self.users or ()) or not set(self.roles or ()).isdisjoint(roles)


_OWN = frozenset(ServedModel.model_fields) - {"name", "created", "arguments"}
_ARGUMENTS = {argument_of(name) for name in BatchInferenceSpec.model_fields.keys() - NOT_ARGUMENTS}
_KNOWN = sorted({*_ARGUMENTS, *_TaskArguments.model_fields, *_OWN} - _OF_THE_BATCH)


def served_models() -> dict[str, ServedModel]:
    """The configured models by name, in the order of the configuration; empty where the setting is.

    :raises SpecError: the configuration can't be used; one sentence that names the field.
    """
    given = (conf.get(SECTION, "batch_api_models", fallback="") or "").strip()
    if not given:
        return {}
    if given.startswith("{"):
        return dict(_models(given, 0))
    path = Path(given)
    if not path.is_absolute():
        raise SpecError(
            f"{_SETTING}: {shown(given)} is neither a JSON object nor an absolute path; write a JSON object, "
            "or the absolute path of a file with one."
        )
    try:
        changed = path.stat()
        return dict(_models_of_file(path, changed.st_mtime_ns, changed.st_size))
    except OSError as error:
        raise SpecError(
            f"{_SETTING}: {shown(given)} can't be read ({error.strerror}); write the file, and let API "
            "servers, DAG processors and workers read it."
        ) from None


@lru_cache(maxsize=4)
def _models_of_file(path: Path, mtime_ns: int, _size: int) -> dict[str, ServedModel]:
    return _models(path.read_bytes(), mtime_ns // 10**9)


@lru_cache(maxsize=4)
def _models(text: str | bytes, created: int) -> dict[str, ServedModel]:
    try:
        found = json.loads(text, object_pairs_hook=object_of)
    except RepeatedKeyError as error:
        raise SpecError(f"{_SETTING}: an object has {shown(error.key)} twice; remove one of them.") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{_SETTING}: it is not JSON ({error}); correct it.") from None
    if not isinstance(found, dict):
        raise SpecError(f"{_SETTING}: it must be a JSON object of models by name, but it is {shown(found)}.")
    models: dict[str, ServedModel] = {}
    by_dag: dict[str, str] = {}
    for name, given in found.items():
        try:
            model = _model(name, given, created)
        except SpecError as error:
            raise SpecError(f"{_SETTING}: model {shown(name)}: {error}") from None
        if model.dag_id in by_dag:
            raise SpecError(
                f"{_SETTING}: models {by_dag[model.dag_id]!r} and {name!r} have the dag_id "
                f"{model.dag_id!r}, and each needs a DAG of its own; give one of them another dag_id."
            )
        by_dag[model.dag_id] = name
        models[name] = model
    return models


def _model(name: str, given: Any, created: int) -> ServedModel:
    if not isinstance(given, dict):
        raise SpecError(f"it must be a JSON object of arguments, but it is {shown(given)}.")
    for key in given:
        _check_key(key, _KNOWN)
    own = {key: value for key, value in given.items() if key in _OWN and value is not None}
    arguments = {key: value for key, value in given.items() if key not in _OWN and value is not None}
    parse(_TaskArguments, {key: arguments[key] for key in _TaskArguments.model_fields if key in arguments})
    allowed = _endpoints_of(name, arguments)
    own.setdefault("dag_id", f"batches_{_slug(name)}")
    own.setdefault("endpoints", allowed)
    model = parse(ServedModel, {**own, "name": name, "created": created, "arguments": arguments})
    unknown = next((one for one in model.endpoints if one not in allowed), None)
    if unknown is not None or not model.endpoints:
        raise SpecError(
            f"endpoints: {shown(list(model.endpoints))} must be one or more of {', '.join(allowed)} for this "
            "model_task."
        )
    return model


def _check_key(key: str, known: Collection[str]) -> None:
    if key in _OF_THE_BATCH:
        raise SpecError(f"{key}: the task of a batch sets it; remove it.")
    if key not in known:
        close, home = nearest(key, known), HOMES.get(key)
        hint = f"did you mean {close!r}?" if close else "remove it, or correct its spelling."
        hint = hint if home is None else f"put it into {argument_of(key)!r}."
        raise SpecError(f"{key}: it is neither an argument of RayBatchInferenceOperator nor a field; {hint}")


def _endpoints_of(name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Check the arguments of the job as its spec does."""
    given = {key: value for key, value in arguments.items() if key not in _TaskArguments.model_fields}
    of_job = fields_of(given)
    for key in of_job:
        _check_key(key, of_job)
    if of_job.get("engine") == "echo":
        of_job.setdefault("model", "echo")
    spec = parse(BatchInferenceSpec, {**_STAND_INS, "served_model_name": name, **of_job})
    return ENDPOINTS[spec.model_task]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", ascii_name(name))
