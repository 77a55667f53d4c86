# SPDX-License-Identifier: Apache-2.0
"""Checks of models that passed, kept on the node that made them: the check imports vLLM, which takes long.

``docs/internals/rows.md`` says when a kept check holds.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from airflow_provider_raybatch import __version__
from airflow_provider_raybatch.contract.arguments.engine import ModelArguments
from airflow_provider_raybatch.contract.arguments.sampling import SamplingArguments
from airflow_provider_raybatch.contract.arguments.task import TaskArguments
from airflow_provider_raybatch.contract.arguments.tools import ToolArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import hex_digest
from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine.request_values import whole_number
from airflow_provider_raybatch.job.preflight import model_check, model_version
from airflow_provider_raybatch.job.preflight.adapter_check import check_adapters
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.model_files import refuse_missing
from airflow_provider_raybatch.job.preflight.model_version import Version
from airflow_provider_raybatch.job.preflight.sampling_check import asked_by
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.storage.errors import StorageError
from airflow_provider_raybatch.storage.folder import LocalFolder

_KEPT = 90 * 86400.0
"""Seconds for which a check is kept."""
_SHARE_OF_CONTEXT = 0.75
"""A prompt of fewer bytes than this share of the context's tokens fits, with room for the chat template."""
_ARGUMENTS = (ModelArguments, TaskArguments, ToolArguments, SamplingArguments)
_FILLED_IN = {"template_time", "adapter_digests"}
_ASKED = {name for group in _ARGUMENTS for name in group.model_fields} - _FILLED_IN
_TOKENISED = {"special_tokens_in_text", "on_overlong", "chunk_tokens", "chunk_overlap_tokens"}
"""What decides which tokens the engine gets of a request, and which requests fail."""
_MOST_SHAPES = 4096
_WORDS = {"role", "type"}
"""Keys of a message, or of a part of one, whose values templates compare."""
_OPAQUE = {"arguments"}
"""Of a call of a tool: an object whose keys are the tool's own."""


@dataclass(frozen=True)
class Kept:
    """A check, and the shapes of the requests of all equal checks so far.

    :param shapes: empty where the rows themselves decide.
    :param rows: digest of the requests that it counted, for a check that holds for these alone.
    """

    checked: ModelCheck
    shapes: frozenset[str]
    rows: str = ""


_JSON = TypeAdapter(Kept)


def check_unless_kept(asked: AskedModel) -> ModelCheck:
    """What :func:`~airflow_provider_raybatch.job.preflight.model_check.check_model` finds, or has found.

    :raises RaybatchError: whatever is wrong, as one sentence.
    """
    refuse_missing(asked)
    return _kept_or_made(_kept, asked)


def check_rows_anew(asked: AskedModel) -> ModelCheck:
    """The same for a check that has counted these rows: one of others knows their bytes alone.

    :raises PreflightError: whatever is wrong, as one sentence.
    """
    return _kept_or_made(_kept_of_rows, asked)


def _kept_or_made(
    find: Callable[[Path | None, AskedModel], ModelCheck | None], asked: AskedModel
) -> ModelCheck:
    """A check that is made is kept for the same rows, and for others where they would get the same."""
    version = _current(asked)
    place = _place(asked, version)
    if (known := find(place, asked)) is not None:
        return known
    found = model_check.check_model(asked)
    if place is not None and version is not None and _is_lasting(found, asked.spec, version):
        _write(_of_rows(place), Kept(found, frozenset(), _digest_of(asked)))
        if not found.failures and not found.truncated:
            _write(place, Kept(found, _with_earlier(place, shapes(asked.requests))))
    return found


def kept(asked: AskedModel) -> ModelCheck | None:
    """A check that is kept on this node, found without vLLM; a model by name costs a request to the hub."""
    return _kept(_place(asked, _current(asked)), asked)


def _kept(place: Path | None, asked: AskedModel) -> ModelCheck | None:
    found = _kept_of_rows(place, asked)
    if found is not None:
        return found
    known = None if place is None else _read(place)
    if known is None or not _surely_fit(asked.requests, known.checked.context):
        return None
    if not shapes(asked.requests) <= known.shapes:
        return None
    needed = min(known.checked.context, _most_tokens(asked.spec, asked.requests))
    return replace(_of_spec(known.checked, asked.spec), needed=needed, is_kept=True)


def _kept_of_rows(place: Path | None, asked: AskedModel) -> ModelCheck | None:
    """One that has counted these rows, as of an attempt before."""
    known = None if place is None else _read(_of_rows(place))
    if known is None or known.rows != _digest_of(asked):
        return None
    return _of_spec(known.checked, asked.spec)


def _of_spec(found: ModelCheck, spec: BatchInferenceSpec) -> ModelCheck:
    return replace(found, digests=found.digests.model_copy(update={"spec": spec.response_digest}))


def _of_rows(place: Path) -> Path:
    return place.with_suffix(".rows.json")


def _digest_of(asked: AskedModel) -> str:
    limit = str(asked.spec.sampling.get("max_tokens"))
    return hex_digest("\n".join([limit, *(request.as_json() for request in asked.requests)]))


