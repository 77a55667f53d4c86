# SPDX-License-Identifier: Apache-2.0
"""Where data lies: local paths, ``file://``, ``s3://``, ``https://``, ``hf://``; checked as text.

A path that each process reads in its own way is refused: on the cluster, a relative one lies in a folder
that Ray deletes with the job. A refusal is a ``ValueError``: one sentence, without the field's name.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import unquote

from pydantic import AfterValidator

from airflow_provider_raybatch.contract.base import check_characters
from airflow_provider_raybatch.contract.text import shown_uri

HUB = "hf://"
_PARTS = re.compile(
    r"hf://datasets/([\w.-]+/[\w.-]+)(?:@(refs/(?:convert|pr)/[^/@]+|[^/@]+))?(?:/(.*))?", re.DOTALL
)


@dataclass(frozen=True)
class HubPath:
    """A path in a dataset's repository.

    :param dataset: ``owner/name``.
    :param written: the repository and revision, as the user wrote them.
    :param revision: a branch, a tag, a commit, or a reference such as ``refs/convert/parquet``.
    """

    dataset: str
    written: str
    revision: str
    path: str


def split_hub(uri: str) -> HubPath | None:
    """The parts of an ``hf://`` URI; ``None`` for any other location."""
    found = _PARTS.fullmatch(uri) if uri.startswith(HUB) else None
    if found is None:
        return None
    dataset, revision, path = found.groups()
    written = uri[: found.start(3) - 1] if path is not None else uri
    return HubPath(dataset, written, unquote(revision or "main"), (path or "").rstrip("/"))


def check_hub(uri: str) -> None:
    """Refuse what names no path of a dataset.

    :raises ValueError: one sentence.
    """
    found = split_hub(uri)
    if found is None:
        raise ValueError(
            f"{uri!r} names no dataset of the Hugging Face hub; write it as "
            "hf://datasets/owner/name@revision/path"
        )
    if WILDCARDS & set(found.revision):
        raise ValueError(f"{uri!r} has a wildcard in its revision; name one branch, tag or commit")
    if found.path:
        check_between_slashes(uri, found.path)


SOURCE_SCHEMES = ("file", "s3", "https", "http", "hf")
DESTINATION_SCHEMES = ("file", "s3")
WILDCARDS = frozenset("*?[")
_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
_JINJA = re.compile(r"\{\{.*?\}\}|\{%.*?%\}", re.DOTALL)
_BUCKET = re.compile(r"[A-Za-z0-9._-]+")
_MODEL_SCHEMES = ("file", "http", "https")


def split_s3(uri: str) -> tuple[str, str] | None:
    """Bucket and key of an ``s3://`` URI, ``None`` for any other location."""
    if not uri.startswith("s3://"):
        return None
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def s3_prefix(uri: str) -> dict[str, str]:
    """`bucket` and `key_prefix` of an ``s3://`` folder, as Amazon's operators take them; else empty."""
    bucket, key = split_s3(uri) or ("", "")
    if not bucket:
        return {}
    # With a slash at its end it does not match another folder's files.
    return {"bucket": bucket, "key_prefix": f"{key.rstrip('/')}/" if key else ""}


def check_location(uri: str, schemes: tuple[str, ...]) -> None:
    """Refuse what can't be a location, or is one only by accident."""
    if not uri.strip():
        raise ValueError("a path is empty; name a file, a folder or a glob")
    _check_text(uri)
    match = _SCHEME.match(uri)
    if match is None:
        check_absolute(uri)
        return
    if match.group(1) not in schemes:
        allowed = ", ".join(f"{one}://" for one in schemes)
        raise ValueError(
            f"{shown_uri(uri)!r} has the scheme {match.group(1)!r}; use a local path or one of {allowed}"
        )
    _check_login(uri, match.end())
    if match.group(1) == "s3":
        _check_s3(uri)
    elif match.group(1) == "file":
        _check_file(uri)
    elif match.group(1) == "hf":
        check_hub(uri)
    elif not re.match(r"[^/?#]", uri[match.end() :]):
        raise ValueError(f"{shown_uri(uri)!r} names no host; write it as {match.group()}host/path")


def checked_folder(uri: str) -> str:
    """The location of a folder that is written to, without its trailing slashes."""
    check_location(uri, DESTINATION_SCHEMES)
    if WILDCARDS & set(uri):
        raise ValueError(f"{uri!r} has a wildcard; name one folder")
    scheme = "file://" if uri.startswith("file://") else ""
    return scheme + (uri[len(scheme) :].rstrip("/") or "/")


