# SPDX-License-Identifier: Apache-2.0
"""Which arguments don't go together, and which need another: a table, from which that of the docs is made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from pydantic import model_validator

from airflow_provider_raybatch.contract.arguments.openai_batch import CUSTOM_ID, ENDPOINTS, OPENAI_BATCH
from airflow_provider_raybatch.contract.arguments.prompt import PROMPTS, name_of
from airflow_provider_raybatch.contract.arguments.sampling import LOGPROBS, are_asked
from airflow_provider_raybatch.contract.arguments.task import MODEL_TASKS
from airflow_provider_raybatch.contract.base import SpecPart

Of = Callable[[Any], object]
"""Whether something is so, by the spec."""


@dataclass(frozen=True)
class Other:
    """What another argument makes of a job.

    :param name: as a sentence has it, such as ``format 'openai_batch'``.
    :param field: the spec's field that decides it.
    :param holds: whether it does.
    """

    name: str
    field: str
    holds: Of


@dataclass(frozen=True)
class Conflict:
    """An argument that has no effect with, or without, something.

    :param argument: the spec's field.
    :param other: what it does not go with, or what it needs.
    :param why: and, after it, what to do.
    :param given: whether the argument is given; by default, whether it has another value than by default.
    :param needs: whether it needs `other`.
    """

    argument: str
    other: Other
    why: str
    remedy: str = "remove it"
    given: Of | None = None
    needs: bool = False

    def is_given(self, spec: Any) -> bool:
        """Whether `spec` has the argument."""
        if self.given is not None:
            return bool(self.given(spec))
        return bool(getattr(spec, self.argument) != _defaults(spec.__class__)[self.argument])

    @property
    def sentence(self) -> str:
        """Why it is refused, and what to do; without a full stop."""
        relation = "without" if self.needs else "with"
        name = name_of(self.argument)
        return f"{name}: it has no effect {relation} {self.other.name}: {self.why}; {self.remedy}"


@cache
def _defaults(model: Any) -> Mapping[str, Any]:
    return {
        name: None if field.is_required() else field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
    }


def _is_given(field: str) -> Other:
    return Other(field, field, lambda spec: getattr(spec, field) not in (None, [], {}))


_LINES = Other(f"format {OPENAI_BATCH!r}", "format", lambda spec: spec.asks_by_lines)
_STEPS, _REUSE, _ADAPTERS, _ADAPTER_COLUMN = map(_is_given, ("steps", "reuse", "adapters", "adapter_column"))
_CHUNKS, _DOCUMENTS = map(_is_given, ("chunk_tokens", "documents_column"))
_RAY = Other("engine 'ray_data_llm'", "engine", lambda spec: spec.engine == "ray_data_llm")
_NOT_VLLM = Other("another processor than vLLM's", "processor", lambda spec: not spec.has_vllm_sampling)
_SERVER = Other("a server's processor", "processor", lambda spec: spec.asks_server)
_OWN_TOOLS = Other("tools", "tools", lambda spec: spec.tools is not None)
_TOOLS = Other("tools", "tools", lambda spec: spec.tools or any(one.tools for one in spec.steps or ()))
_ANSWERS_LINES = Other(
    f"destination_format {OPENAI_BATCH!r}", "destination_format", lambda spec: spec.answers_lines
)
_OTHER_ENGINE = "use engine 'vllm', or remove it"


def _against(other: Other, *rules: tuple[Any, ...]) -> Iterator[Conflict]:
    """Rules of arguments, or tuples of them, with no effect beside `other`: each with why, and a remedy."""
    for names, *texts in rules:
        yield from (Conflict(name, other, *texts) for name in ([names] if isinstance(names, str) else names))


def _of_tasks() -> Iterator[Conflict]:
    for task, rules in MODEL_TASKS.items():
        other = Other(f"model_task {task!r}", "model_task", partial(_has_task, task))
        yield from (Conflict(name, other, why, remedy) for name, (why, remedy) in rules.without.items())


def _has_task(task: str, spec: Any) -> bool:
    return bool(spec.model_task == task)


RULES: tuple[Conflict, ...] = (
    *_against(
        _LINES,
        (PROMPTS, "the body of each line is what is asked"),
        ("system_prompt", "the messages of each line are what is asked"),
        ("steps", "the body of each line is the one request"),
        ("sampling_column", "the body of each line has its parameters"),
        ("response_format", "the body of each line has its own"),
        ("adapter_column", "a line has the name of the model, and no adapter"),
        ("images", "the messages of each line have their images, as 'data:' URIs"),
        (("image_roots", "image_hosts"), "a line has its images in it, and no references"),
        ("chunk_tokens", "a line gets one vector"),
        ("on_blank", "the body of each line is what is asked"),
    ),
    Conflict(
        "on_overlong", _LINES, "a line that is too long gets an error line",
        given=lambda spec: spec.on_overlong != "error" and not spec.pools,
    ),
    Conflict(
        "id_column", _LINES, f"its lines are named by {CUSTOM_ID!r}",
        given=lambda spec: spec.id_column != CUSTOM_ID,
    ),
    Conflict(
        "model_task", _LINES, "no endpoint of OpenAI's batches does it",
        f"choose {' or '.join(map(repr, ENDPOINTS))}", lambda spec: spec.model_task not in ENDPOINTS,
    ),
    Conflict(
        "served_model_name", _LINES, "it is the name of the model in lines of an OpenAI batch file",
        "set format='openai_batch', or remove it", needs=True,
    ),
    Conflict(
        "destination_format", _LINES, "'openai_batch' answers lines of an OpenAI batch file",
        "set format='openai_batch', or choose 'parquet' or 'jsonl'", lambda spec: spec.answers_lines, True,
    ),
    Conflict(
        "postprocess", _ANSWERS_LINES, "it adds columns, which lines have not",
        "remove it, or choose destination_format 'parquet'",
    ),
    *_against(
        _STEPS,
        (PROMPTS, "each step has its own prompt"),
        (("system_prompt", "response_format", "on_truncated"), "each step has its own"),
        (("tools", "tool_choice"), "each step has its own"),
        (("response_column", "output_prefix"), "the columns of a step begin with its name"),
        (("query", "document", "documents_column"), "steps generate text"),
        ("images", "each step names those that it shows", "give them to the steps"),
        ("on_overlong", "steps don't cut prompts"),
    ),
    Conflict("tool_call_parser", _TOOLS, "it reads their calls", "give them, or remove it", needs=True),
    Conflict(
        "prompt_column", _OWN_TOOLS, "it sends raw prompts, to which no chat template adds tools",
        "use prompt or messages",
    ),
    Conflict(
        "special_tokens_in_text", _SERVER, "its server reads special tokens", _OTHER_ENGINE
    ),
    Conflict(
        "response_format", _NOT_VLLM, "it takes no schema from here",
        "use engine 'vllm', or give the schema by the server's own parameter in sampling",
        lambda spec: spec.response_format not in ("text", "json_object"),
    ),
    *_of_tasks(),
    *_against(
        _CHUNKS,
        ("on_overlong", "each text is cut into chunks that the model takes, so none is overlong"),
        ("on_blank", "a blank text has no chunk, and fails its row", "set max_error_fraction for such rows"),
        ("postprocess", "a row has several vectors", "work on the dataset instead"),
    ),
    *_against(
        _RAY,
        (
            ("steps", "tools", "adapter", "adapters", "keep_warm", "on_overlong"),
            "Ray's processors don't take it", _OTHER_ENGINE,
        ),
        ("num_gpus", "its stages reserve GPUs themselves", _OTHER_ENGINE),
    ),
    Conflict(
        "model_task", _RAY, "it generates text alone", "use engine 'vllm'", lambda spec: spec.pools
    ),
    Conflict(
        "sampling", _RAY, "it keeps no log probabilities", "use engine 'vllm', or remove them",
        lambda spec: any(are_asked(spec.sampling, name) for name in LOGPROBS),
    ),
    Conflict(
        "format", _RAY, "all rows have the same parameters there, and lines of 'openai_batch' have their own",
        "use engine 'vllm'", lambda spec: spec.asks_by_lines,
    ),
    Conflict("processor", _RAY, "it is of Ray's processors", "use engine_args for vLLM's", needs=True),
    Conflict("reuse_max_age", _REUSE, "it is the age of kept responses", "name their folder", needs=True),
    Conflict("chunk_overlap_tokens", _CHUNKS, "chunks share them", "give it, too, or remove it", needs=True),
    Conflict("top_n", _DOCUMENTS, "each row has one document", "remove it, or give a list", needs=True),
    Conflict(
        "adapters", _ADAPTER_COLUMN, "no row chooses one of them",
        "name the column, or give one adapter for all rows", needs=True,
    ),
    Conflict(
        "adapter_column", _ADAPTERS, "rows choose among the adapters that the job lists, and it lists none",
        "list them in adapters", needs=True,
    ),
    Conflict("adapter", _ADAPTERS, "it is for all rows, and they for those that choose", "keep one of both"),
)  # fmt: skip
"""All of them, in the order in which they are looked at."""

_OTHERS = tuple(dict.fromkeys(rule.other for rule in RULES))


def first_broken(spec: Any) -> Conflict | None:
    """The first rule that a spec breaks."""
    holds = {other: bool(other.holds(spec)) for other in _OTHERS}
    return next((rule for rule in RULES if holds[rule.other] is not rule.needs and rule.is_given(spec)), None)


class ArgumentsTogether(SpecPart):
    """Refuses arguments that don't go together."""

    @model_validator(mode="after")
    def _go_together(self) -> ArgumentsTogether:
        if (rule := first_broken(self)) is not None:
            raise ValueError(rule.sentence)
        return self
