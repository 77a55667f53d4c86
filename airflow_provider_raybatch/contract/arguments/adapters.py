# SPDX-License-Identifier: Apache-2.0
"""Where an adapter (LoRA) lies: a folder, a prefix in S3, or a name on the Hugging Face hub."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

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
