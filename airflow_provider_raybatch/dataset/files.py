# SPDX-License-Identifier: Apache-2.0
"""The files of a finished dataset, compared with its manifest; of output files, their columns, too.

Arrow takes the columns of JSON from the first bytes that it reads. Answers differ: most have null `logprobs`
where some have an object.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_raybatch.contract.arguments.openai_batch import OPENAI_BATCH
from airflow_provider_raybatch.contract.layout import HIVE_NULL
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.dataset.derived import DerivedManifest
from airflow_provider_raybatch.dataset.errors import DatasetError, needing, reading

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as pa_dataset

    from airflow_provider_raybatch.contract.secrets import AwsCredentials
    from airflow_provider_raybatch.storage.folder import Folder


def answer_schema(line: bytes) -> pa.Schema:
    """The schema of output files.

    :param line: one of them, since it tells chats and prompts from texts to embed.
    """
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    body = _body_of(line)
    has_vectors = "data" in body
    if has_vectors:
        packed = isinstance(body["data"][0]["embedding"], str)
        vector = [("object", text), ("index", whole), ("embedding", text if packed else pa.list_(number))]
        answers = ("data", pa.list_(pa.struct(vector)))
    else:
        answers = ("choices", pa.list_(_choice()))
    usage = [("prompt_tokens", whole), ("total_tokens", whole)]
    if not has_vectors:
        usage += [
            ("completion_tokens", whole),
            ("prompt_tokens_details", pa.struct([("cached_tokens", whole)])),
            ("completion_tokens_details", pa.struct([("reasoning_tokens", whole)])),
        ]
    named = [] if has_vectors else [("id", text), ("created", whole)]
    fields = [*named, ("object", text), ("model", text), answers, ("usage", pa.struct(usage))]
    response = [("status_code", whole), ("request_id", text), ("body", pa.struct(fields))]
    columns = [("id", text), ("custom_id", text), ("response", pa.struct(response)), ("error", text)]
    return pa.schema(columns)


def _choice() -> pa.StructType:
    """A choice of either endpoint. The older one's `top_logprobs` have a field a token, and are left out."""
    import pyarrow as pa

    text, whole, number = pa.string(), pa.int64(), pa.float64()
    function = pa.struct([("name", text), ("arguments", text)])
    call = pa.struct([("id", text), ("type", text), ("function", function)])
    message = pa.struct([
        ("role", text),
        ("content", text),
        ("refusal", text),
        ("reasoning_content", text),
        ("tool_calls", pa.list_(call)),
    ])
    likely = [("token", text), ("logprob", number), ("bytes", pa.list_(whole))]
    token = pa.struct([*likely, ("top_logprobs", pa.list_(pa.struct(likely)))])
    logprobs = pa.struct([
        ("content", pa.list_(token)),
        ("tokens", pa.list_(text)),
        ("token_logprobs", pa.list_(number)),
        ("text_offset", pa.list_(whole)),
    ])
    return pa.struct([
        ("index", whole),
        ("text", text),
        ("message", message),
        ("logprobs", logprobs),
        ("finish_reason", text),
    ])


def _body_of(line: bytes) -> dict[str, Any]:
    return dict(json.loads(line)["response"]["body"])


Manifest = TypeVar("Manifest", bound=BatchManifest | DerivedManifest)

_BATCH_ROWS = 4096
_BATCH_BYTES = 16 * 1024 * 1024
_MOST_BYTES = 2**31 - 1
"""Of a block, in Arrow."""
_BLOCK = 64 * 1024 * 1024
"""Bytes of JSONL in memory for each file that is read; a longer row can't be read."""


