# SPDX-License-Identifier: Apache-2.0
"""What must hold for each row at every instant, and at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from airflow_provider_raybatch.job.input.survey import Chunk
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.replica.coordinator import Coordinator
from airflow_provider_raybatch.job.replica.worker import _KILLER
from airflow_provider_raybatch.job.row import RowFailure
from airflow_provider_raybatch.job.row_order.rows_to_do import Input

from .search_memory import BegunInMemory
from .search_replica import Stepped
from .search_scope import Scope


class Checked:
    """A coordinator and its replicas. Each request and each part is checked.

    :ivar parts: all written parts, with the outcomes of their rows.
    :ivar written: by row, the process that wrote it before it was taken for lost.
    :ivar answered: rows whose answer a living process has.
    :ivar reported: the parts that the driver knows.
    :ivar begun: rows that the last process of each actor had begun, if its node lives.
    :ivar given_up: living processes that were taken for lost.
    """

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        chunks, first = [], 0
        for number, rows in enumerate(scope.pieces):
            chunks.append(Chunk(number, first, rows, 0, 0, rows))
            first += rows
        todo = np.packbits(np.zeros(first, np.bool_))
        self.parts: dict[Part, dict[int, bool]] = {}
        self.written: dict[int, str] = {}
        self.answered: set[int] = set()
        self.reported: list[Part] = []
        self.given_up: set[str] = set()
        self.begun: dict[str, BegunInMemory] = {}
        self.requests = 0
        folder: Any = SimpleNamespace(list=lambda path: list(self.parts), outcomes=self.parts, key=scope.key)
        fewest = scope.fewest or scope.replicas
        self.coordinator = Coordinator(folder)
        self.coordinator.begin(Input(chunks, [10] * len(chunks), todo), ["parts"], fewest, ())
        self.processes: dict[str, Stepped | None] = {f"r{number}": None for number in range(scope.replicas)}

    @property
    def living(self) -> list[Stepped]:
        return [process for process in self.processes.values() if process is not None]

    def asked(self, process: Stepped, row: int) -> None:
        """Check a row that enters an engine: no other replica has it, and no part holds it."""
        self.requests += 1
        if process.process in self.given_up:
            return
        key = self.scope.key(row)
        equal = [one for one in self.scope.rows if one == row or (key and self.scope.key(one) == key)]
        assert not any(map(self.written.get, equal)), f"{row} is asked again"
        for other in self.living:
            is_other = other is not process and other.process not in self.given_up
            assert not (is_other and row in other.held), f"two replicas have {row}"
            asks_too = set(other.inside) & set(equal)
            assert not (is_other and asks_too), f"two replicas ask {row}"
        group = self.coordinator._queue._replicas[process.process].group
        assert group is None or row in group.rows, f"{row} enters the engine beside suspected rows"

    def write(self, process: Stepped, results: Mapping[int, Any]) -> Part:
        """Check and add a part."""
        outcomes = {row: not isinstance(result, RowFailure) for row, result in results.items()}
        for row, result in results.items():
            assert row in self.scope.deadly or result is not _KILLER, f"{row} kills no engine"
            assert outcomes[row] == (row not in self.scope.deadly | self.scope.bad), (
                f"{row} has a wrong outcome"
            )
            if process.process not in self.given_up:
                assert not self.written.get(row), f"{row} is written again"
                self.written[row] = process.process
        assert len(self.parts) < 1000
        path = f"parts/{process.process}-{len(self.parts):06d}"
        part = Part(path, len(outcomes), sum(outcomes.values()), min(outcomes), max(outcomes), 1)
        self.parts[part] = outcomes
        return part

    def read_reports(self) -> None:
        """Read the news as the driver does."""
        _, news, _, _ = self.coordinator.news()
        for _, done in news:
            self.reported += done.parts

    def outcomes(self) -> dict[int, list[bool]]:
        """Return the outcomes of each row that the driver knows."""
        self.read_reports()
        found = defaultdict(list)
        for part in self.reported:
            for row, good in self.parts[part].items():
                found[row].append(good)
        return found
