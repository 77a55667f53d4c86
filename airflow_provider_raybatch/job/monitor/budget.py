# SPDX-License-Identifier: Apache-2.0
"""Limits of tokens and GPU hours. Reaching one stops the job cleanly, without losing a finished row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from airflow_provider_raybatch.contract.arguments.limits import Limits
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.reading import DamagedPartError
from airflow_provider_raybatch.storage.folder import Folder
from airflow_provider_raybatch.storage.in_order import in_order

_SILENT = 60.0
"""Seconds without a report after which a replica is gone; they report every second."""


@dataclass
class Budget:
    """What one submission may still use.

    :param spent: tokens that earlier submissions of the task paid for.
    :param gpus: GPUs of one replica.
    :param checked: epoch seconds of the latest check, at first of the start.
    :param unseen: replicas to bill all the time, where an engine's replicas don't report.
    """

    limits: Limits
    spent: int
    gpus: int
    checked: float
    unseen: int = 0
    gpu_hours: float = 0.0
    _holding: frozenset[str] = frozenset()

    def check(self, reports: Sequence[ReplicaProgress], now: float) -> None:
        """:raises RaybatchError: a limit is reached."""
        tokens = self.spent + sum(report.input_tokens + report.output_tokens for report in reports)
        most = self.limits.max_tokens_total
        if most is not None and tokens >= most:
            raise RaybatchError(
                f"max_tokens_total: {count_of(tokens, 'token is', 'tokens are')} paid for, of {most:,} "
                "allowed; raise the limit and clear the task to go on.",
                FailureClass.LIMIT_REACHED,
            )
        # A replica that reports has its GPUs, unless it says that it waits. If its node died, it is silent.
        holding = frozenset(
            report.replica
            for report in reports
            if report.state not in {"waiting", "ended"} and now - report.seen <= _SILENT
        )
        seconds = (self.unseen or len(holding)) * (now - self.checked) + sum(
            max(0.0, report.seen - self.checked)
            for report in reports
            if report.state == "ended" and report.replica in self._holding  # since the latest check
        )
        self.gpu_hours += self.gpus * seconds / 3600
        self.checked, self._holding = now, holding
        if self.limits.max_gpu_hours is not None and self.gpu_hours >= self.limits.max_gpu_hours:
            raise RaybatchError(
                f"max_gpu_hours: {self.gpu_hours:.2f} GPU hours are used, of {self.limits.max_gpu_hours:g} "
                f"allowed; raise the limit and clear the task to go on.",
                FailureClass.LIMIT_REACHED,
            )


def spent(limits: Limits, folder: Folder, task_folder: str) -> int:
    """Tokens that the task paid for in earlier submissions; 0 if they are not limited.

    :param task_folder: folder of all parts of the task, of any input and configuration.
    :raises StorageError: the storage does not answer. Parts with a damaged footer count nothing.
    """
    if limits.max_tokens_total is None:
        return 0
    files = folder.list(task_folder)
    found = [*parts.listed(files), *parts.listed(files, damaged=True)]

    def paid(part: parts.Part) -> int:
        try:
            return parts.paid_tokens(folder, part)
        except DamagedPartError:
            return 0

    return sum(in_order(paid, found))
