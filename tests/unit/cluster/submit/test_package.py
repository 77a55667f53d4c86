# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from airflow_provider_raybatch.cluster.jobs_api.errors import PackageError
from airflow_provider_raybatch.cluster.submit import package as package_module
from airflow_provider_raybatch.cluster.submit.package import (
    Package,
    package_of_folder,
    package_of_needs,
    package_of_provider,
    package_of_wheels,
)

ROOT = Path(package_module.__file__).parents[3]


def names(package):
    return zipfile.ZipFile(io.BytesIO(package.content)).namelist()


def run(code, *path):
    """Return what Python prints with these folders in front."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd="/", env=environment, capture_output=True, text=True, check=True
    ).stdout


def test_package_bytes_ignore_order_and_age_of_files():
    one = Package({"b/x.py": b"1", "a.py": b"2"})
    time.sleep(0.01)
    two = Package({"a.py": b"2", "b/x.py": b"1"})
    assert one.content == two.content
    assert one.uri == two.uri
    assert re.fullmatch(r"gcs://_ray_pkg_[0-9a-f]{32}\.zip", one.uri)
    assert names(one) == ["a.py", "b/x.py"]
    assert zipfile.ZipFile(io.BytesIO(one.content)).getinfo("a.py").external_attr >> 16 == 0o100644
    assert "b'2'" not in repr(one)


@pytest.mark.parametrize("other", [{"a": b"bc"}, {"ab": b"d"}, {"a": b"b", "c": b"d"}, {"a": b""}])
def test_other_files_give_another_uri(other):
    assert Package(other).uri != Package({"a": b"b"}).uri


def test_provider_package_holds_only_what_the_job_needs():
    package = package_of_provider()
    files = set(package.files)
    folders = {Path(path).parts[1] for path in files if len(Path(path).parts) > 2}
    assert folders == {"contract", "report", "storage", "job"}
    assert {path for path in files if path.count("/") == 1} == {
        "airflow_provider_raybatch/__init__.py",
        "airflow_provider_raybatch/py.typed",
    }
    assert "airflow_provider_raybatch/job/__main__.py" in files
    assert not any("__pycache__" in path or path.endswith(".pyc") for path in files)


@pytest.mark.parametrize(
    ("module", "missing"),
    [("contract.spec", ["airflow", "httpx", "ray"]), ("job.phases.driver", ["airflow", "httpx"])],
)
def test_provider_package_imports_without_airflow(tmp_path, module, missing):
    zipfile.ZipFile(io.BytesIO(package_of_provider().content)).extractall(tmp_path)
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({missing}));"
        f"import airflow_provider_raybatch.{module} as module; print(module.__file__)"
    )
    file = tmp_path / "airflow_provider_raybatch" / f"{module.replace('.', '/')}.py"
    assert run(code, tmp_path).strip() == str(file)


def test_shipped_obstore_imports_with_its_extension(tmp_path):
    package = package_of_wheels("obstore")
    assert any(path.endswith(".abi3.so") for path in package.files)
    assert all(
        path.startswith("raybatch_wheels/obstore/")
        or path.endswith((".dist-info/METADATA", ".dist-info/WHEEL"))
        for path in package.files
    )
    zipfile.ZipFile(io.BytesIO(package.content)).extractall(tmp_path)
    code = "import obstore, importlib.metadata as m; print(obstore.__file__, m.version('obstore'))"
    assert run(code, tmp_path / "raybatch_wheels").startswith(str(tmp_path))
    assert package_of_wheels("obstore") is package


def test_shipped_wheel_is_used_unless_the_cluster_has_one(tmp_path):
    for name in ("ours", "h11"):
        folder = tmp_path / "unpacked/raybatch_wheels" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    code = "import airflow_provider_raybatch.job, ours, h11; print(ours.__file__); print(h11.__file__)"
    shown = run(code, tmp_path / "unpacked", ROOT).splitlines()
    assert shown[0].startswith(str(tmp_path))
    assert "site-packages" in shown[1]


def test_wheel_of_another_platform_is_reported_by_the_job(tmp_path):
    """As a worker on a Mac sends it: the job on Linux names both platforms and the remedy."""
    for path, content in package_of_wheels("obstore").files.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.name == "WHEEL":
            content = b"Wheel-Version: 1.0\nTag: cp311-abi3-macosx_11_0_arm64\n"
        file.write_bytes(b"\xcf\xfa\xed\xfe" if file.suffix == ".so" else content)
    code = (
        "from airflow_provider_raybatch.storage.folder import folder\n"
        "try: folder('s3://b').list()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    shown = run(code, tmp_path / "raybatch_wheels", ROOT)
    assert shown.startswith("PreflightError s3://b: 'obstore' can't be imported on this node (")
    assert "the wheel found is cp311-abi3-macosx_11_0_arm64, and this is Python 3." in shown
    assert shown.strip().endswith(
        "install it in the cluster's image, or by runtime_env={'pip': ['obstore']}."
    )


def test_a_page_is_made_of_what_travels(tmp_path):
    """On nodes whose own packages have no Jinja2."""
    for package in (package_of_provider(), package_of_needs()):
        assert not any(path.endswith((".so", ".pyd")) for path in package.files)
        zipfile.ZipFile(io.BytesIO(package.content)).extractall(tmp_path)
    code = (
        "import sys, airflow_provider_raybatch.job\n"
        "from airflow_provider_raybatch.report import page, rendering\n"
        "assert not {'jinja2', 'markupsafe'} & sys.modules.keys()\n"
        "made = rendering.render('message.jinja', title='t', sentence='<b>')\n"
        "import jinja2, markupsafe; print(page.__file__, jinja2.__file__, markupsafe.__file__, made)"
    )
    *files, made = run(code, tmp_path / "raybatch_wheels", tmp_path).split(" ", 3)
    assert all(file.startswith(str(tmp_path)) for file in files)
    assert "&lt;b&gt;" in made


@pytest.mark.parametrize(
    ("distribution", "message"),
    [("no-such-distribution", "is not installed here"), ("pydantic-core", "fits only this Python")],
)
def test_wheels_that_can_not_be_shipped(distribution, message):
    with pytest.raises(PackageError, match=f"^wheels: .*{message}"):
        package_of_wheels(distribution)


def test_a_folder_without_its_caches_and_environment_files(tmp_path):
    for path in (
        "code/a.py",
        "code/.git/HEAD",
        "code/sub/__pycache__/b.pyc",
        "code/sub/b.py",
        "code/old.pyc",
        "code/.env",
        "code/sub/.env.local",
        "code/.envrc",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    assert set(package_of_folder(tmp_path / "code").files) == {"a.py", "sub/b.py"}
    assert set(package_of_folder(tmp_path / "code", inside="code").files) == {"code/a.py", "code/sub/b.py"}


def test_a_folder_that_can_not_be_shipped(tmp_path, monkeypatch):
    with pytest.raises(PackageError, match="is not a folder here"):
        package_of_folder(tmp_path / "nowhere")
    monkeypatch.setattr(package_module, "FOLDER_LIMIT", 1000)
    (tmp_path / "data.bin").write_bytes(bytes(1001))
    with pytest.raises(PackageError, match="move data and models out of it"):
        package_of_folder(tmp_path)
