# SPDX-License-Identifier: Apache-2.0
"""Airflow provider for batch inference with Ray Data and vLLM.

Importing this package imports neither Airflow nor Ray: ``contract``, ``storage`` and ``job`` also run on a
cluster without Airflow.
"""

__version__ = "0.1.0"
