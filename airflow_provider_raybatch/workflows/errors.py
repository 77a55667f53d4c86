# SPDX-License-Identifier: Apache-2.0
"""The error of the workflow steps."""

from __future__ import annotations

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError


class WorkflowError(RaybatchError):
    """An argument or the data is not what a step needs; one sentence names it, its value and the remedy."""

    failure_class = FailureClass.USER_ERROR
