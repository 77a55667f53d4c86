# SPDX-License-Identifier: Apache-2.0
"""Images beside the text of a row, and what a row may make the cluster read for them."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field, field_validator, model_validator

from airflow_provider_raybatch.contract.base import ContractModel, shown
from airflow_provider_raybatch.contract.location import WILDCARDS, check_location

ROOT_SCHEMES = ("file", "s3")
_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.(?!-)[a-z0-9-]{1,63})*")


class ImageArguments(ContractModel):
    """Images beside the text of a row.

    A reference is a path or a URI in a row. Rows come from anywhere, so they don't decide what the cluster
    reads with its credentials: only what lies below a root is, or behind `https` on a host that is named.

    :param images: columns that hold a row's images, in the order in which the model sees them: bytes, structs
        with ``bytes`` or ``path`` as Hugging Face's datasets write them, references, or lists of these.
    :param image_roots: folders and prefixes below which references may lie; ``None`` for those in which the
        source's files are.
    :param image_hosts: host names that references to ``https://`` may have.
    :param keep_images: whether the dataset has the columns of `images` that hold bytes.
    :param max_image_bytes: of an image as it is stored.
    :param max_image_pixels: of an image, checked before it is decoded.
    :param image_timeout: seconds for fetching and decoding one image.
    """

    images: list[str] = Field(default_factory=list)
    image_roots: list[str] | None = None
    image_hosts: list[str] = Field(default_factory=list)
    keep_images: bool = False
    max_image_bytes: int = Field(default=20 * 2**20, ge=1)
    max_image_pixels: int = Field(default=64_000_000, ge=1)
    image_timeout: float = Field(default=30.0, gt=0, le=3600)

    @field_validator("images", mode="before")
    @classmethod
    def _one_column(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("images")
    @classmethod
    def _columns_differ(cls, columns: list[str]) -> list[str]:
        for place, name in enumerate(columns):
            if not name:
                raise ValueError("a name of a column is empty; name the columns that hold images")
            if name in columns[:place]:
                raise ValueError(f"{name!r} stands there twice; name each column once")
        return columns

    @field_validator("image_roots")
    @classmethod
    def _roots_are_folders(cls, roots: list[str] | None) -> list[str] | None:
        for root in roots or ():
            check_location(root, ROOT_SCHEMES)
            if WILDCARDS & set(root):
                raise ValueError(f"{root!r} has a wildcard; name the folder above it")
        return roots

    @field_validator("image_hosts")
    @classmethod
    def _are_hosts(cls, hosts: list[str]) -> list[str]:
        lowered = [host.lower() for host in hosts]
        for host in lowered:
            if not _HOST.fullmatch(host):
                raise ValueError(
                    f"{shown(host)} is not the name of a host; write it as images.example.com, without a "
                    "scheme, port or path"
                )
        return lowered

    @model_validator(mode="after")
    def _bytes_are_of_columns(self) -> ImageArguments:
        if self.keep_images and not self.images:
            raise ValueError("keep_images: it has no effect without images; name their columns, or remove it")
        return self
