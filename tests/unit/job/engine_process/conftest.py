# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator

import pytest

from airflow_provider_raybatch.job.engine_process import fork_server
from airflow_provider_raybatch.job.engine_process.proxy import EngineProxy


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineProxy]:
    monkeypatch.setattr(fork_server, "start", lambda: None)  # vLLM's import is not needed
    made = EngineProxy()
    yield made
    made.close()
    assert not made._front_end.process.is_alive()
