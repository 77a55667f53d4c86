# SPDX-License-Identifier: Apache-2.0
"""Why a part of a cluster is not there yet."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_raybatch.contract.failures import FailureClass


@dataclass(frozen=True)
class Reason:
    """Why something waits, or can't come.

    :param key: equal keys of one object are one reason, which is told once.
    :param text: follows the name of what waits, after a colon.
    :param remedy: follows the sentence if the wait ends in a failure.
    :param hopeless: the failure class if it can't come; ``None`` if it may.
    """

    key: str
    text: str
    remedy: str = ""
    hopeless: FailureClass | None = None

    def sentence(self, of: str) -> str:
        """The whole sentence about `of`, with the remedy."""
        told = f"{of}: {self.text}".rstrip(".")
        return f"{told}; {self.remedy}." if self.remedy else f"{told}."
