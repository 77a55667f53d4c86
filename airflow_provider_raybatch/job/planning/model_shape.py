# SPDX-License-Identifier: Apache-2.0
"""The sizes of a model, from its ``config.json``. Pure.

Only architectures whose layers are known are described: attention, and a gated feed-forward network or
experts of this kind. Of any other model, and where sizes are missing, nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_DENSE = frozenset({
    "cohere", "cohere2", "exaone4", "gemma", "gemma2", "gemma3_text", "glm", "glm4", "granite", "internlm2",
    "llama", "ministral", "mistral", "olmo", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "smollm3",
})  # fmt: skip
_OF_EXPERTS = frozenset({
    "deepseek_v2", "deepseek_v3", "gpt_oss", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe",
})  # fmt: skip
_TIED = frozenset({"cohere", "cohere2", "gemma", "gemma2", "gemma3_text"})
"""Whose input and output embeddings are one unless their config says otherwise."""
_EVERY_FULL = {"cohere2": 4, "gemma2": 2, "gemma3_text": 6, "gpt_oss": 2, "olmo3": 4}
"""Every such layer has full attention, the others a sliding window."""
_PADDING = 64
"""vLLM pads the vocabulary to a multiple of it."""
_QUANTISATIONS = ("quantization_config", "compression_config")
"""Where a config says how it is quantised; the second name is of old compressed-tensors."""
_GROUP_BITS = 0.2
"""Of scales and zero points, for a weight in 4 bits in groups of 128."""
_BITS = {"fp8": 8.0, "fbgemm_fp8": 8.0, "mxfp4": 4.25}


@dataclass(frozen=True)
class ModelShape:
    """Sizes that decide how much memory a model needs.

    :param widest: elements of the feed-forward network that one token has in a layer at once.
    :param layer_parameters: of all layers together, without embeddings.
    :param expert_parameters: those of them that belong to experts.
    :param tied: whether input and output embeddings are one.
    :param sliding_layers: layers that keep a window of tokens.
    :param latent: elements a token and layer keeps in place of keys and values (MLA); 0 without.
    :param stored_bits: bits a weight of a layer takes where the checkpoint is quantised; ``None`` otherwise,
        and 0 where they are not known.
    :param has_encoder: whether the model takes images or sound, too, whose encoder is not counted here.
    """

    kind: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    context: int
    widest: int
    layer_parameters: int
    expert_parameters: int = 0
    tied: bool = False
    sliding_layers: int = 0
    window: int = 0
    latent: int = 0
    stored_bits: float | None = None
    has_encoder: bool = False

    @property
    def needs_files(self) -> bool:
        """Whether weights are of several sizes, or of parts not counted here, so that files tell more."""
        return self.stored_bits is not None or self.has_encoder

    @property
    def embedding_parameters(self) -> int:
        """Of one embedding."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Of the text model."""
        return self.layer_parameters + self.embedding_parameters * (1 if self.tied else 2)


def shape_of(config: Mapping[str, Any]) -> ModelShape | None:
    """The model's shape.

    :param config: the content of ``config.json``. In that of a model that takes images, too, the text model's
        lies in `text_config`.
    :returns: ``None`` for architectures that are not known, and where a size is missing or makes no sense.
    """
    text = config.get("text_config")
    nested = text if isinstance(text, Mapping) else None
    try:
        return _shape(nested or config, config, nested is not None)
    except _MissingSizeError:
        return None


class _MissingSizeError(Exception):
    """A size is missing, or no positive whole number."""


def _size(config: Mapping[str, Any], *names: str, default: int | None = None) -> int:
    """The first of these that is there."""
    found = next((config[name] for name in names if config.get(name) is not None), default)
    if not isinstance(found, int) or isinstance(found, bool) or found < 0 or (found == 0 and default != 0):
        raise _MissingSizeError
    return found


