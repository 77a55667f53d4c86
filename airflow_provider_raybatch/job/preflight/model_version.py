# SPDX-License-Identifier: Apache-2.0
"""The version of a model's files now: of its folder, or the commit that the hub gives for its name.

The hub is asked with the job's own token, so one without access to the model gets no version (see
``docs/internals/rows.md``). Nothing here imports vLLM, PyTorch or transformers, or changes the environment.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.text import hex_digest, json_digest
from airflow_provider_raybatch.storage.errors import NO_IDENTITY, StorageError, error_prefix
from airflow_provider_raybatch.storage.folder import folder

COMMIT = re.compile(r"[0-9a-f]{40}")
"""A commit of the hub's, as a whole text."""

TIMEOUT = 5.0
"""Seconds for the hub to accept a connection, and then to answer."""
_CONFIG, _GENERATION_CONFIG = "config.json", "generation_config.json"
_OF_TOKENIZER = ("tokenizer_config.json", "chat_template.jinja")
_ELSEWHERE = {"code_revision", "hf_config_path", "hf_token", "model_weights", "tokenizer"}
"""Engine arguments that name other files, or another token for them."""
_HASHED_WHOLE = 64 * 1024 * 1024
_SAMPLES, _SAMPLE_BYTES = 64, 64 * 1024


@dataclass(frozen=True)
class Version:
    """The version of a model's files.

    :param files: differs where a check may read other files.
    :param commit: the hub's; empty for a folder.
    """

    files: str
    commit: str = ""

    @property
    def revisions(self) -> dict[str, str]:
        """Engine arguments that pin model and tokenizer to it."""
        return {"revision": self.commit, "tokenizer_revision": self.commit} if self.commit else {}


def hub_token(environment: Mapping[str, SecretStr]) -> str | None:
    """The job's token; without one, the node's is used, if it has one."""
    token = environment.get("HF_TOKEN")
    return None if token is None else token.get_secret_value()


def current(model: str, engine_args: Mapping[str, Any], token: str | None) -> Version | None:
    """The version that a check would read now.

    :param token: see :func:`hub_token`.
    :returns: ``None`` where it is not known: the hub does not answer within 5 seconds, or refuses the token;
        the hub has no such names, as ``gs://...``; a check would also read other files.
    """
    if _reads_other_files(engine_args):
        return None
    try:
        if is_in_bucket(model):
            return Version(objects_digest(model)) if model.lower().startswith("s3://") else None
        if model.startswith("/"):
            return Version(model_digest(model, "")) if Path(model).is_dir() else None
        return None if is_elsewhere(model) else _on_hub(model, engine_args, token)
    except Exception:  # huggingface_hub and its HTTP client each raise their own; the head may have neither
        return None


def was_read(model: str, engine_args: Mapping[str, Any], version: Version) -> bool:
    """Whether a check that has just passed had all files of this version.

    Transformers skips optional files that the hub fails to send. Then the cache has neither the file nor the
    note that the commit lacks it.
    """
    return version.commit == "" or is_offline() or _is_cached(model, engine_args, version.commit)


def _is_cached(model: str, engine_args: Mapping[str, Any], commit: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    files = [_CONFIG, *_OF_TOKENIZER]
    if engine_args.get("generation_config") != "vllm":
        files.append(_GENERATION_CONFIG)
    return all(try_to_load_from_cache(model, file, revision=commit) is not None for file in files)


def is_offline() -> bool:
    """Whether the hub's client only uses this node's cache.

    :raises ImportError: the client is not installed.
    """
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _on_hub(model: str, engine_args: Mapping[str, Any], token: str | None) -> Version | None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url

    revision = engine_args.get("revision")
    if is_offline():
        return _in_cache(model, revision)
    if revision and COMMIT.fullmatch(revision) and _is_cached(model, engine_args, revision):
        commit: str | None = revision
    else:
        url = hf_hub_url(model, _CONFIG, revision=revision)
        commit = get_hf_file_metadata(url, token=token, timeout=TIMEOUT).commit_hash
    return Version(f"{constants.ENDPOINT}/{model}@{commit}", commit) if commit else None


def _in_cache(model: str, revision: str | None) -> Version | None:
    """By commit and files: a cache may get some files of a commit later."""
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model, _CONFIG, revision=revision)
    if not isinstance(config, str):
        return None
    snapshot = Path(config).parent
    return Version(f"{model}@{snapshot.name}-{model_digest(str(snapshot), '')}", snapshot.name)


