# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_raybatch.job.warm_engines import source

_MUCH = 64 * 1024 * 1024


def test_what_is_loaded_counts_and_waiting_does_not(tmp_path: Path) -> None:
    """The process and its children count, because vLLM loads its engine in a child."""
    pytest.importorskip("psutil")
    before = source.progress()
    assert source.progress() - before <= 1
    (tmp_path / "weights").write_bytes(bytes(_MUCH))
    here = source.progress()
    assert here - before >= 4
    code = "import sys; print(len(open(sys.argv[1], 'rb').read()), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "weights"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        assert int(child.stdout.readline()) == _MUCH
        assert source.progress() - here >= 4
        child.communicate()


def test_the_measuring_itself_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """To find children, it reads of each process of the machine; a replica that only waits would move."""
    pytest.importorskip("psutil")
    monkeypatch.setattr(source, "_STEP", 4096)
    before = source.progress()
    for _ in range(200):
        after = source.progress()
    assert after - before < 200  # each look reads some 200 bytes of each process, so these some 1,000
