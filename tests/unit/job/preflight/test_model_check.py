# SPDX-License-Identifier: Apache-2.0
"""What the check of a model hands back to the driver."""

from __future__ import annotations

from airflow_provider_raybatch.job.preflight import model_check


class Resolved(str):
    """Stands for the class that vLLM makes of a revision, which drivers without vLLM can't unpickle."""


def test_a_commit_is_plain_text() -> None:
    commit = "a" * 40
    found = model_check._commit("acme/tiny", commit, Resolved(commit), "config.json")
    assert found == commit
    assert type(found) is str
