# SPDX-License-Identifier: Apache-2.0
"""What ``datasets`` has saved: the files and the order that its state names, and splits by their names."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from airflow_provider_raybatch.contract.arguments.data import InputArguments
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.input.layouts import split_note
from airflow_provider_raybatch.job.input.listing import Listing, resolve
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.s3_folder import S3Folder
from tests.support.reading import names_of, read_all
from tests.support.saved_dataset import as_stream, save_to_disk

SHARDS = [pa.table({"n": range(start, start + 1500)}) for start in (0, 1500)]


def listed(place: Folder, path: str) -> Listing:
    credentials = place.credentials if isinstance(place, S3Folder) else None
    return resolve(InputArguments(source=[f"{place.uri}/{path}"]), credentials)


def test_rows_are_those_of_the_last_save(folder: Folder) -> None:
    """An earlier save of more shards, and a cache of ``map``, have left files."""
    save_to_disk(folder, "ds", [SHARDS[1], SHARDS[0], SHARDS[0]])
    save_to_disk(folder, "ds", SHARDS)
    folder.write("ds/cache-0123456789abcdef.arrow", as_stream(SHARDS[0]))
    credentials = folder.credentials if isinstance(folder, S3Folder) else None
    chunks, rows, table = read_all(listed(folder, "ds"), 400, credentials=credentials)
    assert [row["n"] for row in rows if isinstance(row, dict)] == list(range(3000))
    assert table == rows
    assert [chunk.rows for chunk in chunks] == [400, 400, 200, 400, 100] * 2


def test_a_dataset_without_rows(folder: Folder) -> None:
    save_to_disk(folder, "ds", [])
    assert listed(folder, "ds").files == ()


def test_one_split_is_named(folder: Folder) -> None:
    for split in ("train", "test"):
        save_to_disk(folder, f"ds/{split}", SHARDS[:1])
    folder.write("ds/dataset_dict.json", json.dumps({"splits": ["train", "test"]}).encode())
    assert names_of(folder, "ds/test") == ["ds/test/data-00000-of-00001.arrow"]
    assert len(names_of(folder, "ds/train", "ds/test")) == len(names_of(folder, "ds/*/*.arrow")) == 2
    with pytest.raises(PreflightError) as error:
        listed(folder, "ds")
    at = f"{folder.uri}/ds"
    assert str(error.value) == (
        f"source: {at} is a DatasetDict with the splits train, test; name the folder of one, such "
        f"as {at}/train."
    )


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            {"_indices_data_files": [{"filename": "indices.arrow"}]},
            "source: {at} was saved with an indices mapping, as old versions of datasets do, so its files "
            "have rows that the dataset lacks; load it with datasets, and save it again.",
        ),
        (
            {"_data_files": [{"filename": "data-00007-of-00009.arrow"}]},
            "source: {at} lacks data-00007-of-00009.arrow, which its state.json lists; copy or save the "
            "dataset whole.",
        ),
        (
            {"_data_files": [{"filename": "../x.arrow"}]},
            "source: {at} lacks ../x.arrow, which its state.json",
        ),
    ],
)
def test_what_can_not_be_read_is_refused(folder: Folder, state: dict[str, object], sentence: str) -> None:
    save_to_disk(folder, "ds", SHARDS, **state)
    with pytest.raises(PreflightError) as error:
        listed(folder, "ds")
    assert str(error.value).startswith(sentence.format(at=f"{folder.uri}/ds"))


def test_a_state_that_is_cut_off_is_refused(folder: Folder) -> None:
    save_to_disk(folder, "ds", SHARDS)
    folder.write("ds/state.json", b'{"_data_files": [')
    with pytest.raises(
        PreflightError, match=r"has a state\.json that is not a JSON object; save the dataset"
    ):
        listed(folder, "ds")


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (["data/dev-00000-of-00001.x", "data/train-00000-of-00001.x"], ["dev", "train"]),
        (["train/0.x", "train/1.x", "val/0.x"], ["train", "validation"]),
        (["en/train/0.x", "fr/train/0.x", "fr/eval/0.x"], ["train", "test"]),
        (["my-test.x", "my-train_1.x", "my-train_2.x"], ["test", "train"]),
        (["training.x", "testing.x", "x.x"], ["train", "test"]),
        (["train_test/a.x", "test.x", "other/b.x"], []),
        (["trained.x", "latest.x", "contest/dev2x.x"], []),
        (["data/part-00000-of-00002.x", "data/part-00001-of-00002.x"], []),
        (["test/a.x"], []),
    ],
)
def test_splits_are_told_by_their_names(files: list[str], told: list[str]) -> None:
    for place in ("s3://lake/train/", "hf://datasets/acme/test@main/", "/dev/"):
        note = split_note([place + file for file in files], [10] * len(files))
        assert [name for name in ("dev", "train", "validation", "test") if f"{name} (" in note] == sorted(
            told, key=("dev", "train", "validation", "test").index
        )
        assert note.endswith("; to read one, name its files") == bool(told)
