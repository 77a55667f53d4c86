# SPDX-License-Identifier: Apache-2.0
"""The files of a source: its paths, folders and globs resolved once, in a fixed order."""

from __future__ import annotations

import contextlib
import fnmatch
import json
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from pydantic import SecretStr

from airflow_provider_raybatch.contract.arguments.data import CsvOptions, InputArguments, SourceFormat
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.layout import JOURNAL
from airflow_provider_raybatch.contract.location import WILDCARDS, local_path, split_hub, split_s3
from airflow_provider_raybatch.contract.manifest import parse_entry, parse_manifest
from airflow_provider_raybatch.contract.secrets import AwsCredentials
from airflow_provider_raybatch.contract.text import count_of, hex_digest, nearest, shown_uri
from airflow_provider_raybatch.job.input import http
from airflow_provider_raybatch.job.input.hub import HubFolder, open_hub, refuse_source_out_of_reach
from airflow_provider_raybatch.job.input.layouts import Kinds, data_paths, refuse_tables, saved_files
from airflow_provider_raybatch.storage.errors import RefusedError, StorageError, error_prefix
from airflow_provider_raybatch.storage.file import Entry
from airflow_provider_raybatch.storage.folder import LocalFolder, ReadableFolder, folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder

_EXTENSIONS: dict[str, SourceFormat] = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".arrow": "arrow",
    ".feather": "arrow",
}
_WORKBOOKS = (".xls", ".xlsx", ".xlsm", ".xlsb")
_Secrets: TypeAlias = tuple[AwsCredentials | None, SecretStr | None]
"""For S3, and for the Hugging Face hub."""


@dataclass(frozen=True)
class SourceFile:
    """One file.

    :param version: its etag or modification time: it changes with the content.
    :param pinned: URI of the same file at a commit, for one on the Hugging Face hub.
    :param csv: how it is written, if it is CSV.
    :param content: the whole content of a small file, which travels with the job.
    :param token: for the Hugging Face hub, if one came with the job.
    """

    uri: str
    size: int
    version: str
    pinned: str = ""
    csv: CsvOptions = field(default_factory=CsvOptions)
    content: bytes | None = field(default=None, compare=False, repr=False)
    token: SecretStr | None = field(default=None, compare=False, repr=False)

    @property
    def place(self) -> str:
        """The URI to read."""
        return self.pinned or self.uri

    @property
    def shown(self) -> str:
        """Its URI as a message may show it."""
        return shown_uri(self.uri)

    @property
    def compression(self) -> str | None:
        """``gzip``, ``zstd`` or ``None``, by the extension."""
        lower = _name_of(self.uri).lower()
        return "gzip" if lower.endswith(".gz") else "zstd" if lower.endswith(".zst") else None

    @property
    def delimiter(self) -> str:
        """Of CSV."""
        return self.csv.delimiter or ("\t" if _unpacked_name(self.uri).endswith(".tsv") else ",")

    def options_with(self, **changes: str) -> str:
        """`csv_options` as a message says to set it."""
        return f"csv_options={ {**self.csv.model_dump(mode='json', exclude_defaults=True), **changes} }"

    @property
    def other_encoding(self) -> str | None:
        """Of CSV; ``None`` for UTF-8."""
        return None if self.csv.encoding in {"utf-8", "utf-8-sig"} else self.csv.encoding


@dataclass(frozen=True)
class Listing:
    """The frozen input: files in their order, all of one format.

    :param left_out: URIs of files beside them that are not data.
    """

    format: SourceFormat
    files: tuple[SourceFile, ...]
    left_out: tuple[str, ...] = ()

    @property
    def has_groups(self) -> bool:
        """Whether the files are row groups or batches with Arrow types, and not lines of text."""
        return self.format in {"parquet", "arrow"}

    @property
    def commits(self) -> list[str]:
        """The commit of each dataset of the Hugging Face hub, a sentence each."""
        pairs = [(split_hub(file.uri), split_hub(file.pinned)) for file in self.files if file.pinned]
        found = (f"{at.written} is read at commit {pinned.revision}" for at, pinned in pairs if at and pinned)
        return list(dict.fromkeys(found))

    @property
    def digest(self) -> str:
        """32 hex digits that change with any file's name, size or version, with their order and options."""
        files = [(file.uri, file.size, file.version) for file in self.files]
        options = [file.csv.model_dump() for file in self.files[:1]]
        return hex_digest(json.dumps([self.format, files, options]))


