# SPDX-License-Identifier: Apache-2.0
"""From an exception of Ray, vLLM or Python to a failure class and one sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import ValidationError

from airflow_provider_raybatch.contract.failures import FailureClass, RaybatchError
from airflow_provider_raybatch.contract.text import in_words

_LONGEST = 600
_MARKS: tuple[tuple[FailureClass, tuple[str, ...], str], ...] = (
    (
        FailureClass.OUT_OF_MEMORY,
        (
            "OutOfMemoryError",
            "CUDA out of memory",
            "out of memory",
            "No available memory for the cache blocks",
            "oom-killed",
            "memory utilization",
        ),
        "lower gpu_memory_utilization in engine_args, or use a larger tensor_parallel_size",
    ),
    (
        FailureClass.OUT_OF_MEMORY,
        (
            "larger than the maximum number of tokens that can be stored in KV cache",
            "larger than the available KV cache memory",
        ),
        "lower max_model_len in engine_args, or raise gpu_memory_utilization",
    ),
    (
        FailureClass.ENGINE_DEAD,
        ("Error in memory profiling",),
        "another process freed memory of the GPU while the engine measured it; the retry starts it again",
    ),
    (
        FailureClass.USER_ERROR,
        (
            "does not appear to have a file named",
            "is not a local folder and is not a valid model identifier",
            "Repository Not Found",
            "Can't load the configuration",
            "not a valid model",
            "Invalid repository ID",
        ),
        "check the operator's argument model, and hf_conn_id where the model is gated",
    ),
    (
        FailureClass.STORAGE,
        # Ray's own text first: its line says more than the name of the class.
        (
            "local disk's utilization is over capacity",
            "OutOfDiskError",
            "No space left on device",
            "Disk quota exceeded",
        ),
        "make room on the disks of the cluster's nodes: the retry goes on with the missing rows",
    ),
    (
        FailureClass.NODE_LOST,
        ("NodeDiedError", "its node has died", "The node has been terminated"),
        "the retry goes on with the missing rows",
    ),
    (
        FailureClass.ENGINE_DEAD,
        (
            "EngineDeadError",
            "ActorDiedError",
            "ActorUnavailableError",
            "The actor died",
            "worker process has died",
        ),
        "the engine's own log on the cluster says more; the retry goes on with the missing rows",
    ),
    (
        FailureClass.INTERNAL,
        ("GetTimeoutError",),
        "an actor did not answer in time, as on a node without free CPU; the retry goes on",
    ),
    (
        FailureClass.USER_ERROR,
        ("validation error for", "pydantic_core._pydantic_core.ValidationError", "VLLMValidationError"),
        "check engine_args and sampling",
    ),
)
_NOISE = re.compile(
    r"^(ray::|\s|Traceback|During handling|The above exception|\(.*pid=|The actor|For debugging|\^|File )"
)

_OWN = re.compile(r"^airflow_provider_raybatch\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_CLASS = re.compile(r"(?:\w+\.)*([A-Z]\w*(?:Error|Exception|Exit|Timeout|Died))(?:\(\w+\))?(?::\s*|$)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def diagnose(error: BaseException, *, shows_rows: bool = True) -> tuple[FailureClass, str]:
    """Class and sentence of what ended the job: those of this package's own error in it, else by its text.

    :param shows_rows: whether the sentence may quote rows, see :func:`public_text`.
    """
    if (mine := own_error(error)) is not None:
        return mine.failure_class, _one_line(str(mine) if shows_rows else mine.public)
    if any(isinstance(inner, KeyboardInterrupt) for inner in chain(error)):
        return FailureClass.CANCELLED, "the job was stopped."
    text = _COLOUR.sub("", "\n".join(f"{type(inner).__name__}: {inner}" for inner in chain(error)))
    own = _OWN.findall(text)
    if own:  # an actor's exception comes as the text of its traceback
        name, sentence = own[-1]
        return _class_of(name), _one_line(sentence) if shows_rows else f"{public_text(error)}."
    return _by_marks(text, None if shows_rows else public_text(error))


def _class_of(name: str) -> FailureClass:
    known = [RaybatchError]
    for kind in known:
        known += kind.__subclasses__()
    return next((kind.failure_class for kind in known if kind.__name__ == name), FailureClass.INTERNAL)


def start_failure(cause: str) -> RaybatchError:
    """The error of an engine that did not start, by its root cause (``Class: text``)."""
    failure_class, sentence = _by_marks(cause)
    if failure_class is FailureClass.INTERNAL:
        # A retry does not mend the usual reasons: arguments, model and machine.
        failure_class = FailureClass.USER_ERROR
    return RaybatchError(f"engine_args: the engine did not start: {sentence}", failure_class)


def reason_of(error: BaseException) -> str:
    """The text of an error; of pydantic's, the fields and what each must be."""
    if not isinstance(error, ValidationError):
        return str(error)
    told = (
        f"{'.'.join(map(str, one['loc'])) or error.title}: {one['msg']}"
        for one in error.errors(include_url=False, include_context=False)
    )
    return f"validation error for {error.title}: {'; '.join(told)}"


def short(error: BaseException) -> str:
    """The beginning of :func:`reason_of`, on one line, for a part of a sentence."""
    text = " ".join(reason_of(error).split())
    return (text or in_words(type(error).__name__, ""))[: _LONGEST // 2].rstrip(".")


def without_traceback(text: str) -> str:
    """The line that says what went wrong, of what Python or Ray printed of an error."""
    return _telling(_COLOUR.sub("", text), None)


def _by_marks(everything: str, public: str | None = None) -> tuple[FailureClass, str]:
    """Class and sentence by the text of an exception.

    :param public: said in the place of its telling line.
    """
    for failure_class, marks, remedy in _MARKS:
        mark = next((mark for mark in marks if mark in everything), None)
        if mark is not None:
            told = _telling(everything, mark) if public is None else f"{mark!r} in {public}"
            return failure_class, f"{told}; {remedy}."
    return FailureClass.INTERNAL, _telling(everything, None) if public is None else public


def _telling(text: str, mark: str | None) -> str:
    """The line with the cause: the one with the mark, else the last one outside of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.match(line)]
    if mark is not None:
        lines = [line for line in lines if mark in line] or lines
    named = [
        (found[1], line[found.end() :]) if (found := _CLASS.match(line)) else ("", line) for line in lines
    ]
    # An exception without a text, such as the end of a stream, says less than those around it.
    kind, said = next((one for one in reversed(named) if one[1]), named[-1] if named else ("", text))
    return _one_line(in_words(kind, said)).rstrip(".")


def _one_line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 3] + "..."


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