def _current(asked: AskedModel) -> Version | None:
    """The version that the check would read; ``None`` if the check may not be kept."""
    spec = asked.spec
    if any(map(_exists, _texts(spec.engine_args))):
        return None
    return model_version.current(spec.model, spec.engine_args, model_version.hub_token(asked.environment))


def _is_lasting(found: ModelCheck, spec: BatchInferenceSpec, version: Version) -> bool:
    """Whether a later check would find the same, and the model's branch has not moved meanwhile."""
    return (
        not found.prints_date
        and found.revisions == version.revisions
        and model_version.was_read(spec.model, spec.engine_args, version)
    )


def folder() -> Path | None:
    """Where checks are kept, beside vLLM's own caches."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with contextlib.suppress(RuntimeError):  # the user has no home directory
        return Path(base, "airflow_provider_raybatch", "models").expanduser()
    return None


def _place(asked: AskedModel, version: Version | None) -> Path | None:
    """The file of a check; ``None`` if it may not be kept."""
    spec, home = asked.spec, folder()
    if home is None or version is None:
        return None
    adapters = _adapters(asked)
    if adapters is None:
        return None
    content = {
        "versions": [
            __version__,
            vllm_compat.installed_version(),
            _version("transformers"),
            _version("xgrammar"),
        ],
        "files": version.files,
        "asked": spec.model_dump(mode="json", include=_ASKED | _TOKENISED),
        "tools": {step: [one.tools, one.tool_choice] for step, one in spec.with_tools.items()},
        "by_lines": spec.asks_by_lines,
        "engine": [spec.engine, spec.engine_args],
        "structured_outputs": asked_by(spec, asked.requests),
        "accelerator": [spec.gpus_per_replica, spec.accelerator_type],
        "adapters": adapters,
        "images": bool(spec.image_columns),
    }
    return home / f"{hex_digest(json.dumps(content, sort_keys=True, default=str))}.json"


def _adapters(asked: AskedModel) -> dict[str, str] | None:
    """Digests of the adapters now; ``None`` if the check has something to say about them."""
    with contextlib.suppress(PreflightError):
        return {name: one.digest for name, one in check_adapters(asked).items()}
    return None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, Sequence)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(inner)


def _exists(name: str) -> bool:
    with contextlib.suppress(OSError, ValueError):  # no name of a file
        return Path(name).exists()
    return False


def _version(distribution: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(distribution)
    return ""


def shapes(requests: Iterable[Request]) -> frozenset[str]:
    """All but the words of requests, 32 hex digits each: roles, kinds of content, calls of tools, images."""
    pairs = ([len(one.images), _shape(one.messages or one.prompt or "")] for one in requests)
    return frozenset(hex_digest(json.dumps(pair, sort_keys=True)) for pair in pairs)


def _shape(value: Any) -> Any:
    if isinstance(value, str):
        return "text" if value else ""
    if isinstance(value, Mapping):
        return {str(key): _of_key(str(key), inner) for key, inner in value.items()}
    return list(map(_shape, value)) if isinstance(value, (list, tuple)) else type(value).__name__


def _of_key(key: str, value: Any) -> Any:
    if key in _WORDS and isinstance(value, str):
        return [value]
    return type(value).__name__ if key in _OPAQUE else _shape(value)


def _surely_fit(requests: Sequence[Request], context: int) -> bool:
    """No token of a text has less than a byte; how many an image has, the model's processor says."""
    if any(request.images for request in requests):
        return False
    return max(map(_bytes, requests), default=0) < _SHARE_OF_CONTEXT * context


def _most_tokens(spec: BatchInferenceSpec, requests: Sequence[Request]) -> int:
    """That a prompt and its response may have."""
    limits = ({**spec.sampling, **one.sampling}.get("max_tokens") for one in requests)
    response = max((limit for limit in map(whole_number, limits) if isinstance(limit, int)), default=1)
    return int(max(map(_bytes, requests), default=0) / _SHARE_OF_CONTEXT) + response


def _bytes(request: Request) -> int:
    return len(request.as_json().encode())


def _read(place: Path) -> Kept | None:
    with contextlib.suppress(OSError, ValidationError):
        if time.time() - place.stat().st_mtime < _KEPT:
            return _JSON.validate_json(place.read_bytes())
    return None


def _with_earlier(place: Path, of: frozenset[str]) -> frozenset[str]:
    before = _read(place)
    together = of if before is None else of | before.shapes
    return together if len(together) <= _MOST_SHAPES else of


def _write(place: Path, kept: Kept) -> None:
    """Keep it if JSON does, and forget what is old. A cache that can't be written costs time only."""
    with contextlib.suppress(OSError, ValueError, StorageError):
        text = _JSON.dump_json(kept)
        if _JSON.validate_json(text) != kept:
            return
        LocalFolder(str(place.parent)).write(place.name, text)
        for file in place.parent.iterdir():
            if time.time() - file.stat().st_mtime >= _KEPT:
                file.unlink()
