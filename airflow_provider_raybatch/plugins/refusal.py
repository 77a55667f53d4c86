# SPDX-License-Identifier: Apache-2.0
"""Why a page has nothing to show, in one sentence."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import RaybatchError


class NotShownError(RaybatchError):
    """There is nothing to show.

    :param message: one sentence, which a reader of the task's XComs may see: without secrets.
    :param status: of the answer in HTTP.
    """

    def __init__(self, message: str, status: int = 404) -> None:
        super().__init__(message)
        self.status = status
