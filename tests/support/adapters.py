# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters as PEFT saves them, with random weights, for the demo's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

WIDTHS = {"q_proj": (256, 256), "v_proj": (256, 128)}
"""Inputs and outputs of some modules of the demo's model."""


def save_adapter(
    folder: Path, seed: int = 0, rank: int = 4, scale: float = 1.0, layers: int = 3, **config: Any
) -> Path:
    """Write an adapter into `folder`, and return that.

    :param scale: of its weights: with 1, nearly all of the model's answers change.
    :param config: further fields of its config; ``None`` leaves one out.
    """
    rng, tensors = np.random.default_rng(seed), {}
    for layer in range(layers):
        for module, (inputs, outputs) in WIDTHS.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = rng.normal(0, 1, (rank, inputs)) / inputs**0.5
            tensors[f"{name}.lora_B.weight"] = scale * rng.normal(0, 1, (outputs, rank))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(safetensors(tensors))
    fields = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(WIDTHS),
        "bias": "none",
        "base_model_name_or_path": "model",
        **config,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    (folder / "adapter_config.json").write_text(json.dumps(given))
    return folder


def safetensors(tensors: dict[str, Any]) -> bytes:
    """Return a file of this format."""
    header, content = {}, b""
    for name, tensor in tensors.items():
        data = np.ascontiguousarray(tensor, np.float32).tobytes()
        ends = [len(content), len(content) + len(data)]
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": ends}
        content += data
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content


def with_adapter(model: Path, adapter: Path | None, prompts: list[str], tokens: int) -> list[str]:
    """Return what transformers answers greedily in exactly so many tokens.

    An adapter is added to the model's weights.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    made: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter is not None:
        config = json.loads((adapter / "adapter_config.json").read_text())
        tensors = load_file(adapter / "adapter_model.safetensors")
        for name, first in tensors.items():
            if name.endswith("lora_A.weight"):
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                second = tensors[name.replace("lora_A", "lora_B")]
                weight = made.get_submodule(module).weight
                weight.data += config["lora_alpha"] / config["r"] * second @ first
    texts = []
    for prompt in prompts:
        asked = tokenizer(prompt, return_tensors="pt")
        found = made.generate(
            **asked, do_sample=False, min_new_tokens=tokens, max_new_tokens=tokens, pad_token_id=0
        )
        texts.append(tokenizer.decode(found[0][asked["input_ids"].shape[1] :], skip_special_tokens=True))
    return texts