FolderLocation = Annotated[str, AfterValidator(checked_folder)]
"""A field that holds the location of a folder that is written to."""


def check_absolute(path: str) -> None:
    """Refuse a path without a scheme that each process would read in its own way."""
    if not path.startswith("/"):
        raise ValueError(
            f"{shown_uri(path)!r} is relative, and on the cluster that is a folder which Ray deletes; write "
            "the absolute path"
        )


def check_model_folder(name: str) -> None:
    """Refuse the name of a model or tokenizer that is meant as a folder and isn't absolute.

    Hugging Face ids (``organisation/name``) and the locations of vLLM's loaders (``s3://``, ``gs://``) pass.
    """
    _check_text(name)
    match = _SCHEME.match(name)
    if match and match.group(1).lower() in _MODEL_SCHEMES:
        meant = local_path(name) if match.group(1) == "file" else "/".join(shown_uri(name).split("/")[3:5])
        remedy = f"write {meant!r}" if meant else "name a Hugging Face id or a folder"
        raise ValueError(f"{shown_uri(name)!r} is a URL, which vLLM does not load; {remedy}")
    remote_file = name.lower().endswith(".gguf") or name.lower().split(":")[0].endswith("-gguf")
    parts = name.split("/")
    is_folder = parts[0] in {".", ".."} or not parts[-1] or name.startswith("~")
    if not match and (is_folder or (len(parts) > 2 and not remote_file)):
        check_absolute(name)


def local_path(uri: str) -> str:
    """The path of a local location, with or without ``file://``."""
    if not uri.startswith("file://"):
        return uri
    return unquote("/" + uri.removeprefix("file://").removeprefix("localhost").lstrip("/"))


def plain(uri: str) -> str:
    """The one spelling that locations are compared by."""
    if _SCHEME.match(uri) and not uri.startswith("file://"):
        return uri.rstrip("/")
    # POSIX, and so normpath, keeps two slashes at the start; Linux reads them as one.
    return "/" + posixpath.normpath(local_path(uri)).lstrip("/")


def reads_into(source: str, folder: str) -> bool:
    """Whether the path `source` of a source takes in files of the later `folder`."""
    source, folder = plain(source), plain(folder)
    if "**" in source.split("/"):
        source = source.partition("/**")[0] or "/"
    elif WILDCARDS & set(source):
        return False
    return folder.startswith(source.rstrip("/") + "/")


def _check_text(uri: str) -> None:
    if _JINJA.search(uri):
        raise ValueError(f"{shown_uri(uri)!r} still has a Jinja expression; the field was not rendered")
    check_characters(uri)


def _check_login(uri: str, start: int) -> None:
    authority = re.split(r"[/?#]", uri[start:], maxsplit=1)[0]
    if "@" not in authority:
        return
    # What stands before the @ may be a secret, so it is not shown.
    meant = uri[:start] + uri[start:].partition("@")[2]
    raise ValueError(
        f"a connection or login stands before the host of {shown_uri(meant)!r}; remove it, and name the "
        "connection in aws_conn_id for S3"
    )


def check_between_slashes(uri: str, path: str) -> None:
    """Refuse names that no store resolves: empty ones, ``.`` and ``..``."""
    odd = next((name for name in path.split("/") if name in {"", ".", ".."}), None)
    if odd is not None:
        raise ValueError(f"{uri!r} has the name {odd!r} between its slashes; write it without that name")


def _check_file(uri: str) -> None:
    host, slash, rest = uri.removeprefix("file://").partition("/")
    if not slash:
        raise ValueError(f"{uri!r} names no path; write it as file:///path")
    if host not in {"", "localhost"}:
        raise ValueError(f"{uri!r} names {host!r} as a host; write file:///path")
    if "#" in rest:
        raise ValueError(f"{uri!r} has a '#', where a URL ends its path; write %23 for a name with it")
    if unquote(rest) != rest:
        _check_text(unquote(rest))


def _check_s3(uri: str) -> None:
    bucket, key = split_s3(uri) or ("", "")
    if not _BUCKET.fullmatch(bucket):
        raise ValueError(f"{uri!r} names no bucket that can exist; write it as s3://bucket/key")
    if key:
        check_between_slashes(uri, key.rstrip("/"))
