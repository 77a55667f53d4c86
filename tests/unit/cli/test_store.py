# SPDX-License-Identifier: Apache-2.0
"""The figures of a response store."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.cli.definition import main
from airflow_provider_raybatch.storage.folder import LocalFolder
from tests.support.responses import Shop, table


def test_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(LocalFolder(str(tmp_path)))
    shop.store().prepare()
    shop.store().add("s", [table(range(3))])
    main(["store", str(tmp_path)])
    assert capsys.readouterr().out.startswith(
        "3 responses (0 expired) of 1 submission, stored 2025-06-15 to "
    )
    main(["store", str(tmp_path), "--compact"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("3 responses")


def test_a_folder_that_is_no_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["store", str(tmp_path)])
    assert "is not a response store" in capsys.readouterr().err
