# SPDX-License-Identifier: Apache-2.0
"""The new lines of a driver's log, and which of them Ray itself says.

Ray gives no offsets, so consecutive tails are overlapped.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence

from airflow_provider_raybatch.contract.text import clean

_LEAST_OVERLAP = 4


def digest(line: str) -> str:
    """A short digest of a line, kept instead of the line."""
    return hashlib.blake2b(line.encode(errors="surrogatepass"), digest_size=6).hexdigest()


def first_new(seen: Sequence[str], tail: Sequence[str], limit: int) -> int | None:
    """Index of the first line in `tail` that earlier polls didn't show; ``None`` if lines were missed.

    :param seen: digests of the last lines that earlier polls showed, oldest first; of the whole log if it has
        fewer than `limit` lines.
    :param tail: digests of the lines that this poll shows.
    """
    if not seen or not tail:
        return 0
    return next(_starts(seen, tail, limit), None)


def tells_growth(seen: Sequence[str], tail: Sequence[str], limit: int) -> bool:
    """Whether it is certain which lines of a short tail are new.

    A few lines may be equal by chance, so the two must overlap in one way only, and by several lines.
    """
    starts = list(_starts(seen, tail, limit)) if seen else []
    return len(starts) == 1 and starts[0] >= min(_LEAST_OVERLAP, len(seen))


def _starts(seen: Sequence[str], tail: Sequence[str], limit: int) -> Iterator[int]:
    # Logs only grow: if the whole log was seen, at least as many lines are new as it has grown by.
    least = max(0, len(tail) - len(seen)) if len(seen) < limit else 0
    for new in range(least, len(tail)):
        start = len(tail) - new
        if seen[-1] != tail[start - 1]:
            continue
        overlap = min(len(seen), start)
        if list(seen[-overlap:]) == list(tail[start - overlap : start]):
            yield start


_CORE = r"\[\d{4}-\d\d-\d\d [\d:,]+ [A-Z] \d+ \d+\] (?:\(\w+\) )?\w+\.(?:cc|h):\d+:"
_LOGGER = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d+\t[A-Z]+ \w+\.py:\d+ -- "
_RAYS_OWN = re.compile(rf"(?:\(\w+(?:,? [^)]*)?\) )?{_CORE}|{_LOGGER}|\(autoscaler \+")

_OF_CORE = r".*\] (?:\(\w+\) )?\w+\.(?:cc|h):\d+: "
_CHATTER = re.compile(
    # The lowest levels, of Ray's core and of what connects a driver.
    r"\[\d{4}-\d\d-\d\d [\d:,]+ [DI] "
    r"|\S+ \S+\tINFO (?:job_manager|packaging|worker)\.py:\d+ -- (?:Runtime env is setting up|Using address "
    r"|Connect(?:ing|ed) to |Pushing file package|Successfully pushed|Creating a file package)"
    # Of Ray Data's own actors: their arguments are lost with the driver, and then the job is over anyway.
    rf"|{_OF_CORE}Actor with class name: 'MapWorker\(.* has constructor arguments in the object store"
    # Of Ray Data's progress, the rows of each operator stay.
    r"|\S+ \S+\tINFO logging_progress\.py:\d+ -- (?:=|Active & requested|  Tasks:|$)"
    r"|\S+ \S+\tINFO streaming_executor\.py:\d+ -- (?:Starting execution|Execution plan) of"
    rf"|{_LOGGER}(?:Progress bars disabled|Progress will be logged)"
    r"|\(autoscaler \+\w+\) Tip: "
)
_TOLD_BY_THE_JOB = re.compile(
    # A batch inference has judged whether the cluster holds it, and tells how many engines are ready.
    rf"{_LOGGER}Cluster resources are not enough"
    r"|\(raylet[^)]*\) .* You can ignore this message"
    r"|Running entrypoint for job \S+: python -m airflow_provider_raybatch\."
)


def for_task_log(line: str, batch: bool) -> str | None:
    """The text for a task's log, marked if it is Ray's own; ``None`` for what tells nothing of the job.

    :param batch: whether it is the log of a batch inference, which tells its own progress.
    """
    text = clean(line)
    if batch and _TOLD_BY_THE_JOB.match(text):
        return None
    if not _RAYS_OWN.match(text):
        return text
    return None if _CHATTER.match(text) else f"Ray: {text}"
