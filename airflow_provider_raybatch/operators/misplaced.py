# SPDX-License-Identifier: Apache-2.0
"""What an unknown argument may mean: a misspelt one, or one of another place or system."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from airflow_provider_raybatch.argument_fields import HOMES
from airflow_provider_raybatch.coercion import ENGINE_ARG_TYPES
from airflow_provider_raybatch.contract.arguments.vllm_names import ENGINE_ARGS, SAMPLING
from airflow_provider_raybatch.contract.arguments.vllm_sampling import OTHER_SYSTEMS
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import nearest

_OURS = {
    **dict.fromkeys(("output", "output_path", "output_uri"), "destination"),
    **dict.fromkeys(("input", "input_path", "path", "inputs", "dataset"), "source"),
    **dict.fromkeys(("num_replicas", "concurrency"), "replicas"),
    **dict.fromkeys(("conn_id", "ray_conn", "connection_id"), "ray_conn_id"),
    **dict.fromkeys(("step", "stages", "chain", "pipeline", "questions"), "steps"),
    "model_id": "model", "model_name": "model", "output_column": "response_column",
}  # fmt: skip

_OF_STEPS = ("when", "on_rejected")


def check_names(arguments: Iterable[str], known: Sequence[str], where: str = "") -> None:
    """Refuse names that are not arguments.

    :param where: the start of the sentence, such as ``Task 'label': ``.
    :raises SpecError: names the first unknown one, and the likeliest meant.
    """
    for name in arguments:
        if name not in known:
            remedy = _remedy(str(name), known)
            raise SpecError(f"{where}{name}: it is not an argument; {remedy}") from None


def _remedy(name: str, known: Sequence[str]) -> str:
    if name in OTHER_SYSTEMS:
        return f"write {OTHER_SYSTEMS[name]}."
    if name in SAMPLING:
        return f"put it into sampling={{{name!r}: ...}}."
    if (home := HOMES.get(name)) is not None and name not in known:
        return f"write it as {home}."
    if name in _OF_STEPS:
        return f"put it into a step, steps=[Step(..., {name}=...)]."
    if name in ENGINE_ARGS or name in ENGINE_ARG_TYPES:
        return f"put it into engine_args={{{name!r}: ...}}."
    close = _OURS.get(name) or nearest(name, [*known, *HOMES])
    if close is None:
        return f"known are {', '.join(known)}."
    return f"did you mean {close!r}?" if close in known else f"did you mean {HOMES[close]}?"
