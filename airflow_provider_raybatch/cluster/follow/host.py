# SPDX-License-Identifier: Apache-2.0
"""What is done about the cluster of a job at each look at the job, where the cluster ends without looks."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_raybatch.cluster.follow.outcome import Verdict


class Host(Protocol):
    """A cluster that tasks have made: for one job, or to share it."""

    async def looked(self, verdict: Verdict) -> Verdict:
        """Keep the cluster while its job runs, and say what has become of it where the job gives no answer.

        Never raises: what keeps the cluster may give no answer either.

        :param verdict: of the look at the job.
        """
