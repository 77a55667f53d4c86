# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM can load weights in the way that `load_format` names, before an engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat

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