def _reads_other_files(engine_args: Mapping[str, Any]) -> bool:
    """Whether a check reads more than the model's files at one revision.

    Code of a model (``trust_remote_code``) may come from further models, at their main branches.
    """
    return (
        not _ELSEWHERE.isdisjoint(engine_args)
        or bool(engine_args.get("trust_remote_code"))
        or engine_args.get("tokenizer_revision") not in (None, engine_args.get("revision"))
        or engine_args.get("generation_config", "auto") not in ("auto", "vllm")
    )


def is_elsewhere(model: str) -> bool:
    """Whether vLLM does not look for this name on the hub, or takes it for a relative path."""
    from_modelscope = os.environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in {"1", "true"}
    return from_modelscope or "VLLM_MODEL_REDIRECT_PATH" in os.environ or Path(model).exists()


def model_digest(name: str, revision: str) -> str:
    """Identifies a version of a model.

    In a folder, by names, sizes and content of its files; samples of large ones do, since weights that were
    trained further differ everywhere. On the hub, by name and commit. In buckets, see :func:`objects_digest`.
    """
    if is_in_bucket(name):
        return objects_digest(name)
    place = Path(name)
    if place.is_dir():
        state = hashlib.sha256()
        for path in [*sorted(file for file in place.iterdir() if file.is_file()), *_of_modules(place)]:
            state.update(f"{path.relative_to(place)}:{path.stat().st_size}\n".encode())
            for piece in content_of(path):
                state.update(piece)
        return state.hexdigest()[:32]
    return hex_digest(f"{name}@{revision}")


def _of_modules(model: Path) -> list[Path]:
    """Files in the folders of sentence-transformers' modules: they say how a vector is made."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        modules = json.loads((model / "modules.json").read_bytes())
        places = sorted({str(one.get("path") or "") for one in modules} - {""})
        return [file for place in places for file in sorted((model / place).iterdir()) if file.is_file()]
    return []


def content_of(path: Path) -> Iterator[bytes]:
    """A file's content; of a large one, samples from beginning to end."""
    size = path.stat().st_size
    if size <= _HASHED_WHOLE:
        yield path.read_bytes()
        return
    with path.open("rb") as stream:
        for number in range(_SAMPLES):
            stream.seek((size - _SAMPLE_BYTES) * number // (_SAMPLES - 1))
            yield stream.read(_SAMPLE_BYTES)


def pinned_revisions(args: dict[str, Any], config: Any) -> dict[str, str]:
    """The commits of model and tokenizer that this check has seen, empty for folders.

    Without them, each node would take what its cache or the hub has then.
    """
    tokenizer = str(args.get("tokenizer") or args["model"])
    return {
        "revision": _commit(str(args["model"]), args.get("revision"), config.revision, "config.json"),
        "tokenizer_revision": _commit(
            tokenizer,
            args.get("tokenizer_revision") or (args.get("revision") if tokenizer == args["model"] else None),
            config.tokenizer_revision,
            "tokenizer_config.json",
        ),
    }


def _commit(name: str, revision: str | None, resolved: str | None, file: str) -> str:
    if Path(name).is_dir():
        return ""
    if resolved and COMMIT.fullmatch(resolved):
        return str(resolved)  # of a class of huggingface_hub, which the driver's node need not have
    from huggingface_hub import try_to_load_from_cache

    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except ValueError:
        return ""  # no name of the hub's, such as a bucket
    commit = Path(cached).parent.name if isinstance(cached, str) else ""
    return commit if COMMIT.fullmatch(commit) else ""


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