def resolve(
    wanted: InputArguments,
    credentials: AwsCredentials | None,
    token: SecretStr | None = None,
) -> Listing:
    """Find the files of the input's `source`.

    Paths keep the order of the spec; the files of a folder or glob are sorted by name. In folders, names that
    begin with ``.`` or ``_`` are left out (bookkeeping of Spark, Hive and of this package). A folder with a
    dataset of this package means the files of its newest manifest; one that ``datasets`` has saved means
    those of its state. Metadata of the Hugging Face hub is left out.

    :param token: for the Hugging Face hub.
    :raises PreflightError: nothing there, mixed or unknown formats, or a folder or glob of a table's files.
    """
    files: list[SourceFile] = []
    left_out: list[str] = []
    known: Kinds = {}
    formats: dict[SourceFormat, str] = {}
    for at in list(filter(None, map(split_hub, wanted.source)))[:1]:
        refuse_source_out_of_reach(at.written)
    for path in wanted.source:
        if http.is_url(path):
            found = [SourceFile(path, *http.size_and_version(path))]
        else:
            with error_prefix("source"):
                found = _expand(path, wanted.format, (credentials, token), known, left_out)
        for file in found:
            formats.setdefault(_checked_format(file, wanted), file.shown)
            files.append(file if wanted.csv_options is None else replace(file, csv=wanted.csv_options))
    _check_together(files, formats)
    return Listing(next(iter(formats), wanted.format or "parquet"), tuple(files), tuple(left_out))


def _check_together(files: Sequence[SourceFile], formats: Mapping[SourceFormat, str]) -> None:
    if len(formats) > 1:
        examples = " and ".join(f"{uri} is {kind}" for kind, uri in formats.items())
        raise PreflightError(
            f"source: its files have different formats ({examples}); name files of one format or set format."
        )
    for uri, times in Counter(file.uri for file in files).most_common(1):  # none of an empty saved dataset
        if times > 1:
            raise PreflightError(
                f"source: {shown_uri(uri)} is named {count_of(times, 'time')}; its rows would come out as "
                "often."
            )


def _expand(
    path: str, wanted: SourceFormat | None, secrets: _Secrets, known: Kinds, left_out: list[str]
) -> list[SourceFile]:
    base, pattern = _split_wildcards(path)
    place, inside = open_place(base, *secrets)
    # First as it is written: names such as "sales [1].csv" are common.
    as_written = "/".join(part for part in (inside, pattern) if part)
    # With rights for a part of a bucket, asking for a missing key may be refused; the listing shows it.
    with contextlib.suppress(StorageError if pattern else RefusedError):
        if (single := place.head(as_written)) is not None:
            return [_file(place, single)]
    entries = [entry for entry in _below(place, inside, pattern) if not _is_marker(place, entry)]
    if not entries:
        near = _nearest(place, inside)
        remedy = (
            f"did you mean {near}?" if near else "check the path, and that the cluster's nodes can see it."
        )
        raise PreflightError(f"source: nothing is at {path}; {remedy}")
    if pattern is None and (published := _published(place, inside, entries)) is not None:
        return published
    if pattern is None and (saved := saved_files(place, inside, entries)) is not None:
        return [_file(place, entry) for entry in saved]
    found, others = _data_in(place, inside, pattern, wanted, entries)
    left_out += others
    if not found:
        what = "no file matches" if pattern else "no Parquet, JSONL, CSV or Arrow file is in"
        there = count_of(len(entries), "other file is", "other files are")
        raise PreflightError(f"source: {what} {path} ({there} there); check the path or set format.")
    listed = inside if pattern is None or pattern.startswith("**/") else None
    refuse_tables(path, place, [entry.path for entry in entries], [e.path for e in found], listed, known)
    return [_file(place, entry) for entry in found]