class DatasetFiles(Generic[Manifest]):
    """The files of one commit.

    :param manifest: what it holds.
    :param credentials: for ``s3://``; by default the environment's own identity.
    """

    def __init__(self, manifest: Manifest, credentials: AwsCredentials | None = None) -> None:
        from airflow_provider_raybatch.storage.folder import folder

        self.manifest = manifest
        self.credentials = credentials
        self._folder: Folder = folder(manifest.uri, credentials)

    def __repr__(self) -> str:
        counts = f"{count_of(self.rows, 'row')} in {count_of(len(self.manifest.files), 'file')}"
        return f"<{type(self).__name__} {self.manifest.uri}: {counts}>"

    @property
    def rows(self) -> int:
        """Number of rows, by the manifest."""
        manifest = self.manifest
        return manifest.counts.dataset_rows if isinstance(manifest, BatchManifest) else manifest.rows

    @property
    def files(self) -> list[str]:
        """Absolute locations of the files, in the order of the dataset."""
        return [f"{self._folder.uri}/{file.path}" for file in self.manifest.files]

    def check_files(self) -> None:
        """Compare names and sizes in the folder with the manifest's.

        :raises DatasetError: a file is missing, of another size, or one too many.
        """
        there = {entry.path: entry.size for entry in self._folder.list()}
        listed = {file.path: file.bytes for file in self.manifest.files}
        for path, size in listed.items():
            if path not in there:
                raise DatasetError(f"files: {path!r} of {self.manifest.uri} is gone; make the dataset again.")
            if there[path] != size:
                raise DatasetError(
                    f"files: {path!r} of {self.manifest.uri} has {count_of(there[path], 'byte')}, but its "
                    f"manifest says {size:,}; make the dataset again."
                )
        if extra := sorted(set(there) - set(listed)):
            raise DatasetError(
                f"files: {extra[0]!r} in {self.manifest.uri} is not in the manifest; remove it, readers of "
                "the folder would take it for data."
            )

    def arrow_dataset(self) -> pa_dataset.Dataset:
        """A lazy Arrow dataset. :raises DatasetError: pyarrow is missing."""
        with needing("pyarrow"):
            import pyarrow.dataset as pa_dataset
        if self.manifest.format != "parquet" and not self.rows:
            return pa_dataset.dataset(self._no_rows())
        if self.manifest.format == OPENAI_BATCH:
            return self._answers()
        paths, place = [file.path for file in self.manifest.files], arrow_filesystem(self._folder)
        if self.manifest.format == "jsonl":
            with reading(self.manifest.uri):
                schema = self._json_schema()
            return pa_dataset.dataset(paths, schema=schema, filesystem=place, format=self._json(_BLOCK))
        parquet = pa_dataset.ParquetFileFormat(pre_buffer=True, page_checksum_verification=True)
        partitions = self._partitioning()
        with reading(self.manifest.uri):
            return pa_dataset.dataset(paths, filesystem=place, format=parquet, partitioning=partitions)

    def _partitioning(self) -> Any:
        """Of columns that are in the paths; the single file of an empty dataset has none there."""
        import pyarrow as pa
        import pyarrow.dataset as pa_dataset

        if not isinstance(self.manifest, DerivedManifest) or not self.manifest.partitioned_by:
            return None
        kinds = {one.name: one.type for one in self.manifest.columns}
        schema = pa.schema([(name, pa.type_for_alias(kinds[name])) for name in self.manifest.partitioned_by])
        return pa_dataset.HivePartitioning(schema, null_fallback=HIVE_NULL)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all rows, in the order of the dataset and in bounded memory.

        :raises DatasetError: a file is damaged.
        """
        lazy = self.arrow_dataset()
        schema = lazy.schema.remove_metadata()
        with reading(self.manifest.uri):
            for fragment in lazy.get_fragments():
                size = _batch_rows(fragment)
                options = {"batch_size": size, "batch_readahead": 0, "use_threads": False}
                for batch in fragment.to_batches(schema=schema, columns=list(columns), **options):
                    if batch.num_rows:
                        yield batch

    def _json(self, block: int) -> Any:
        """JSONL that is read in blocks of so many bytes, or of a whole file."""
        import pyarrow.dataset as pa_dataset
        from pyarrow.json import ReadOptions

        most = max(file.bytes for file in self.manifest.files)
        return pa_dataset.JsonFileFormat(read_options=ReadOptions(block_size=min(most + 1, block)))

    def _json_schema(self) -> pa.Schema:
        """The columns of JSONL, of as many whole files as it takes to find no column that is null in all."""
        import pyarrow as pa
        import pyarrow.dataset as pa_dataset

        found, place = pa.schema([]), arrow_filesystem(self._folder)
        for file in self.manifest.files:
            more = pa_dataset.dataset(file.path, filesystem=place, format=self._json(_MOST_BYTES)).schema
            try:
                found = pa.unify_schemas([found, more], promote_options="permissive")
            except pa.ArrowException:  # types that have nothing in common
                break
            if not any("null" in str(kind) for kind in found.types):
                break
        return found

    def _answers(self) -> pa_dataset.Dataset:
        """OpenAI's output files, each read as one block, since a line may be longer than any block."""
        import pyarrow.dataset as pa_dataset
        from pyarrow.json import ParseOptions, ReadOptions

        first, most = self.manifest.files[0], max(file.bytes for file in self.manifest.files)
        with reading(self.manifest.uri), self._folder.open(first.path, first.bytes) as lines:
            schema = answer_schema(lines.readline())
        return pa_dataset.dataset(
            [file.path for file in self.manifest.files],
            schema=schema,
            filesystem=arrow_filesystem(self._folder),
            format=pa_dataset.JsonFileFormat(
                read_options=ReadOptions(block_size=min(most + 1, _MOST_BYTES)),
                parse_options=ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
            ),
        )

    def _no_rows(self) -> pa.Table:
        """Of an empty JSONL file, where Arrow finds no columns."""
        import pyarrow as pa

        def kind(name: str) -> pa.DataType:
            try:
                return pa.type_for_alias(name)
            except ValueError:  # such as a list
                return pa.string()

        return pa.schema([(one.name, kind(one.type)) for one in self.manifest.columns]).empty_table()

    def check_rows(self, rows: int) -> None:
        """Compare the number of rows that a reader found with the manifest's.

        :raises DatasetError: they differ.
        """
        if rows != self.rows:
            raise DatasetError(
                f"rows: {self.manifest.uri} has {rows:,}, but its manifest says {self.rows:,}; its files "
                "were changed, so run the batch inference again."
            )


