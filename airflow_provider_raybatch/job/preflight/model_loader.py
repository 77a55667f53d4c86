# SPDX-License-Identifier: Apache-2.0
"""How vLLM loads weights: in the way that `load_format` names, and from buckets by its streamer."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.text import json_digest
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.storage.errors import NO_IDENTITY, StorageError, error_prefix
from airflow_provider_raybatch.storage.folder import folder

_PACKAGES = {
    "fastsafetensors": "fastsafetensors",
    "instanttensor": "instanttensor",
    "runai_streamer": "runai_model_streamer",
    "runai_streamer_sharded": "runai_model_streamer",
    "tensorizer": "tensorizer",
}
"""What vLLM imports only when it loads the weights, by `load_format`."""


def check_loader(args: Mapping[str, Any]) -> None:
    """Check an engine's `load_format` and `model_loader_extra_config`.

    :param args: for ``AsyncEngineArgs``.
    :raises PreflightError: vLLM has no such loader, lacks its package, or refuses its configuration.
    """
    load_format = str(args.get("load_format", "auto")).lower()
    package = _PACKAGES.get(load_format)
    if package is not None and find_spec(package) is None:
        raise PreflightError(
            f"engine_args: load_format {load_format!r} needs {package.replace('_', '-')}, which the "
            "cluster's nodes lack; install it in their image, or leave load_format out."
        )
    if load_format == "auto" and not args.get("model_loader_extra_config"):
        return  # as vLLM is used nearly always
    try:
        vllm_compat.loader(args)
    except Exception as error:  # pydantic and each loader raise their own
        raise PreflightError(
            f"engine_args: vLLM refuses load_format {load_format!r} ({' '.join(str(error).split())[:300]})."
        ) from error


_OWN_IDENTITY = (
    "the nodes have no AWS credentials of their own; give them a role, since aws_conn_id reads neither "
    "models nor adapters"
)
_STREAMER = "runai_model_streamer"
_READERS = {"s3": f"{_STREAMER}_s3", "gs": f"{_STREAMER}_gcs", "az": f"{_STREAMER}_azure"}
"""The streamer's package for each scheme that vLLM takes (its ``runai_utils.py``)."""


def is_in_bucket(model: str) -> bool:
    """Whether vLLM takes this for a model in an object store."""
    scheme, found, _ = model.partition("://")
    return bool(found) and scheme.lower() in _READERS


def by_own_identity(text: str) -> str:
    """An error's text without an advice that does not help: the job's connection is not for vLLM's files."""
    return text.replace(NO_IDENTITY, _OWN_IDENTITY)


def check_bucket(model: str) -> None:
    """Check that this node can read the model's files.

    :raises PreflightError: a package is missing, or there is nothing; S3 alone is looked into.
    :raises StorageError: S3 does not let it.
    """
    reader = _READERS[model.partition("://")[0].lower()]
    for package in (_STREAMER, reader):
        if find_spec(package) is None:
            raise PreflightError(
                f"model: vLLM reads {model!r} with {package.replace('_', '-')}, which the cluster's nodes "
                "lack; install vllm[runai] in their image, or copy the model to a folder that they can read."
            )
    objects_digest(model)


def objects_digest(model: str) -> str:
    """Over the names, sizes and entity tags of a model's objects in S3; over the name alone elsewhere.

    :raises PreflightError: there are none.
    :raises StorageError: they can't be listed.
    """
    if not model.lower().startswith("s3://"):
        return json_digest([model])
    try:
        with error_prefix("model"):
            entries = folder(model).list()
    except StorageError as error:
        raise StorageError(by_own_identity(str(error)), error.failure_class) from error
    if not entries:
        raise PreflightError(f"model: nothing is at {model!r}; correct the bucket or the prefix.")
    return json_digest([(entry.path, entry.size, entry.version) for entry in entries])