def _data_in(
    place: ReadableFolder,
    inside: str,
    pattern: str | None,
    wanted: SourceFormat | None,
    entries: Sequence[Entry],
) -> tuple[list[Entry], list[str]]:
    """The files that a folder or a glob means, and the URIs of files beside them that are not data."""
    start = len(inside) + 1 if inside else 0

    def is_meant(name: str) -> bool:
        names = name.split("/")
        if pattern is not None:
            return _match_parts(names, pattern.split("/"))
        return not any(map(_is_hidden, names)) and (wanted is not None or _format_of(name) is not None)

    meant = [entry for entry in entries if is_meant(entry.path[start:])]
    is_folder_of_hub = isinstance(place, HubFolder) and pattern is None and wanted is None
    named, paths = (pattern or "").rpartition("/")[2], [entry.path for entry in meant]
    data = set(data_paths(paths, named, _format_of if is_folder_of_hub else None))
    others = [_uri(place, entry.path) for entry in meant if entry.path not in data]
    return [entry for entry in meant if entry.path in data], others


def _nearest(place: ReadableFolder, inside: str) -> str | None:
    """The name of a file or folder beside a missing one that is most like its own, quoted.

    macOS writes names in Unicode's form NFD, and most else in NFC: those that look the same are escaped.
    """
    parent, _, name = inside.rpartition("/")
    beside: list[str] = []
    with contextlib.suppress(StorageError):
        beside = [entry.path.rpartition("/")[2] for entry in place.list(parent, 1)]
        beside += place.folders(parent) if isinstance(place, (LocalFolder, S3Folder)) else []
    forms = {unicodedata.normalize("NFC", one): one for one in beside if one != name}
    if same := forms.get(unicodedata.normalize("NFC", name)):
        return ascii(same)
    near = nearest(name, beside)
    return near and repr(near)


def _below(place: ReadableFolder, inside: str, pattern: str | None) -> Sequence[Entry]:
    """Files below a folder that `pattern` may match; in S3 only those of folders that it matches."""
    first, _, rest = (pattern or "").partition("/")
    if not rest or first == "**" or not isinstance(place, S3Folder):
        parts = pattern.split("/") if pattern else ["**"]
        return place.list(
            inside, None if "**" in parts else len(parts)
        )  # deeper may be unreadable or endless
    names = [name for name in place.folders(inside) if _match_parts([name], [first])]
    return [entry for name in names for entry in _below(place, f"{inside}/{name}".lstrip("/"), rest)]


def _is_marker(place: ReadableFolder, entry: Entry) -> bool:
    """Whether this is an empty object that stands for a folder of S3: ``a/b/`` or ``a/b_$folder$``.

    Listings drop the slash at the end of a key, so :meth:`Folder.head` does not find such an object.
    """
    if entry.size or not isinstance(place, S3Folder):
        return False
    if entry.path.endswith("_$folder$"):
        return True
    with contextlib.suppress(RefusedError):  # for a folder's own marker, which lies above what may be listed
        return place.head(entry.path) is None
    return True


def open_place(
    location: str, credentials: AwsCredentials | None, token: SecretStr | None = None
) -> tuple[ReadableFolder, str]:
    """The bucket, the repository or the disk's root of a location, and its path there."""
    if at := split_hub(location):
        return open_hub(at, token), at.path
    if s3 := split_s3(location):
        bucket, key = s3
        return S3Folder(bucket, "", credentials), key.rstrip("/")
    absolute = folder(local_path(location)).uri
    return folder("/"), absolute.strip("/")


def _file(place: ReadableFolder, entry: Entry) -> SourceFile:
    found = SourceFile(_uri(place, entry.path), entry.size, entry.version)
    if isinstance(place, HubFolder):
        return replace(found, pinned=place.pinned(entry.path), token=place.token)
    return found


