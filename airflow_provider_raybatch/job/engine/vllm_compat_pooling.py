# SPDX-License-Identifier: Apache-2.0
"""The names of vLLM's pooling that vLLM does not promise to keep, as in ``vllm_compat``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

TASKS = {"embed": "embed", "classify": "classify", "score": "classify"}
"""VLLM's pooling task of each kind of task."""


def pooling_params(model_task: str, values: Mapping[str, Any], second: int | None = None) -> Any:
    """VLLM's ``PoolingParams``.

    Always with a task: without one, vLLM silently gives one vector per token.

    :param second: where tokens of type 1 begin, for a model that is told. VLLM ignores `token_type_ids` in
        the prompt, and gives wrong scores without an error.
    """
    from vllm import PoolingParams

    types = {} if second is None else {"extra_kwargs": {"compressed_token_type_ids": second}}
    return PoolingParams(task=TASKS[model_task], **values, **types)


def check_pooling_params(params: Any, config: Any) -> None:
    """Let vLLM compare pooling parameters with a model's config, into which it writes its defaults.

    :raises ValueError: the model can't do what they ask.
    """
    params.verify(config)


def labels_of(config: Any) -> Mapping[int, str]:
    """The labels in a model's config, by their numbers."""
    found = getattr(config.hf_config, "id2label", None)
    return {int(number): str(label) for number, label in (found or {}).items()}


def label_count(config: Any) -> int | None:
    """How many labels a model of this config has, if it says so.

    A language model whose head vLLM makes of the rows of some tokens has its number when an engine starts,
    and until then the two that each config has by default.
    """
    whole = config.hf_config
    text = whole.get_text_config() if hasattr(whole, "get_text_config") else whole

    def told(name: str) -> Any:
        found = getattr(whole, name, None)
        return getattr(text, name, None) if found is None else found

    if told("is_original_qwen3_reranker") or told("method") == "from_2_way_softmax":
        return 1
    tokens = told("classifier_from_token")
    if told("method") is not None and isinstance(tokens, (list, tuple)):
        return len(tokens)
    found = getattr(whole, "num_labels", None)
    return found if isinstance(found, int) else None


def separates_pairs(config: Any) -> bool:
    """Whether vLLM lets the tokeniser put a separator between the texts of a pair."""
    return bool(getattr(config, "use_sep_token", True))


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
