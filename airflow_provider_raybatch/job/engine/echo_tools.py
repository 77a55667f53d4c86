# SPDX-License-Identifier: Apache-2.0
"""Calls of tools without a model."""

from __future__ import annotations

import hashlib
import json
import random

from airflow_provider_raybatch.contract.arguments.tools import TOOL_CALLS_COLUMN, schemas_of
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.echo_json import fitting
from airflow_provider_raybatch.job.row import Completion


class EchoTools:
    """Calls the tool whose name the prompt has, with arguments that fit its schema.

    Texts in them are made of the prompt's words. With a `tool_choice` that asks for a call, it calls that
    tool, or else one by a hash of the prompt.
    """

    def __init__(self, spec: BatchInferenceSpec) -> None:
        self._schemas = schemas_of(spec.tools or ())
        self._must = spec.must_call_tools
        choice = spec.tool_choice
        self._chosen = choice["function"]["name"] if isinstance(choice, dict) else None

    def call(self, prompt: str, number: int) -> Completion | None:
        """Completion `number` with a call; ``None`` if it calls nothing."""
        name = self._chosen or next((one for one in self._schemas if one in prompt), None)
        if name is None and self._must:
            names = list(self._schemas)
            name = names[int(hashlib.sha256(prompt.encode()).hexdigest(), 16) % len(names)]
        if name is None:
            return None
        made = fitting(self._schemas[name], random.Random(f"{number}-{prompt}"), prompt.split() or ["echo"])
        arguments = json.dumps(made or {}, ensure_ascii=False)
        call = {"name": name, "arguments": arguments}
        return Completion("", "tool_calls", max(1, len(arguments.split())), extra={TOOL_CALLS_COLUMN: [call]})
