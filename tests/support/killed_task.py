# SPDX-License-Identifier: Apache-2.0
"""A blocking task in its own process, which handles SIGTERM as Airflow's task runner does."""

from __future__ import annotations

import signal

from tests.support.airflow_tasks import Run
from tests.support.batches import batch

if __name__ == "__main__":
    operator = batch()
    signal.signal(signal.SIGTERM, lambda number, frame: operator.on_kill())
    operator.execute(Run().context())
