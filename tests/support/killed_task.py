# SPDX-License-Identifier: Apache-2.0
"""A blocking task in its own process, which handles SIGTERM as Airflow's task runner does."""

from __future__ import annotations

import signal

from airflow_provider_raybatch.operators import cancel_handler
from tests.support.airflow_tasks import Run
from tests.support.batches import batch

if __name__ == "__main__":
    cancel_handler._STORE_TIMEOUT = 60.0  # a slow machine's store is not a silent one
    operator = batch()
    signal.signal(signal.SIGTERM, lambda number, frame: operator.on_kill())
    operator.execute(Run().context())
