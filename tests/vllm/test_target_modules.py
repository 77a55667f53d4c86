# SPDX-License-Identifier: Apache-2.0
"""An engine that `lora_target_modules` keeps from an adapter's modules."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from tests.support.adapters import save_adapter

pytest.importorskip("vllm.platforms")
from tests.support.beside_vllm import LORA, own_engine
from tests.support.real_model import ARGS, spec

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.thorough("adapters that leave modules out; an engine of its own"),
]


def test_target_modules_that_leave_an_adapter_out_refuse_it(tmp_path: Path) -> None:
    args = {**ARGS, **LORA, "lora_target_modules": ["o_proj"]}
    adapter = str(save_adapter(tmp_path / "acme"))
    sentence = r"it is for 'model.layers.0.self_attn.\w_proj', and adapters may be for '\S*.o_proj', "
    with own_engine(spec(engine_args=args)) as made:
        made.renewed(spec(engine_args=args, adapter=adapter))
        with pytest.raises(PreflightError, match=sentence):
            made.loop.run_until_complete(made.prepare())
        assert not made.is_dead
