# SPDX-License-Identifier: Apache-2.0
"""Collects why a job would be refused: the checks of preflight, without stopping at the first that fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from airflow_provider_raybatch.contract.events import Event, Notice, Phase
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.contract.text import without_queries
from airflow_provider_raybatch.job.failures.diagnosis import diagnose


class Refusals:
    """Sentences so far, each once.

    :param forward: gets each :class:`Phase` at once.
    :ivar sentences: why the job would be refused.
    :ivar notices: what else it would say.
    """

    def __init__(self, forward: Callable[[Event], object]) -> None:
        self._forward = forward
        self.sentences: list[str] = []
        self.notices: list[str] = []

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Around a check: its error becomes a sentence. A defect of this package is still raised."""
        try:
            yield
        except Exception as error:
            failure_class, sentence = diagnose(error)
            if failure_class is FailureClass.INTERNAL:
                raise
            self.refuse(without_queries(sentence))

    def passes(self, check: Callable[..., object], *arguments: object) -> bool:
        """Call a check that raises what is wrong; whether nothing is."""
        before = len(self.sentences)
        with self.caught():
            check(*arguments)
        return len(self.sentences) == before

    def refuse(self, sentence: str) -> None:
        """Add a sentence."""
        if sentence not in self.sentences:
            self.sentences.append(sentence)

    def withdraw(self, *beginnings: str) -> None:
        """Forget sentences that a later one says better."""
        self.sentences = [one for one in self.sentences if not one.startswith(beginnings)]

    def note(self, sentence: str) -> None:
        """Add a notice."""
        if sentence not in self.notices:
            self.notices.append(sentence)

    def emit(self, event: Event) -> None:
        """As a job's: notices are kept, phases are forwarded, progress is dropped."""
        if isinstance(event, Notice):
            self.note(event.message)
        elif isinstance(event, Phase):
            self._forward(event)

    def begin(self, check: str) -> None:
        """Say which check begins, since it may take minutes."""
        self.emit(Phase(phase="preflight", message=check))
