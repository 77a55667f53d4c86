# SPDX-License-Identifier: Apache-2.0
"""Exceptions of a job with ``report_samples=0``, before they reach a log, an event, a file or Ray.

What this package raises brings a public sentence along. The text of any other exception may quote rows (Arrow
shows the value that it can't convert), so only its class is said, and where it was raised.
"""

from __future__ import annotations

import functools
import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.job.failures.diagnosis import chain, diagnose, own_error

T = TypeVar("T")


def public_error(error: Exception) -> RaybatchError:
    """The error with its public sentence alone, raised at the same place.

    :returns: of the same class, if it is one of this package.
    """
    if (own := own_error(error)) is not None:
        made = own.reworded(own.public)
    else:
        failure_class, sentence = diagnose(error, shows_rows=False)
        made = RaybatchError(sentence, failure_class)
    return made.with_traceback(error.__traceback__)


@contextmanager
def guarded(shows_rows: bool) -> Iterator[None]:
    """Let only public errors out of a process: Ray keeps and shows the texts of those that it carries."""
    try:
        yield
    except Exception as error:
        if shows_rows:
            raise
        raise public_error(error) from None


def guarded_task(function: Callable[..., T], shows_rows: bool) -> Callable[..., T]:
    """`function`, guarded where it runs."""
    if shows_rows:
        return function

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with guarded(shows_rows):
            made = function(*arguments, **named)
            return _guarded_values(made) if inspect.isgenerator(made) else made

    return call


def _guarded_values(made: Iterator[Any]) -> Iterator[Any]:
    with guarded(shows_rows=False):
        yield from made


def traceback_of(error: BaseException, shows_rows: bool) -> str:
    """As Python prints it; without the texts of exceptions where rows are not shown."""
    if shows_rows:
        return "".join(traceback.format_exception(error))
    frames = ("".join([*traceback.format_tb(one.__traceback__), type(one).__name__]) for one in chain(error))
    return "\n\n".join(frames)
