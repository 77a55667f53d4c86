# SPDX-License-Identifier: Apache-2.0
"""The names of a model's files, and the content of small ones, wherever vLLM would find them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.job.input.hub import PING, refuse_silent_hub
from airflow_provider_raybatch.job.preflight.model_loader import is_in_bucket
from airflow_provider_raybatch.job.preflight.model_version import TIMEOUT, is_elsewhere, is_offline
from airflow_provider_raybatch.storage.folder import folder


@dataclass(frozen=True)
class ModelFiles:
    """A model's files.

    :param sizes: bytes of each, by its path below the model; ``None`` on the hub, where files are whole.
    :param read: gives the content of one of them.
    :param read_start: gives so many bytes from the beginning of one; by default it reads all.
    :param version: the hub's commit; empty elsewhere.
    """

    sizes: Mapping[str, int | None]
    read: Callable[[str], bytes]
    read_start: Callable[[str, int], bytes] | None = None
    version: str = ""

    def start(self, name: str, length: int) -> bytes:
        """The first `length` bytes of a file, or all of a shorter one."""
        return self.read(name)[:length] if self.read_start is None else self.read_start(name, length)

    def json(self, name: str) -> Any:
        """A file's content; an empty ``dict`` where the file is missing or not JSON."""
        with contextlib.suppress(ValueError):
            return json.loads(self.read(name)) if name in self.sizes else {}
        return {}


def is_on_disk(model: str) -> bool:
    """Whether each node may see other files under this name."""
    with contextlib.suppress(ImportError):  # without the hub's client
        return model.startswith("/") or is_offline()
    return model.startswith("/")


def refuse_out_of_reach(field: str, model: str, revision: str | None) -> None:
    """Refuse a name on a hub that does not answer this node, unless its cache has the files.

    :raises StorageError: the hub has not answered for ten seconds.
    """
    if model.startswith("/") or is_in_bucket(model) or is_elsewhere(model):
        return
    with contextlib.suppress(ImportError):  # without the hub's client, another node reads the model
        from huggingface_hub import constants, snapshot_download
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        if is_offline():
            return
        repository = "/".join(model.partition(":")[0].split("/")[:2])  # also of repo:quant and repo/file.gguf
        with contextlib.suppress(Exception):  # the client raises its own
            snapshot_download(repository, revision=revision, local_files_only=True)
            return
        hub, remedy = constants.ENDPOINT, "copy it to S3, or fill their caches and set HF_HUB_OFFLINE=1"
        ask = partial(get_session().head, hub + PING, timeout=TIMEOUT)
        refuse_silent_hub(f"{field}: {model!r}", remedy, hub, ask)


def files_of(model: str, revision: str | None, token: str | None) -> ModelFiles | None:
    """The files that this node sees.

    :param token: see :func:`~airflow_provider_raybatch.job.preflight.model_version.hub_token`.
    :returns: ``None`` for a single file, and for what is neither a folder, nor on S3, nor a name on the hub.
    :raises Exception: of the library that asks.
    """
    if is_in_bucket(model):
        return _in_bucket(model) if model.lower().startswith("s3://") else None
    if model.startswith("/"):
        return _in_folder(Path(model)) if Path(model).is_dir() else None
    return None if is_elsewhere(model) else _on_hub(model, revision, token)


def _in_folder(path: Path, version: str = "") -> ModelFiles:
    """Of a folder and the folders in it, without broken links."""
    found = [one for pattern in ("*", "*/*") for one in path.glob(pattern) if one.is_file()]
    sizes = {one.relative_to(path).as_posix(): one.stat().st_size for one in found}
    return ModelFiles(sizes, lambda name: (path / name).read_bytes(), lambda *of: _start(path, *of), version)


def _start(folder: Path, name: str, length: int) -> bytes:
    with (folder / name).open("rb") as stream:
        return stream.read(length)


def _in_bucket(model: str) -> ModelFiles | None:
    place = folder(model)
    sizes = {entry.path: entry.size for entry in place.list()}
    return (
        ModelFiles(sizes, place.read, lambda name, size: place.read_range(name, 0, size)) if sizes else None
    )


def _on_hub(model: str, revision: str | None, token: str | None) -> ModelFiles:
    from huggingface_hub import HfApi, hf_hub_download, snapshot_download

    if is_offline():
        snapshot = Path(snapshot_download(model, revision=revision, local_files_only=True))
        return _in_folder(snapshot, snapshot.name)
    found = HfApi(token=token).model_info(model, revision=revision, timeout=TIMEOUT)

    def folder_of(name: str) -> Path:
        file = hf_hub_download(model, name, revision=found.sha, token=token, etag_timeout=TIMEOUT)
        return Path(file.removesuffix(name))

    return ModelFiles(
        {one.rfilename: None for one in found.siblings or ()},
        lambda name: (folder_of(name) / name).read_bytes(),
        lambda name, size: _start(folder_of(name), name, size),
        str(found.sha),
    )
