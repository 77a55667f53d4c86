# SPDX-License-Identifier: Apache-2.0
"""What runs on the cluster.

Shipped with every submission, so it needs only Ray, pyarrow, pydantic and, for real models, vLLM. The rest
is shipped too, and found last: see :mod:`airflow_provider_raybatch.contract.shipping`.
"""

from airflow_provider_raybatch.contract.shipping import use_shipped_wheels

# Here, so that it is done before any module of this package is imported, in the driver and in each worker.
use_shipped_wheels()
