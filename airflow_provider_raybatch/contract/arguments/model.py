# SPDX-License-Identifier: Apache-2.0
"""Which model answers."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown


class ModelArguments(ContractModel):
    """The model, as vLLM names it.

    :param template_time: epoch seconds that a chat template prints which asks for the date; filled in by the
        job, so that all rows of a run have one date.
    """

    model: str = Field(min_length=1)
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    template_time: float | None = None

    @field_validator("chat_template")
    @classmethod
    def _text_of_a_template(cls, template: str | None) -> str | None:
        # A plain word may be the name of one of the tokenizer's own templates, such as "tool_use".
        named = template is None or template.isidentifier()
        if not named and "{{" not in str(template) and "{%" not in str(template):
            raise ValueError(
                f"{shown(template)} has no Jinja expression, so each row would ask the same; "
                "give the template's text, not the path of its file"
            )
        return template