def _uri(place: ReadableFolder, path: str) -> str:
    return f"{place.uri.rstrip('/')}/{path}"


def _published(place: ReadableFolder, inside: str, entries: Sequence[Entry]) -> list[SourceFile] | None:
    """The files of the newest dataset, where the folder is a destination of this package."""
    prefix = f"{inside}/" if inside else ""
    journal = [
        entry.path
        for entry in entries
        if entry.path.startswith(f"{prefix}{JOURNAL}/") and entry.path.endswith(".json")
    ]
    if not journal:
        return None
    last = max(journal)
    published = parse_entry(place.read(last), f"source: {_uri(place, last)}").published
    if published is None:
        return None
    at = prefix + published.manifest
    manifest = parse_manifest(place.read(at), f"source: {_uri(place, at)}")
    # Relative to here and not to the manifest's uri, so that a dataset may be moved as a whole.
    data = prefix + "/".join(manifest.uri.rsplit("/", 2)[-2:])
    there = {entry.path: entry for entry in entries}
    missing = next((file.path for file in manifest.files if f"{data}/{file.path}" not in there), None)
    if missing is not None:
        raise PreflightError(
            f"source: {_uri(place, data)} lacks {missing}, which its manifest lists; make the dataset again."
        )
    found = [there[f"{data}/{file.path}"] for file in manifest.files]
    return [_file(place, entry) for entry in found]


def _split_wildcards(path: str) -> tuple[str, str | None]:
    """``/a/b*/c`` becomes ``/a`` and ``b*/c``; the pattern is ``None`` without a wildcard."""
    parts = path.split("/")
    for position, part in enumerate(parts):
        if WILDCARDS & set(part):
            base = "/".join(parts[:position]) or ("/" if path.startswith("/") else ".")
            return base, "/".join(parts[position:])
    return path.rstrip("/") or path, None


def _match_parts(names: list[str], patterns: list[str]) -> bool:
    """As in a shell: ``*`` stays inside one path component, ``**`` spans any number of them.

    Where a shell's patterns skip hidden names, these skip bookkeeping, unless they begin with its first sign.
    """
    if not patterns:
        return not names
    if patterns[0] == "**":
        # As the last part, it is every file below.
        ends = not patterns[1:] and not any(_is_hidden(name) for name in names)
        skip = _match_parts(names[1:], patterns) if names and not _is_hidden(names[0]) else False
        return ends or _match_parts(names, patterns[1:]) or skip
    if not names or (_is_hidden(names[0]) and names[0][0] != patterns[0][:1]):
        return False
    return fnmatch.fnmatchcase(names[0], patterns[0]) and _match_parts(names[1:], patterns[1:])


def _is_hidden(name: str) -> bool:
    # As in Spark, `_day=1` is a partition.
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def _name_of(uri: str) -> str:
    """Without the query of a URL, which is not part of the file's name."""
    return uri.partition("?")[0] if http.is_url(uri) else uri


def _checked_format(file: SourceFile, wanted: InputArguments) -> SourceFormat:
    kind = wanted.format or _format_of(file.uri)
    if kind is None:
        raise PreflightError(_unknown(file))
    if wanted.csv_options is not None and kind != "csv":
        raise PreflightError(
            f"csv_options: {file.shown} is {kind}, not csv; leave csv_options out, or set format='csv'."
        )
    return kind


def _unknown(file: SourceFile) -> str:
    if file.uri.lower().endswith(_WORKBOOKS):
        return f"source: {file.shown} is an Excel workbook by its name; save it as CSV."
    return f"source: {file.shown} has no known extension; set format to 'parquet', 'jsonl', 'csv' or 'arrow'."


def _format_of(name: str) -> SourceFormat | None:
    unpacked = _unpacked_name(name)
    return next((kind for extension, kind in _EXTENSIONS.items() if unpacked.endswith(extension)), None)


def _unpacked_name(uri: str) -> str:
    return _name_of(uri).lower().removesuffix(".gz").removesuffix(".zst")
