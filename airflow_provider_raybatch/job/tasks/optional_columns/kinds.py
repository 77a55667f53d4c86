# SPDX-License-Identifier: Apache-2.0
"""Groups of columns that only some jobs of text generation have."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.steps import CANDIDATE_COLUMN, REJECTED_COLUMN
from airflow_provider_raybatch.contract.arguments.tools import BROKEN_CALL, TOOL_CALLS_COLUMN, schemas_of
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.text import count_of
from airflow_provider_raybatch.job.request.json_schema import misfit
from airflow_provider_raybatch.job.row import Completion, Response, TokenLogprobs


class OptionalColumns:
    """A group of columns that only some jobs have. Picklable.

    A new group is a subclass in a module of its own, an entry in
    :mod:`~airflow_provider_raybatch.job.tasks.optional_columns.groups`, and its columns in
    :attr:`~airflow_provider_raybatch.contract.spec.BatchInferenceSpec.optional_columns`. An engine puts what
    the columns are made of into `extra` of a response or of a completion.

    What gives a job these columns must be part of the request keys of its rows, as sampling and engine
    arguments are. So a stored response that lacks them is not found for a job that needs them, and
    the response store keeps for each job the groups that it has.
    """

    TYPES: ClassVar[dict[str, pa.DataType]]
    """Of its columns, by name."""

    def __init__(self, spec: BatchInferenceSpec, wanted: Collection[str]) -> None:
        """:param wanted: the optional columns of the spec."""
        self.spec = spec
        self.fields = [pa.field(name, kind) for name, kind in self.TYPES.items() if name in wanted]

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        """Why a response that has these columns is not what was asked for; ``None`` if it may be.

        :param sampling: all parameters of the request that the job or the row sets.
        """
        return None


class ResponseColumns(OptionalColumns):
    """Columns that a row has once."""

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        """The values of `fields`, by default those of the same names in `extra`."""
        return _of_extra(responses, self.fields)


class CompletionColumns(OptionalColumns):
    """Columns that each completion has: a row has those of its first, and `completions` those of all."""

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        """The values of `fields`, by default those of the same names in `extra`."""
        return _of_extra(completions, self.fields)


def _of_extra(found: Sequence[Response | Completion], fields: Sequence[pa.Field]) -> list[pa.Array]:
    return [pa.array([one.extra.get(field.name) for one in found], field.type) for field in fields]


class CutPrompts(ResponseColumns):
    """The column ``truncated_prompt_tokens``, where prompts may be cut."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"truncated_prompt_tokens": pa.int64()}

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        return [pa.array([response.truncated_prompt_tokens for response in responses], pa.int64())]


class Rejected(ResponseColumns):
    """The column ``rejected`` of a step with one completion: null where the response is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def __init__(self, spec: BatchInferenceSpec, wanted: Collection[str]) -> None:
        super().__init__(spec, () if spec.asks_several else wanted)


class RejectedCompletions(CompletionColumns):
    """The column ``rejected`` of a step with several completions: that of a row is null if one is good."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {REJECTED_COLUMN: pa.string()}

    def __init__(self, spec: BatchInferenceSpec, wanted: Collection[str]) -> None:
        super().__init__(spec, wanted if spec.asks_several else ())


class Candidates(CompletionColumns):
    """The column ``candidate``: which completion of an earlier step an answer is about.

    It is its place, from 0, among the completions as they stood when it was asked.
    """

    TYPES: ClassVar[dict[str, pa.DataType]] = {CANDIDATE_COLUMN: pa.int32()}


_SHOWN = 200