def _shape(config: Mapping[str, Any], whole: Mapping[str, Any], has_encoder: bool) -> ModelShape:
    kind = str(config.get("model_type"))
    if kind not in _DENSE | _OF_EXPERTS:
        raise _MissingSizeError
    hidden, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers")
    heads = _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads", default=heads)
    head_dim = _size(config, "head_dim", default=hidden // heads)
    latent, attention = _attention(config, hidden, heads, kv_heads, head_dim)
    network, experts, widest = _networks(config, kind, hidden, layers)
    tied = config.get("tie_word_embeddings", whole.get("tie_word_embeddings"))
    sliding, window = _sliding(config, kind, layers)
    return ModelShape(
        kind=kind,
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=-(-_size(config, "vocab_size") // _PADDING) * _PADDING,
        context=_size(config, "max_position_embeddings"),
        widest=widest,
        layer_parameters=layers * attention + network + experts,
        expert_parameters=experts,
        tied=kind in _TIED if tied is None else bool(tied),
        sliding_layers=sliding,
        window=window,
        latent=latent,
        stored_bits=_stored_bits(
            next(filter(None, (one.get(name) for one in (whole, config) for name in _QUANTISATIONS)), None)
        ),
        has_encoder=has_encoder,
    )


def _attention(
    config: Mapping[str, Any], hidden: int, heads: int, kv_heads: int, head_dim: int
) -> tuple[int, int]:
    """Elements that a token keeps in place of keys and values, and the parameters of a layer's attention."""
    rank = _size(config, "kv_lora_rank", default=0)
    if not rank:
        return 0, 2 * hidden * head_dim * (heads + kv_heads)
    rotary, plain = _size(config, "qk_rope_head_dim"), _size(config, "qk_nope_head_dim")
    value, of_queries = _size(config, "v_head_dim"), _size(config, "q_lora_rank", default=0)
    queries = heads * (rotary + plain)
    first = hidden * queries if not of_queries else of_queries * (hidden + queries)
    return rank + rotary, (
        first + hidden * (rank + rotary) + rank * heads * (plain + value) + heads * value * hidden
    )


def _networks(config: Mapping[str, Any], kind: str, hidden: int, layers: int) -> tuple[int, int, int]:
    """Parameters of the feed-forward networks outside of experts, those of experts, and the widest."""
    if kind in _DENSE:
        dense = _size(config, "intermediate_size")
        return layers * 3 * hidden * dense, 0, dense
    experts = _size(config, "num_experts", "num_local_experts", "n_routed_experts")
    inner = _size(config, "moe_intermediate_size", "intermediate_size")
    active = _size(config, "num_experts_per_tok", "experts_per_token")
    shared = _size(config, "shared_expert_intermediate_size", default=0)
    shared += inner * _size(config, "n_shared_experts", default=0)
    plain = _plain_layers(config, layers)
    dense = _size(config, "intermediate_size") if plain else 0
    routed = layers - plain
    outside = plain * 3 * hidden * dense + routed * hidden * (3 * shared + experts)
    return outside, routed * experts * 3 * hidden * inner, max(dense, active * inner + shared)


def _plain_layers(config: Mapping[str, Any], layers: int) -> int:
    """Layers of a model of experts that have none."""
    step = _size(config, "decoder_sparse_step", default=1)
    named = config.get("mlp_only_layers") or ()
    if not isinstance(named, (list, tuple)):
        raise _MissingSizeError
    plain = sum((number + 1) % step != 0 or number in named for number in range(layers))
    return min(layers, plain + _size(config, "first_k_dense_replace", default=0))


def _sliding(config: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """How many layers keep a window of tokens, and the window.

    :raises _MissingSizeError: layers have another kind of attention, whose cache is not known.
    """
    window = config.get("sliding_window")
    if not isinstance(window, int) or window < 1 or config.get("use_sliding_window") is False:
        return 0, 0
    kinds = config.get("layer_types")
    if isinstance(kinds, (list, tuple)):
        if len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise _MissingSizeError
        return list(kinds).count("sliding_attention"), window
    if kind.startswith("qwen"):
        first = _size(config, "max_window_layers", default=layers)
        return (max(0, layers - first), window) if config.get("use_sliding_window") else (0, 0)
    step = _EVERY_FULL.get(kind)
    if step is None:
        return layers, window
    step = _size(config, "sliding_window_pattern", "_sliding_window_pattern", default=step)
    return layers - layers // step, window


def _stored_bits(quantisation: Any) -> float | None:
    """Bits of a quantised weight; 0 for ways of quantising that are not known."""
    if not isinstance(quantisation, Mapping):
        return None
    method = str(quantisation.get("quant_method", ""))
    if method in _BITS:
        return _BITS[method]
    if method == "bitsandbytes":
        return 4.5 if quantisation.get("load_in_4bit") else 8.0
    if method == "compressed-tensors":
        groups = quantisation.get("config_groups")
        found = [
            one["weights"].get("num_bits")
            for one in (groups.values() if isinstance(groups, Mapping) else ())
            if isinstance(one, Mapping) and isinstance(one.get("weights"), Mapping)
        ]
        bits = max((one for one in found if isinstance(one, int)), default=0)
    else:
        given = quantisation.get("bits", quantisation.get("w_bit")) if method in {"awq", "gptq"} else None
        bits = given if isinstance(given, int) else 0
    return bits + _GROUP_BITS if 0 < bits < 8 else float(bits)
