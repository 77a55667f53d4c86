# SPDX-License-Identifier: Apache-2.0
"""What tasks ask of the place where their jobs are, whatever kind of cluster that is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
    from airflow_provider_raybatch.cluster.submit.resolve import SubmissionKey


class Cluster:
    """A cluster that has, or gets, a job of a run. Others have started this one, and end it."""

    def __init__(self, address: ClusterAddress) -> None:
        self.address = address


class Place(ABC):
    """Where the jobs of a task's runs are.

    Its coroutines raise ``ClusterError``.

    :param name: for messages, such as ``Connection 'ray_default'``.
    :param namespace: keeps its jobs apart from those of other Airflows; ``None`` for the installation's id.
    :param secret_seal_key: Fernet key that its nodes hold too.
    """

    name: str
    embedded: bool = False
    """Whether a task starts a private Ray for its job."""
    namespace: str | None = None
    secret_seal_key: str | None = None

    @abstractmethod
    def job_page(self, submission_id: str) -> str | None:
        """The job's page in the Ray dashboard, for people; ``None`` where there is none."""

    @abstractmethod
    def cluster(self) -> Cluster:
        """The cluster for a job.

        :raises RayConnectionError: there is none.
        """

    @abstractmethod
    async def cluster_of(self, run: SubmissionKey) -> Cluster | None:
        """The cluster with the latest job of a run; ``None`` where that has gone."""

    @abstractmethod
    async def stop_run(self, run: SubmissionKey) -> list[str]:
        """Stop what a run has left, asking again while nothing answers; return what was stopped."""

    @abstractmethod
    async def stop_earlier(
        self, runs: Sequence[SubmissionKey] | None, task_digest: str, keep: str
    ) -> list[str]:
        """Stop what earlier runs of a task have left; return what was stopped.

        :param runs: ``None`` where they are not on record.
        :param keep: submission id of the job that counts.
        """

    @abstractmethod
    async def was_cleared(self, run_key: str) -> bool:
        """Whether a user cleared the task while its attempt ran; ``False`` if that is not known."""