class Reasoning(CompletionColumns):
    """The columns ``reasoning`` and ``reasoning_tokens``; the response is what follows.

    A response that was cut off while the model reasoned is empty, and kept like other cut texts. Without an
    answer for another reason, and where the answer must be JSON or otherwise structured, its row fails.
    """

    TYPES: ClassVar[dict[str, pa.DataType]] = {"reasoning": pa.string(), "reasoning_tokens": pa.int64()}

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        structured = sampling.get("structured_outputs") or {}
        for completion in response.completions:
            if (problem := completion.extra.get("reasoning_problem")) is not None:
                return self._unsplit(problem, completion.text)
            has_answer = completion.text.strip() or completion.extra.get(TOOL_CALLS_COLUMN)
            if completion.extra.get("reasoning") is not None and not has_answer:
                if completion.finish_reason != "length":
                    return self._unanswered(completion)
                if structured or self.spec.response_format != "text":
                    return _cut(completion)
            choices = structured.get("choice")
            if choices and completion.text not in choices:  # the grammar begins where the parser says
                cut = ", cut off by max_tokens" if completion.finish_reason == "length" else ""
                return f"the response is not one of the choices{cut}: {completion.text[:_SHOWN]!r}"
        return None

    def _unsplit(self, problem: str, text: str) -> str:
        name = self.spec.reasoning_parser
        return (
            f"reasoning_parser {name!r} {problem}; name the parser of the model's family: {text[:_SHOWN]!r}"
        )

    def _unanswered(self, completion: Completion) -> str:
        return (
            "the response has reasoning and no answer after it: the model ended without closing its "
            f"reasoning as reasoning_parser {self.spec.reasoning_parser!r} expects, or said no more; if it "
            "does not reason here, remove reasoning_parser, or set chat_template_kwargs={'enable_thinking': "
            f"False}}: {completion.extra['reasoning'][-_SHOWN:]!r}"
        )


def _cut(completion: Completion) -> str:
    tokens = count_of(completion.output_tokens, "token")
    return (
        f"the response was cut off while the model reasoned, after {tokens}, so it "
        "has no answer; raise sampling.max_tokens, or end the reasoning earlier with thinking_token_budget"
    )


CALL = pa.struct([("name", pa.string()), ("arguments", pa.string())])


class ToolCalls(CompletionColumns):
    """The column ``tool_calls``: a list of calls, each with its arguments as JSON text; null without any."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {TOOL_CALLS_COLUMN: pa.list_(CALL)}

    def check(self, response: Response, sampling: Mapping[str, Any]) -> str | None:
        reasons = (self._problem(completion) for completion in response.completions)
        return next(filter(None, reasons), None)

    def _problem(self, completion: Completion) -> str | None:
        shown = repr(completion.text[:_SHOWN])
        if completion.extra.get(BROKEN_CALL):
            return f"the tool_call_parser {self.spec.tool_call_parser!r} can't read the response: {shown}"
        calls = completion.extra.get(TOOL_CALLS_COLUMN) or ()
        if not calls and self.spec.must_call_tools:
            cut = ", cut off by max_tokens" if completion.finish_reason == "length" else ""
            return f"the response calls no tool, which tool_choice asks for{cut}: {shown}"
        schemas = schemas_of(self.spec.tools or ())
        return next(filter(None, (self._misfit(call, schemas) for call in calls)), None)

    def _misfit(self, call: Mapping[str, str], schemas: Mapping[str, Any]) -> str | None:
        name, arguments = call["name"], call["arguments"]
        if name not in schemas:
            return f"the response calls the tool {name[:_SHOWN]!r}, which is not among tools"
        try:
            value = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments of {name!r} are not JSON ({error}): {arguments[:_SHOWN]!r}"
        # An echo knows simple schemas, and stands for a model that knows them all.
        why = "" if self.spec.engine == "echo" else misfit(value, {"json": schemas[name]})
        if not (why or isinstance(value, dict)):
            why = "it is not an object"
        return (
            f"the arguments of {name!r} do not fit its schema ({why}): {arguments[:_SHOWN]!r}"
            if why
            else None
        )


_LIKELY = pa.struct([("token_id", pa.int32()), ("token", pa.string()), ("logprob", pa.float32())])
TOKENS = pa.list_(pa.struct([*_LIKELY, ("rank", pa.int32()), ("top_logprobs", pa.list_(_LIKELY))]))
"""A struct for each token; `top_logprobs` are the likeliest tokens in its place, of which it may be one."""


class Logprobs(CompletionColumns):
    """The columns ``logprobs`` and ``mean_logprob``, of all generated tokens, reasoning included."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"logprobs": TOKENS, "mean_logprob": pa.float64()}

    def arrays(self, completions: Sequence[Completion]) -> list[pa.Array]:
        found = [completion.extra.get("logprobs") for completion in completions]
        return [token_lists(found), means(found)]


