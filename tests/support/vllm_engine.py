# SPDX-License-Identifier: Apache-2.0
"""A VllmEngine without vLLM's engine process."""

from __future__ import annotations

import itertools
from typing import Any

from airflow_provider_raybatch.job.engine.chat import ChatEncoder
from airflow_provider_raybatch.job.engine.detokenize import Detokenizer
from tests.support.specs import spec


def vllm_engine(tokenizer: Any, context: int, defaults: dict[str, Any] | None = None, llm: Any = None) -> Any:
    """Return an engine over `llm`, which stands for vLLM's."""
    from airflow_provider_raybatch.job.engine.vllm import VllmEngine

    engine: Any = VllmEngine.__new__(VllmEngine)
    engine._llm, engine._fill_in, engine._max_model_len = llm, True, context
    engine._defaults, engine._spec = defaults or {}, spec(engine="vllm", model="m")
    engine._tokenizer, engine._numbers = tokenizer, itertools.count()
    engine._detokenizer, engine._chat = Detokenizer(tokenizer), ChatEncoder(tokenizer, str)
    engine._forget_requests()
    return engine
