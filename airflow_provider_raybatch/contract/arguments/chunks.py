# SPDX-License-Identifier: Apache-2.0
"""How long texts become several vectors: cut into chunks, each a row of the dataset."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field, model_validator

from airflow_provider_raybatch.contract.base import ContractModel

_WITHOUT_EFFECT: Mapping[str, str] = {
    "on_overlong": "each text is cut into chunks that the model takes, so none is overlong; remove it",
    "on_blank": "a blank text has no chunk, and fails its row; set max_error_fraction for such rows",
    "postprocess": "a row has several vectors, and it would be called once; work on the dataset instead",
}
"""Arguments that don't go with `chunk_tokens`, each with why."""


class ChunkArguments(ContractModel):
    """How long texts become several vectors.

    :param chunk_tokens: of a chunk at most, with special tokens; ``None`` for one vector a text.
    :param chunk_overlap_tokens: tokens at the end of a chunk that begin the next one, too; at most half of a
        chunk.
    """

    chunk_tokens: int | None = Field(default=None, ge=1)
    chunk_overlap_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _chunks_go_on(self) -> ChunkArguments:
        most, overlap = self.chunk_tokens, self.chunk_overlap_tokens
        if most is None:
            if overlap:
                without = "it has no effect without chunk_tokens; give that, too, or remove it"
                raise ValueError(f"chunk_overlap_tokens: {without}")
            return self
        if overlap > most // 2:
            half = f"at most half of chunk_tokens ({most:,})"
            raise ValueError(f"chunk_overlap_tokens: it may be {half}, but it is {overlap:,}")
        fields = type(self).model_fields
        for name, why in _WITHOUT_EFFECT.items():
            if name in fields and getattr(self, name) != fields[name].get_default():
                raise ValueError(f"{name}: with chunk_tokens, {why}")
        return self