class PromptLogprobs(ResponseColumns):
    """The columns ``prompt_logprobs`` and ``prompt_mean_logprob``."""

    TYPES: ClassVar[dict[str, pa.DataType]] = {"prompt_logprobs": TOKENS, "prompt_mean_logprob": pa.float64()}

    def arrays(self, responses: Sequence[Response]) -> list[pa.Array]:
        found = [response.extra.get("prompt_logprobs") for response in responses]
        return [token_lists(found), means(found)]


def means(found: Sequence[TokenLogprobs | None]) -> pa.Array:
    """The mean of the tokens' log probabilities of each text: its perplexity is exp(-mean)."""

    def mean(one: TokenLogprobs | None) -> float | None:
        known = np.zeros(0) if one is None else one.logprobs[~np.isnan(one.logprobs[:, 0]), 0]
        return float(known.mean(dtype=np.float64)) if len(known) else None

    return pa.array(list(map(mean, found)), pa.float64())


def token_lists(found: Sequence[TokenLogprobs | None]) -> pa.ListArray:
    """A list of tokens for each text; null for ``None``."""
    there = [one for one in found if one is not None]
    texts = {number: text for one in there for number, text in one.texts.items()}
    ids = _together([one.ids[:, 0] for one in there], np.int32)
    logprobs = _together([one.logprobs[:, 0] for one in there], np.float32)
    ranks = _together([one.ranks for one in there], np.int32)
    columns = [*_likely(ids, logprobs, texts), pa.array(ranks, mask=ranks == 0), _likeliest(there, texts)]
    tokens = pa.StructArray.from_arrays(columns, fields=list(TOKENS.value_type))
    offsets = _offsets([0 if one is None else len(one.ids) for one in found])
    missing = pa.array([one is None for one in found], pa.bool_())
    return pa.ListArray.from_arrays(offsets, tokens, type=TOKENS, mask=missing)


def _likeliest(found: Sequence[TokenLogprobs], texts: Mapping[int, str]) -> pa.ListArray:
    """The alternatives of all tokens."""
    is_there = [one.ids[:, 1:] >= 0 for one in found]
    ids = _together([one.ids[:, 1:][mask] for one, mask in zip(found, is_there, strict=True)], np.int32)
    logprobs = _together(
        [one.logprobs[:, 1:][mask] for one, mask in zip(found, is_there, strict=True)], np.float32
    )
    tokens = pa.StructArray.from_arrays(_likely(ids, logprobs, texts), fields=list(_LIKELY))
    sizes = _together([mask.sum(1) for mask in is_there], np.int64)
    return pa.ListArray.from_arrays(_offsets(sizes), tokens, type=pa.list_(_LIKELY))


def _likely(
    ids: npt.NDArray[np.int32], logprobs: npt.NDArray[np.float32], texts: Mapping[int, str]
) -> list[pa.Array]:
    unique, places = np.unique(ids, return_inverse=True)
    known = pa.array([texts.get(number) for number in unique.tolist()], pa.string())
    return [pa.array(ids), known.take(pa.array(places)), pa.array(logprobs, mask=np.isnan(logprobs))]


def _offsets(sizes: Sequence[int] | npt.NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(sizes)]), pa.int32())


def _together(arrays: Sequence[npt.NDArray[Any]], kind: type) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *arrays])
