# SPDX-License-Identifier: Apache-2.0
"""What `make test` tells at its end is true."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = re.compile(r"benchmarks/results/(\w+)\.md")


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The modules `proofs` and `result`."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    import proofs
    import result

    return proofs, result


def test_each_page_of_a_proof_names_its_commit(checks: tuple[ModuleType, ModuleType]) -> None:
    proofs, _ = checks
    linked = set(PAGE.findall((ROOT / "docs/internals/proof.md").read_text())) - {"start_up"}
    assert linked <= proofs.PROOFS.keys()
    assert all(proofs.commit_of(page) for page in proofs.PROOFS)
    folders = {folder for found in proofs.PROOFS.values() for folder in found}
    assert [one for one in folders if not (ROOT / proofs.PACKAGE / one).is_dir()] == []


def test_a_proof_is_old_from_the_next_commit_on(
    checks: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs, _ = checks
    monkeypatch.setattr(proofs, "ROOT", tmp_path)
    monkeypatch.setattr(proofs, "PROOFS", {"kills": ("job",)})
    page, code = tmp_path / proofs.RESULTS / "kills.md", tmp_path / proofs.PACKAGE / "job/a.py"
    for file in (page, code):
        file.parent.mkdir(parents=True)
        file.write_text("1\n")

    def commit() -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
        for words in (["init", "-q"], ["add", "."], [*who, "commit", "-qm", "x"]):
            subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
        return str(proofs.git("rev-parse", "HEAD"))

    page.write_text(f"Of commit {commit()}.\n")
    commit()
    assert proofs.stale() == []
    code.write_text("2\n")
    last = commit()
    (line,) = proofs.stale()
    assert re.fullmatch(r"OLD PROOF kills.md: since [0-9a-f]{40}, 1 commits changed job", line)
    page.write_text(f"Of commit {last[::-1]}.\n")
    (line,) = proofs.stale()
    assert line.endswith("is not in this history")


def test_after_a_signal_no_other_stage_begins(tmp_path: Path) -> None:
    """Also in the background of a script, where interrupts were ignored, so that bash can't trap them."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/checks", tmp_path / ".ci/checks")
    begun = tmp_path / "begun"
    for name in (".venv", ".venv-ray"):
        (tmp_path / name / "bin").mkdir(parents=True)
        python = tmp_path / name / "bin/python"
        python.write_text(
            f"#!{sys.executable}\nimport time\ntry:\n    open({str(begun)!r}, 'a').write('{name} ')\n"
            "    time.sleep(60)\nexcept KeyboardInterrupt:\n    time.sleep(0.5)\n    raise SystemExit(2)\n"
        )
        python.chmod(0o755)
    in_background = f"trap '' INT; exec bash {tmp_path}/.ci/checks unit-jobs,unit-cluster+unit-others"
    checks = subprocess.Popen(["bash", "-c", in_background], stdout=subprocess.DEVNULL)
    while not begun.exists() or begun.read_text().count("venv") < 2:
        assert checks.poll() is None
        time.sleep(0.05)
    checks.terminate()
    assert checks.wait() == 130
    assert begun.read_text().split() == [".venv"] * 2


def test_failures_come_last_and_then_one_line(checks: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n\ndef test_good(): pass\n\ndef test_bad(): assert 0, 'why'\n\n"
        "@pytest.mark.thorough('takes long')\ndef test_long(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.progress", "-p", "no:cacheprovider"]
    options = ["-n", "2", "-m", "not thorough", "--stage", "unit", "--results", str(tmp_path)]
    done = subprocess.run(
        [*command, *options, "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED test_x.py::test_bad\n" in done.stdout
    broken = {"stage": "unit-engine", "code": 2, "failures": {}, "left_out": {}}
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    (tmp_path / "unit-engine.json").write_text(json.dumps(broken | counts))
    ends = ["lint=61:1", "unit=5:1", "unit-engine=2:2"]
    command = [sys.executable, str(ROOT / ".ci/result.py"), str(tmp_path), "64"]

    def tell(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options, *ends], capture_output=True, text=True, timeout=60, check=False
        )

    assert "alone" not in tell("--all").stdout.splitlines()[-1]
    told = tell()
    assert told.returncode == 1
    assert told.stdout.splitlines()[-4:] == [
        "FAILED test_x.py::test_bad: AssertionError: why",
        "FAILED unit-engine: its output is above",
        "FAILED lint: its output is above",
        "make test: lint, unit, unit-engine FAILED in 1:04 (lint 1:01, unit 0:05, unit-engine 0:02): "
        "1 passed, 1 failed; 1 run in make test-all alone, see make help.",
    ]
