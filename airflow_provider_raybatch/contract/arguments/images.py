# SPDX-License-Identifier: Apache-2.0
"""Images beside the text of a row, and what a row may make the cluster read for them."""

from __future__ import annotations

import contextlib
import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from airflow_provider_raybatch.contract.base import Seconds, SpecPart, shown
from airflow_provider_raybatch.contract.location import WILDCARDS, check_location

ROOT_SCHEMES = ("file", "s3")
PROCESSOR_CACHE = "mm_processor_cache_gb"
"""VLLM's engine argument for its cache of processed images, which a job with images runs without."""
_HOST = re.compile(r"(?!-)[a-z0-9-]{1,63}(\.(?!-)[a-z0-9-]{1,63})*")


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class ImageLimits(SpecPart):
    """What a row may make the cluster read for its images; none of it changes a response.

    A reference is a path or a URI in a row. Rows come from anywhere, so they don't decide what the cluster
    reads with its credentials: only what lies below a root is, or behind `https` on a host that is named.

    :param image_roots: folders and prefixes below which references may lie; ``None`` for those in which the
        source's files are.
    :param image_hosts: host names that references to ``https://`` may have.
    :param max_image_bytes: of an image as it is stored.
    :param max_image_pixels: of an image, checked before it is decoded.
    :param image_timeout: seconds for fetching and decoding one image.
    """

    image_roots: list[str] | None = None
    image_hosts: list[str] = Field(default_factory=list)
    max_image_bytes: int = Field(default=20 * 2**20, ge=1)
    max_image_pixels: int = Field(default=64_000_000, ge=1)
    image_timeout: Seconds = Field(default=30.0, gt=0, le=3600)

    @field_validator("image_roots", "image_hosts", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return _listed(value)

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


def _checked_columns(columns: list[str]) -> list[str]:
    for place, name in enumerate(columns):
        if name in columns[:place]:
            raise ValueError(f"{name!r} is named twice; name each column once")
    return columns


ImageColumns = Annotated[list[str], BeforeValidator(_listed), AfterValidator(_checked_columns)]
"""Columns of images: one name, or several."""


class ImageArguments(SpecPart):
    """Images beside the text of a row.

    :param images: columns that hold a row's images, in the order in which the model sees them: bytes, structs
        with ``bytes`` or ``path`` as Hugging Face's datasets write them, references, or lists of these.
    :param keep_images: whether the dataset has the columns of `images` that hold bytes.
    """

    images: ImageColumns = Field(default_factory=list)
    keep_images: bool = False

    @model_validator(mode="after")
    def _images_reach_the_model(self) -> ImageArguments:
        given: Any = self
        if self.keep_images and not given.image_columns:
            raise ValueError("keep_images: it has no effect without images; name their columns, or remove it")
        if self.images and (why := self.no_images):
            raise ValueError(f"images: {why}")
        return self

    @property
    def no_images(self) -> str:
        """Why requests of this job can't have images; empty where they can."""
        given: Any = self
        if given.pools:
            return f"model_task {given.model_task!r} takes no images; remove them"
        if given.engine == "ray_data_llm":
            return "engine 'ray_data_llm' takes no images from here; use engine 'vllm', or remove them"
        if given.on_overlong == "truncate":
            return (
                "on_overlong='truncate' cuts texts until the prompt fits, before the room of its images is "
                "known; remove one of the two"
            )
        if _is_more_than_zero(given.engine_args.get(PROCESSOR_CACHE)):
            return (
                f"engine_args has {PROCESSOR_CACHE} {given.engine_args[PROCESSOR_CACHE]!r}, a cache that "
                "needs requests in the order in which they were processed, and here they overtake each "
                "other; leave it out"
            )
        return ""


def _is_more_than_zero(value: Any) -> bool:
    with contextlib.suppress(TypeError, ValueError):  # vLLM refuses what is not a number
        return float(value) > 0
    return False
