# SPDX-License-Identifier: Apache-2.0
"""Splits by the names that Hugging Face ``datasets`` knows."""

from __future__ import annotations

import pytest

from airflow_provider_raybatch.job.input.data_files import split_note


@pytest.mark.parametrize(
    ("files", "told", "example"),
    [
        (["data/dev-00000-of-00001.x", "data/train-00000-of-00001.x"], ["dev", "train"], None),
        (["train/0.x", "train/1.x", "val/0.x"], ["train", "validation"], "train/"),
        (["en/train/0.x", "fr/train/0.x", "fr/eval/0.x"], ["train", "test"], "en/train/0.x"),
        (["my-test.x", "my-train_1.x", "my-train_2.x"], ["test", "train"], "my-train_*"),
        (["training.x", "testing.x", "x.x"], ["train", "test"], "training.x"),
        (["train_test/a.x", "test.x", "other/b.x"], [], None),
        (["trained.x", "latest.x", "contest/dev2x.x"], [], None),
        (["data/part-00000-of-00002.x", "data/part-00001-of-00002.x"], [], None),
        (["test/a.x"], [], None),
    ],
)
def test_splits_are_told_by_their_names(files: list[str], told: list[str], example: str | None) -> None:
    for place in ("s3://lake/train/", "hf://datasets/acme/test@main/", "/dev/"):
        note = split_note([place + file for file in files], [10] * len(files))
        assert [name for name in ("dev", "train", "validation", "test") if f"{name} (" in note] == sorted(
            told, key=("dev", "train", "validation", "test").index
        )
        assert note.endswith(f"such as {place}{example}" if example else "")
