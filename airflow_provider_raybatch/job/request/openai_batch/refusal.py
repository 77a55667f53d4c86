# SPDX-License-Identifier: Apache-2.0
"""Why a line is refused, in OpenAI's words."""

from __future__ import annotations

from typing import Any

from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.job.row import RenderError

MISSING = "missing_required_parameter"
UNSUPPORTED = "unsupported_parameter"
WRONG_VALUE = "invalid_value"


class LineError(RenderError):
    """A line that makes no request.

    :param param: the field that is wrong; inside of lists, with its place (``messages.0.role``).
    :param code: OpenAI's, as far as it has one.
    """

    def __init__(self, param: str, why: str, code: str = WRONG_VALUE) -> None:
        super().__init__(f"{param}: {why}")
        self.param = param
        self.code = code


def wrong(param: str, must_be: str, value: Any) -> LineError:
    """The error of a value that is not what it must be."""
    return LineError(param, f"it must be {must_be}, but it is {shown(value)}")
