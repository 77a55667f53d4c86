# SPDX-License-Identifier: Apache-2.0
"""Keys of rows with images, before an engine starts: by what an image is, and not where it lies."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np

from airflow_provider_raybatch.job.reuse.row_keys import RequestKeys, request_keys
from airflow_provider_raybatch.job.work import in_sequence, work
from tests.support.attempts import GREEDY, Attempt

CONTENT, OTHER = b"a picture", b"another"
IMAGES: dict[str, Any] = {"prompt": "What is it?", "images": "photo", "sampling": GREEDY}


def keys_of(attempt: Attempt) -> RequestKeys:
    work_of_all = work(attempt.source, 16, np.zeros(attempt.source.rows, np.bool_))
    (some,) = request_keys(attempt.job, work_of_all, 1, in_sequence)
    return some


def test_image_under_another_name_is_the_same_request(tmp_path: Path) -> None:
    for name, content in (("a.png", CONTENT), ("b.png", OTHER), ("copy.png", CONTENT)):
        (tmp_path / name).write_bytes(content)
    held = f"data:image/png;base64,{base64.b64encode(CONTENT).decode()}"
    photos = [*(f"{tmp_path}/{name}.png" for name in ("a", "b", "copy")), held, f"file://{tmp_path}/a.png"]
    missing = [f"{tmp_path}/no.png", "/etc/hostname"]
    attempt = Attempt(tmp_path, [{"photo": photo} for photo in [*photos, *missing]], **IMAGES)
    found = keys_of(attempt)
    assert found.ordinals.tolist() == [0, 1, 2, 3, 4]  # the others are asked for, and fail then
    keys = found.keys.tolist()
    assert keys[0] == keys[2] == keys[3] == keys[4] != keys[1]


def test_changed_file_is_another_request(tmp_path: Path) -> None:
    rows = [{"photo": f"{tmp_path}/a.png"}]
    made = []
    for content in (CONTENT, OTHER, CONTENT):
        (tmp_path / "a.png").write_bytes(content)
        made += keys_of(Attempt(tmp_path, rows, **IMAGES)).keys.tolist()
    assert made[0] == made[2] != made[1]


def test_max_image_bytes_and_max_image_pixels_keep_rows(tmp_path: Path) -> None:
    """Parts without images can't be published with them, so that those are made again, without an engine."""
    held = f"data:image/png;base64,{base64.b64encode(CONTENT).decode()}"
    rows = [{"photo": held}, {"photo": None}]
    Attempt(tmp_path, rows, **IMAGES).answer([0, 1])
    limits = {"image_roots": ["/photos"], "max_image_bytes": 99, "max_image_pixels": 99, "image_timeout": 3}
    assert Attempt(tmp_path, rows, **IMAGES, **limits).asked == []
    kept = Attempt(tmp_path, rows, **IMAGES, keep_images=True)
    assert kept.asked == []
    assert len(kept.write_parts()) == 1
