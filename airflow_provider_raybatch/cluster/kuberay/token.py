# SPDX-License-Identifier: Apache-2.0
"""The token of a cluster: whoever has the run's key can derive it, so that no Secret is ever read back."""

from __future__ import annotations

from airflow_provider_raybatch.contract.control import key_of_job


def cluster_token(run_key: str, secret: str) -> str:
    """The token in a cluster's Secret, 64 hex digits.

    :param secret: name of the Secret; each cluster has one of its own.
    """
    return key_of_job(run_key, f"secret {secret}")
