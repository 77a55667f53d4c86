# SPDX-License-Identifier: Apache-2.0
"""The dataset of a task instance: columns, files, and how to open it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

from airflow_provider_raybatch.contract.layout import DATA, manifest_file
from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.plugins.documents import MOST_LISTED, Manifest
from airflow_provider_raybatch.plugins.looking import Look
from airflow_provider_raybatch.plugins.pages.frame import Frame, head, nothing, page
from airflow_provider_raybatch.report.elements import Content, folded, node, number, section, table, words_of

_OPEN = 30


def dataset_page(look: Look, frame: Frame) -> str:
    """The page."""
    title = head(look, "Dataset")
    found = look.found.manifest
    if found is None:
        sentence = "This run of the task has published no dataset."
        return page(look, "dataset", frame, title, nothing(look, frame, sentence))
    manifest = found.content
    shown = (_counts(found), _opened(look, manifest), _columns(manifest), _files(found))
    return page(look, "dataset", frame, title, shown)


def code(*lines: str) -> Element:
    """Lines to be copied."""
    return node("div", node("code", "\n".join(lines), class_="copied"), class_="text", dir="ltr")


def opening(look: Look) -> Sequence[str]:
    """Lines of Python that open the dataset; of places that Airflow knows, none of a document's."""
    place = f"{look.destination}/{manifest_file(look.found.commit or '')}"
    login = f", aws_conn_id={look.aws_conn_id!r}" if look.aws_conn_id else ""
    return [
        "from airflow_provider_raybatch.dataset import open_dataset",
        f"dataset = open_dataset({place!r}{login})",
    ]


def _counts(found: Manifest) -> Element:
    manifest, counts = found.content, found.content.counts
    said = [
        count_of(counts.dataset_rows, "row"),
        count_of(len(manifest.columns), "column"),
        f"{count_of(found.files, 'file')} of {manifest.format} with {_size(found.bytes)}",
        f"{count_of(counts.error, 'failed row')} apart",
    ]
    return node("p", ", ".join(said), ".", class_="state")


def _size(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB" if size >= 2**20 else count_of(size, "byte")


def _opened(look: Look, manifest: BatchManifest) -> Element:
    folder = f"{look.destination}/{DATA}/{look.found.commit}"
    parquet = manifest.format == "parquet"
    extension = "parquet" if parquet else "jsonl"
    reader = "read_parquet" if parquet else "read_json"
    pyarrow = [
        "import pyarrow.dataset",
        f"dataset = pyarrow.dataset.dataset({folder!r}, format={'parquet' if parquet else 'json'!r})",
        "table = dataset.to_table()",
    ]
    pattern = f"{folder}/**/*.{extension}".replace("'", "''")
    duckdb = [
        "import duckdb",
        f"rows = duckdb.sql({f'''SELECT * FROM {reader}('{pattern}')'''!r})",
        "rows.show()",
    ]
    return section(
        "open",
        "How to open it",
        node("p", "In a task, a notebook or a script; it checks that no file is missing or damaged:"),
        code(*opening(look), "table = dataset.to_arrow()"),
        node("p", "With pyarrow, and the environment's own login for a bucket:"),
        code(*pyarrow),
        node("p", "With DuckDB:"),
        code(*duckdb),
    )


def _columns(manifest: BatchManifest) -> Content:
    rows = [(words_of(one.name), words_of(one.type)) for one in manifest.columns[:MOST_LISTED]]
    shown = table("Columns", ("Column", "Type"), rows)
    return _listed("columns", "Columns", len(manifest.columns), "column", shown)


def _files(found: Manifest) -> Content:
    rows = [
        (node("code", words_of(file.path)), number(f"{file.rows:,}"), number(f"{file.bytes:,}"))
        for file in found.content.files[:MOST_LISTED]
    ]
    shown = table("Files", ("Path in the dataset's folder", "Rows", "Bytes"), rows)
    return _listed("files", "Files", found.files, "file", shown)


def _listed(name: str, title: str, count: int, noun: str, shown: Element) -> Element:
    more = node("p", f"And {count_of(count - MOST_LISTED, f'more {noun}')}.") if count > MOST_LISTED else None
    return section(name, title, folded(count_of(count, noun), shown, more, is_open=count <= _OPEN))