def _batch_rows(fragment: Any) -> int:
    """Rows per batch; fewer if rows are large, such as documents of megabytes."""
    groups = getattr(fragment, "row_groups", ())
    widest = max((group.total_byte_size / max(1, group.num_rows) for group in groups), default=1.0)
    return int(min(_BATCH_ROWS, max(1.0, _BATCH_BYTES / max(1.0, widest))))


def arrow_filesystem(folder: Folder) -> Any:
    """`folder` for pyarrow. Parquet files are checked by their checksums."""
    from pyarrow import fs

    class Handler(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types here
        """Reading alone."""

        def get_type_name(self) -> str:
            return "raybatch"

        def normalize_path(self, path: str) -> str:
            return path

        def get_file_info(self, paths: list[str]) -> list[Any]:
            return [self._info(path) for path in paths]

        def open_input_file(self, path: str) -> Any:
            return _opened(folder, path)

        open_input_stream = open_input_file

        def _info(self, path: str) -> Any:
            entry = folder.head(path)
            if entry is None:
                return fs.FileInfo(path, fs.FileType.NotFound)
            return fs.FileInfo(path, fs.FileType.File, size=entry.size)

        def _no_writing(self, *args: object) -> Any:
            raise NotImplementedError("A committed dataset is only read.")

        get_file_info_selector = create_dir = delete_dir = delete_dir_contents = _no_writing
        delete_root_dir_contents = delete_file = move = copy_file = _no_writing
        open_output_stream = open_append_stream = _no_writing

    return fs.PyFileSystem(Handler())


def _opened(folder: Folder, path: str) -> Any:
    from pyarrow import PythonFile

    from airflow_provider_raybatch.storage.file import checked_footer

    stream = folder.open(path)
    if path.endswith(".parquet"):
        try:
            checked_footer(stream, needed=False)
        except OSError as error:
            raise OSError(f"{path}: {error}") from error
        stream.seek(0)
    return PythonFile(stream, mode="r")
