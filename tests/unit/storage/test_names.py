# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from airflow_provider_raybatch.storage.operations import first_names


def test_names_are_listed_in_order_from_any_on(folder: Folder) -> None:
    assert first_names(folder, "keys", 5) == []
    for name in ("b", "d", "a", "c"):
        folder.write(f"keys/{name}", b"x")
    folder.write("keys2/other", b"x")
    assert first_names(folder, "keys", 2) == ["a", "b"]
    assert first_names(folder, "keys") == ["a", "b", "c", "d"]
    assert first_names(folder, "keys", 9) == ["a", "b", "c", "d"]
    assert first_names(folder, "keys", 2, "a") == ["b", "c"]
    assert first_names(folder, "keys", 2, "bb") == ["c", "d"]
    assert first_names(folder, "keys", 2, "d") == []


def test_half_written_files_have_no_name(disk: LocalFolder) -> None:
    for name in (".raybatch-x", "a"):
        disk.write(f"keys/{name}", b"x")
    assert first_names(disk, "keys", 5) == ["a"]


def test_a_path_that_leads_out_has_no_names(disk: LocalFolder) -> None:
    with pytest.raises(RaybatchError, match="leads out"):
        first_names(disk, "../keys", 5)
