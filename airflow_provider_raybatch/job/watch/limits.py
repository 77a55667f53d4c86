# SPDX-License-Identifier: Apache-2.0
"""What a job may use up: tokens and GPU hours. Reached means a clean stop that loses no finished row."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from airflow_provider_raybatch.contract.events import Progress
from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.spec import Limits
from airflow_provider_raybatch.job.ledger import parts
from airflow_provider_raybatch.job.storage.folder import Folder
from airflow_provider_raybatch.job.watch.board import ReplicaReport

_THREADS = 16


@dataclass(frozen=True)
class Budget:
    """What is left to one submission.

    :param spent: tokens that earlier submissions of the task paid for.
    :param gpus: that all replicas hold together.
    :param began: epoch seconds at which they were asked for.
    """

    limits: Limits
    spent: int
    gpus: int
    began: float

    def check(self, reports: Sequence[ReplicaReport], progress: Progress, now: float) -> None:
        """:raises RaybatchError: a limit is reached, with how far the job came."""
        so_far = f"after {progress.done:,} of {progress.total:,} rows; the finished rows are kept"
        tokens = self.spent + sum(report.input_tokens + report.output_tokens for report in reports)
        most = self.limits.max_tokens_total
        if most is not None and tokens >= most:
            raise RaybatchError(
                f"max_tokens_total: {tokens:,} tokens are paid for, of {most:,} allowed, {so_far}: raise the "
                "limit and clear the task to go on.",
                FailureClass.LIMIT_REACHED,
            )
        hours = self.gpus * (now - self.began) / 3600
        if self.limits.max_gpu_hours is not None and hours >= self.limits.max_gpu_hours:
            raise RaybatchError(
                f"max_gpu_hours: {hours:.2f} GPU hours are used, of {self.limits.max_gpu_hours:g} allowed, "
                f"{so_far}: raise the limit and clear the task to go on.",
                FailureClass.LIMIT_REACHED,
            )


def spent(limits: Limits, folder: Folder, task_folder: str) -> int:
    """Tokens that the task paid for in earlier submissions; 0 without asking where no limit needs it.

    :param task_folder: of all parts of the task, whatever input and question they are of.
    :raises StorageError: a part can't be read.
    """
    if limits.max_tokens_total is None:
        return 0
    with ThreadPoolExecutor(_THREADS) as pool:
        found = parts.listed(folder.list(task_folder))
        return sum(pool.map(lambda part: parts.paid_tokens(folder, part), found))
