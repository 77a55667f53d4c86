# SPDX-License-Identifier: Apache-2.0
"""A folder as pyarrow's file system: data is reached as the manifest is, with the same credentials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_raybatch.storage.folder import Folder


def arrow_filesystem(folder: Folder) -> Any:
    """`folder` for pyarrow. Parquet files are checked by their checksums."""
    from pyarrow import PythonFile, fs

    from airflow_provider_raybatch.storage.checksum import checked_footer

    class Handler(fs.FileSystemHandler):  # type: ignore[misc] # pyarrow has no types here
        """Reading alone."""

        def get_type_name(self) -> str:
            return "raybatch"

        def normalize_path(self, path: str) -> str:
            return path

        def get_file_info(self, paths: list[str]) -> list[Any]:
            return [self._info(path) for path in paths]

        def open_input_file(self, path: str) -> Any:
            stream = folder.open(path)
            if path.endswith(".parquet"):
                try:
                    checked_footer(stream, needed=False)
                except OSError as error:
                    raise OSError(f"{path}: {error}") from error
                stream.seek(0)
            return PythonFile(stream, mode="r")

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
