# SPDX-License-Identifier: Apache-2.0
"""Which model answers, and where its adapters (LoRA) lie."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown
from airflow_provider_raybatch.contract.location import check_location, check_model_folder


def check_adapter(location: str) -> str:
    """Refuse what can't be an adapter's location.

    :returns: the location.
    :raises ValueError: one sentence, without the field's name.
    """
    scheme, has_scheme, _ = location.partition("://")
    if has_scheme and scheme.lower() == "s3":
        check_location(location, ("s3",))
    elif has_scheme and scheme.lower() != "file":
        raise ValueError(
            f"{scheme + '://'!r} is not read for adapters; use s3://, a folder that all nodes see, or a "
            "Hugging Face id"
        )
    else:
        check_model_folder(location)
    return location


AdapterLocation = Annotated[str, Field(min_length=1), AfterValidator(check_adapter)]
"""Where an adapter lies: a folder, ``s3://`` or a name on the Hugging Face hub."""


def is_on_hub(location: str) -> bool:
    """Whether this is a name on the Hugging Face hub."""
    return not location.startswith("/") and "://" not in location


def revision_of(location: str) -> tuple[str, str | None]:
    """The location without its revision, and the revision of a name on the hub (``name@revision``)."""
    name, _, revision = location.partition("@") if is_on_hub(location) else (location, "", "")
    return name, revision or None


class ModelArguments(ContractModel):
    """The model, as vLLM names it, and its adapters (LoRA).

    :param adapter_digests: of the adapters' content, by name; filled in by the job.
    :param template_time: epoch seconds that a chat template prints which asks for the date; filled in by the
        job, so that all rows of a run have one date.
    """

    model: str = Field(min_length=1)
    adapter: AdapterLocation | None = None
    adapters: dict[str, str] = Field(default_factory=dict)
    adapter_column: str | None = Field(default=None, min_length=1)
    adapter_digests: dict[str, str] = Field(default_factory=dict)
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    template_time: float | None = None

    @field_validator("adapters")
    @classmethod
    def _adapters_can_be_read(cls, adapters: dict[str, str]) -> dict[str, str]:
        for name, location in adapters.items():
            if not name:
                raise ValueError("an adapter has an empty name, which rows have for the model alone; name it")
            try:
                check_adapter(location)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return adapters

    @property
    def adapter_locations(self) -> dict[str, str]:
        """Where each adapter of the job lies, by the name that requests have for it."""
        return self.adapters if self.adapter is None else {revision_of(self.adapter)[0]: self.adapter}

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
