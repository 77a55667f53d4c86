# SPDX-License-Identifier: Apache-2.0
"""What runs on the cluster.

Shipped with every submission, so it needs only Ray, pyarrow, pydantic and, for real models, vLLM. The rest
is shipped too, and found last: see :mod:`airflow_provider_raybatch.contract.shipping`.
"""

import sys
from pathlib import Path

from airflow_provider_raybatch.contract.shipping import WHEELS_FOLDER

# Here, so that it is done before any module of this package is imported, in the driver and in each worker.
sys.path.extend(
    str(folder) for folder in [Path(entry) / WHEELS_FOLDER for entry in sys.path] if folder.is_dir()
)
