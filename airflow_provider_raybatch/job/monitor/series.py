# SPDX-License-Identifier: Apache-2.0
"""The course of a job: rates and rows in flight over time, in few points. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_raybatch.contract.run_numbers import Moment

if TYPE_CHECKING:  # it imports Ray, and records are read without
    from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress

MOST_POINTS = 300
_STEP = 1.0
"""Seconds of a point at first; twice as many each time the points become too many."""
_LEAST = 0.1
"""Seconds over which a rate is measured at least."""


@dataclass
class _Point:
    """What was seen within one step; `tokens` count from the job's start.

    :param looks: how many `rows_in_flight` were added up.
    """

    seconds: float
    rows: int
    tokens: int
    rows_in_flight: int
    replicas: int
    looks: int = 1

    def followed_by(self, later: _Point) -> _Point:
        in_flight, looks = self.rows_in_flight + later.rows_in_flight, self.looks + later.looks
        return _Point(later.seconds, later.rows, later.tokens, in_flight, later.replicas, looks)


class Series:
    """Collects readings. Neighbours are merged as the job grows long, so the memory is bounded.

    :param began: epoch seconds of the job's start.
    """

    def __init__(self, began: float) -> None:
        self._began = began
        self._step = _STEP
        self._points: dict[int, _Point] = {}
        self._first = 0.0

    def add(self, reports: Sequence[ReplicaProgress], done: int, now: float) -> None:
        """Take a reading; those before the first request are left out.

        :param done: rows of the input that are done.
        """
        if not self._points and not any(one.first_request or one.rows for one in reports):
            return
        if not self._points:
            firsts = [one.first_request for one in reports if one.first_request]
            self._first = max(0.0, min(firsts, default=now) - self._began)
        ready = [one for one in reports if one.state == "ready"]
        tokens = sum(one.input_tokens + one.output_tokens for one in reports)
        tokens += sum(one.tokens_in_flight for one in ready)
        in_flight = sum(one.rows_in_flight for one in ready)
        seconds = max(0.0, now - self._began)
        self._put(int(seconds / self._step), _Point(seconds, done, tokens, in_flight, len(ready)))
        if len(self._points) > MOST_POINTS:
            self._step *= 2
            points, self._points = self._points, {}
            for place, point in points.items():
                self._put(place // 2, point)

    def _put(self, place: int, point: _Point) -> None:
        before = self._points.get(place)
        self._points[place] = point if before is None else before.followed_by(point)

    @property
    def moments(self) -> list[Moment]:
        """The points so far, oldest first."""
        made: list[Moment] = []
        seconds, tokens = self._first, 0
        for point in self._points.values():
            passed, new = point.seconds - seconds, point.tokens - tokens
            # What a process that died had not written is counted again when another one does it.
            rate = max(0.0, new / passed) if passed >= _LEAST else 0.0
            seconds, tokens = point.seconds, point.tokens
            made.append(
                Moment(
                    seconds=round(seconds, 1),
                    rows=point.rows,
                    tokens_per_second=round(rate, 1),
                    rows_in_flight=round(point.rows_in_flight / point.looks),
                    replicas=point.replicas,
                )
            )
        return made
