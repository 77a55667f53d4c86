# SPDX-License-Identifier: Apache-2.0
"""The names of vLLM's pooling that vLLM does not promise to keep, as in ``vllm_compat``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

TASKS = {"embed": "embed"}
"""VLLM's pooling task of each kind of task."""


def pooling_params(model_task: str, values: Mapping[str, Any]) -> Any:
    """VLLM's ``PoolingParams``.

    Always with a task: without one, vLLM silently gives one vector per token.
    """
    from vllm import PoolingParams

    return PoolingParams(task=TASKS[model_task], **values)


def check_pooling_params(params: Any, config: Any) -> None:
    """Let vLLM compare pooling parameters with a model's config, into which it writes its defaults.

    :raises ValueError: the model can't do what they ask.
    """
    params.verify(config)


async def supported_tasks(llm: Any) -> tuple[str, ...]:
    """What the model of a running async engine can do."""
    return tuple(await llm.get_supported_tasks())


def pooled(output: Any) -> npt.NDArray[np.float32]:
    """The numbers of a finished pooling request.

    :raises ValueError: vLLM reports an error of this request alone, as it does from 0.32 on.
    """
    if (error := getattr(output, "error", None)) is not None:
        raise ValueError(str(error))
    numbers: npt.NDArray[np.float32] = output.outputs.data.float().numpy()
    return numbers
