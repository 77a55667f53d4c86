# SPDX-License-Identifier: Apache-2.0
"""What a GPU hour costs a batch inference: the connection's prices, and what the operator says instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.coercion import from_text, is_absent
from airflow_provider_raybatch.contract.arguments.limits import DEFAULT_CURRENCY
from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.places.choosing import is_cluster

if TYPE_CHECKING:
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.places.place import Place


def with_prices(spec: BatchInferenceSpec, arguments: Mapping[str, Any], place: Place) -> BatchInferenceSpec:
    """The spec with the prices of its GPUs, in their currency.

    The operator's dictionary is merged over the connection's prices; its number replaces them.

    :param arguments: rendered, those of the spec.
    :raises SpecError: the two have different currencies, or `max_cost` has no price.
    """
    given, of_place = spec.gpu_hour_price, place.gpu_hour_price
    has_currency = not is_absent(arguments.get("currency"))
    if isinstance(from_text(arguments.get("gpu_hour_price")), Mapping) or given is None:
        in_currency = place.currency or DEFAULT_CURRENCY
        if has_currency and of_place and spec.currency != in_currency:
            raise SpecError(
                f"currency: {spec.currency!r} is given, and the prices of {_in_sentence(place.name)} are in "
                f"{in_currency}; give gpu_hour_price as a number, or leave currency out."
            )
        given = {**(of_place or {}), **(given or {})} or None
    if spec.max_cost is not None and given is None:
        raise SpecError(_no_price(place.name if place.has_prices else None))
    currency = spec.currency if has_currency else place.currency or spec.currency
    return spec.model_copy(update={"gpu_hour_price": given, "currency": currency})


def check_has_price(spec: BatchInferenceSpec, ray_cluster: Any) -> None:
    """Refuse a `max_cost` while the DAG is parsed, where no connection can give a price.

    :raises SpecError: the operator gives none.
    """
    if spec.max_cost is not None and spec.gpu_hour_price is None and is_cluster(ray_cluster):
        raise SpecError(_no_price(None))


def _no_price(place: str | None) -> str:
    also = "" if place is None else f", or set it in extra of {_in_sentence(place)}"
    return f"max_cost: no price of a GPU hour is known to reckon it by; give gpu_hour_price{also}."


def _in_sentence(name: str) -> str:
    return name[:1].lower() + name[1:] if name.startswith("Connection") else name
