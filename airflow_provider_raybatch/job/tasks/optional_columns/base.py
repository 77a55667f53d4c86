# SPDX-License-Identifier: Apache-2.0
"""What a group of optional columns is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.row import Completion, Response


class OptionalColumns:
    """A group of columns that only some jobs have. Picklable.

    A new group is a subclass in a module of its own, an entry in
    :mod:`~airflow_provider_raybatch.job.tasks.optional_columns.groups`, and its columns in
    :attr:`~airflow_provider_raybatch.contract.spec.BatchInferenceSpec.optional_columns`. An engine puts what
    the columns are made of into `extra` of a response or of a completion.

    What gives a job these columns must be part of the request keys of its rows, as sampling and engine
    arguments are. So a stored response that lacks them is not found for a job that needs them, and
    the response store keeps for each job the groups that it has.
    """

    TYPES: ClassVar[dict[str, pa.DataType]]
    """Of its columns, by name."""

    def __init__(self, spec: BatchInferenceSpec) -> None:
        self.spec = spec
        wanted = spec.optional_columns
        self.fields = [pa.field(name, kind) for name, kind in self.TYPES.items() if name in wanted]

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        """Why a response that has these columns is not what was asked for; ``None`` if it may be.

        :param sampling: all parameters of the request that the job or the row sets.
        """
        return None


class ResponseColumns(OptionalColumns):
    """Columns that a row has once."""

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        """The values of `fields`, by default those of the same names in `extra`."""
        return _of_extra(responses, self.fields)


class CompletionColumns(OptionalColumns):
    """Columns that each completion has: a row has those of its first, and `completions` those of all."""

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        """The values of `fields`, by default those of the same names in `extra`."""
        return _of_extra(completions, self.fields)


def _of_extra(found: Sequence[Response | Completion], fields: Sequence[pa.Field]) -> list[pa.Array]:
    return [pa.array([one.extra.get(field.name) for one in found], field.type) for field in fields]
