# SPDX-License-Identifier: Apache-2.0
"""The adapters (LoRA) of one engine of vLLM, over all jobs that it serves.

Four properties of vLLM decide how: an adapter that can't be loaded ends the engine if a request is the first
to need it; the engine knows an adapter by its number alone, so another folder under a known number is
ignored; cached prefixes are kept apart by the adapter's name alone; and weights whose module the model does
not have are ignored. So each content has a name and a number of its own for as long as the engine lives, and
is loaded, and compared with the model's modules, before the first request.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.contract.arguments.engine import is_on_hub, revision_of
from airflow_provider_raybatch.contract.failures import PreflightError, RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of, hex_digest
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.job.failures.diagnosis import short
from airflow_provider_raybatch.storage.folder import folder

_FEW = 2
"""Of the model's modules, for a message."""
_FILES = ("adapter_config.json", "adapter_model.*")
_KEPT = 30 * 86400.0
"""Seconds for which a copy is kept that no engine opens."""


class EngineAdapters:
    """Loads the adapters of each job.

    :param spans_nodes: whether processes on other nodes load them, too.
    """

    def __init__(self, spans_nodes: bool = False) -> None:
        self._spans_nodes = spans_nodes
        self._numbers: dict[str, int] = {}
        self._loaded: set[int] = set()

    async def load(self, llm: Any, spec: BatchInferenceSpec) -> dict[str, Any]:
        """Load those of a job, and forget those of the job before.

        :param llm: vLLM's async engine.
        :returns: vLLM's ``LoRARequest`` of each, by its name in the job.
        :raises PreflightError: one can't be read or loaded.
        :raises EngineDeadError: the engine has ended.
        """
        requests = {
            name: await self._request(name, location, spec.adapter_digests)
            for name, location in spec.adapter_locations.items()
        }
        needed = {request.lora_int_id for request in requests.values()}
        for number in (
            self._loaded - needed
        ):  # first, so that no slot is left for the new ones to overflow into
            await llm.remove_lora(number)
        self._loaded &= needed
        for name, request in requests.items():
            await self._add(llm, name, request)
        return requests

    async def _request(self, name: str, location: str, digests: Mapping[str, str]) -> Any:
        content = digests.get(name) or location
        try:
            folder = await asyncio.to_thread(local_folder, location, content)
        except RaybatchError:
            raise
        except Exception as error:  # of the hub's client
            raise PreflightError(
                f"adapters: {name!r} can't be read from {location!r} ({short(error)})."
            ) from error
        if self._spans_nodes and folder != location:
            raise PreflightError(
                f"adapters: {location!r} is copied to one node, and a replica of this job has several; give "
                "a folder that all nodes see."
            )
        return vllm_compat_models.lora_request(
            content, self._numbers.setdefault(content, len(self._numbers) + 1), folder
        )

    async def _add(self, llm: Any, name: str, request: Any) -> None:
        try:
            await llm.add_lora(request)
        except Exception as error:
            if llm.errored or isinstance(error, vllm_compat.engine_dead_error()):
                raise EngineDeadError(
                    f"vLLM's engine process died while it loaded the adapter {name!r} ({error}).",
                    vllm_compat.was_killed(llm),
                ) from error
            raise PreflightError(
                f"adapters: vLLM can't load {name!r} from {request.lora_path!r} ({short(error)})."
            ) from error
        self._loaded.add(request.lora_int_id)
        found = await vllm_compat_models.fits(llm, request.lora_int_id)
        if problem := _misfit(found):
            raise PreflightError(f"adapters: {name!r} {problem}.")
        if notice := _notice(found):
            print(f"adapters: {name!r} {notice}.", file=sys.stderr, flush=True)


def _misfit(found: Sequence[Mapping[str, Sequence[str]]]) -> str:
    """Why an adapter would not answer as it was trained; empty if it does, as far as is known.

    :param found: see :func:`~airflow_provider_raybatch.job.engine.vllm_compat_models.fits`.
    """
    if not found:
        return ""
    if wrong := next((name for one in found for name in one["size"]), None):
        return f"has weights of other sizes than the model's for {wrong!r}; give the model it was trained on"
    if any(one["take"] for one in found):
        return ""
    own = next((name for one in found for name in one["left"]), "")
    has = sorted({name for one in found for name in one["has"]})
    has.sort(key=lambda name: name.split(".")[-2:] != own.split(".")[-2:])
    return (
        f"fits no module of the model, which would answer alone: it is for {own!r}, and adapters may be for "
        f"{', '.join(map(repr, has[:_FEW]))}{' and others' if has[_FEW:] else ''}; give the model it was "
        "trained on, or correct lora_target_modules in engine_args"
    )


def _notice(found: Sequence[Mapping[str, Sequence[str]]]) -> str:
    """What of an adapter that answers is not used, or not known."""
    if not found:
        return "may not fit the model: the engine does not say which modules take weights"
    if not (left := sorted(set.intersection(*(set(one["left"]) for one in found)))):
        return ""
    return f"answers without its weights of {count_of(len(left), 'module')}, as of {left[0]!r}"


def local_folder(location: str, content: str) -> str:
    """The folder of an adapter on this node, which is copied if it lies elsewhere: vLLM reads folders alone.

    :param location: a folder, ``s3://...`` or a name on the hub, with its commit after an ``@``.
    :param content: identifies what lies there.
    :raises StorageError: it can't be read from S3, or not be written here.
    :raises Exception: of the hub's client.
    """
    if location.startswith("/"):
        return location
    if is_on_hub(location):
        from huggingface_hub import snapshot_download

        name, revision = revision_of(location)
        return snapshot_download(name, revision=revision, allow_patterns=list(_FILES))
    return str(_copied(location, content))


def _copied(location: str, content: str) -> Path:
    """A copy that all engines of this node share. It appears whole, by a rename."""
    home = _home()
    place = home / hex_digest(content)
    if not place.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        source = folder(location.rstrip("/"))
        with tempfile.TemporaryDirectory(prefix=".", dir=home) as scratch:
            made = Path(scratch, "adapter")
            made.mkdir()
            for entry in source.list(depth=1):
                if entry.path.startswith(("adapter_config.json", "adapter_model.")):
                    (made / entry.path).write_bytes(source.read(entry.path))
            with contextlib.suppress(OSError):  # another engine was first
                made.rename(place)
    os.utime(place)
    _forget_old(home)
    return place


def _home() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError, OSError):  # the user has no home directory, or may not write there
        made = Path(base, "airflow_provider_raybatch", "adapters").expanduser()
        made.mkdir(parents=True, exist_ok=True)
        return made
    return Path(tempfile.gettempdir(), f"raybatch-adapters-{os.getuid()}")


def _forget_old(home: Path) -> None:
    with contextlib.suppress(OSError):
        for copy in home.iterdir():
            if time.time() - copy.stat().st_mtime > _KEPT:
                shutil.rmtree(copy, ignore_errors=True)
