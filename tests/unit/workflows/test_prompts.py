# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import subprocess
import sys


def test_a_dag_file_may_import_the_prompts() -> None:
    """Neither Arrow, SciPy nor Airflow is loaded, so parsing a DAG stays quick."""
    code = (
        "import sys, airflow_provider_raybatch.workflows.prompts;"
        "print({'pyarrow', 'scipy', 'numpy', 'jsonschema', 'airflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
