# SPDX-License-Identifier: Apache-2.0
"""The exceptions behind an exception, and what a job with ``report_samples=0`` may say of them."""

from __future__ import annotations

from collections.abc import Iterator

from airflow_provider_raybatch.contract.failures import RaybatchError


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it; Ray keeps the remote cause in `cause`."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        current = queue.pop(0)
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        queue += [getattr(current, "cause", None), current.__cause__, current.__context__]


def own_error(error: BaseException) -> RaybatchError | None:
    """The first error of this package in the chain of causes."""
    for inner in chain(error):
        # Ray's error of a failed task is also an instance of the cause's class, but without its text and its
        # failure class. Known by its name, since reports are made where there is no Ray.
        of_ray = any(kind.__name__ == "RayTaskError" for kind in type(inner).__mro__)
        if isinstance(inner, RaybatchError) and not of_ray:
            return inner
    return None


def public_text(error: BaseException) -> str:
    """What may be said of an exception without rows: its public sentence, else the names of its classes."""
    if (mine := own_error(error)) is not None:
        return mine.public
    kinds = dict.fromkeys(type(inner).__name__ for inner in chain(error))
    return f"{' from '.join(kinds)}, whose text is left out with report_samples=0, as it may quote rows"


def said(error: BaseException, shows_rows: bool) -> str:
    """The text of an exception as a log may show it, for a part of a sentence."""
    return str(error) if shows_rows else public_text(error)
