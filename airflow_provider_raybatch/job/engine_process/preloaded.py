# SPDX-License-Identifier: Apache-2.0
"""Imported by the fork server alone: what the processes of an engine need."""

from __future__ import annotations

import contextlib

from airflow_provider_raybatch.job.engine import vllm_compat
from airflow_provider_raybatch.job.engine_process import fork_server

fork_server.prepare()
with contextlib.suppress(Exception):  # an error here would end the server
    vllm_compat.import_engine()
