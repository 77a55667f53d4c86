# SPDX-License-Identifier: Apache-2.0
"""What the Airflow side writes and the job reads: one JSON document that says all about a batch inference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ValidationError, model_validator

from airflow_provider_raybatch.contract.arguments.prompt import check_placeholders
from airflow_provider_raybatch.contract.arguments.response_schema import (
    check_names,
    constrained,
    properties_of,
)
from airflow_provider_raybatch.contract.arguments.sampling import (
    check_logprobs,
    kept_logprobs,
)
from airflow_provider_raybatch.contract.arguments.steps import AskedStep
from airflow_provider_raybatch.contract.base import sentence
from airflow_provider_raybatch.contract.location import check_absolute, check_model_folder, plain, reads_into
from airflow_provider_raybatch.contract.spec_arguments import Identity
from airflow_provider_raybatch.contract.step_specs import (
    FanOut,
    StepColumns,
    check_adapters,
    check_columns,
    check_fan_out,
    fields_of,
)
from airflow_provider_raybatch.contract.submission import Submission

NOT_ARGUMENTS = frozenset({
    "schema_version",  # of the document
    "submission",  # who runs it
    "prompt_function_digest", "postprocess_digest", "response_format_digest",  # taken from the source
    "template_time", "adapter_digests",  # filled in by the job
    "deadline",  # an argument of every operator; the job gets it in epoch seconds
    "last_run",  # of the task's last DAG run
    "served_batch",  # of the Batch API, given by its DAG's task
    "asked_step",  # of a spec that is split into its steps
})  # fmt: skip
"""The spec's fields that are not arguments of a batch inference; all others are, under the same name."""

_MODEL_FOLDERS = ("model", "tokenizer", "hf_config_path", "generation_config", "download_dir")
"""The model, and the engine arguments that may name a folder."""


class BatchInferenceSpec(Identity, defer_build=False):
    """A whole batch inference: each argument of the operator under the operator's name.

    :param schema_version: of this document.
    :param submission: who runs it; ``None`` until submitted.
    """

    schema_version: Literal[2] = 2
    submission: Submission | None = None

    @model_validator(mode="after")
    def _requests_depend_on_rows(self) -> BatchInferenceSpec:
        check_placeholders(self, of_row=bool(self.sampling_column or self.adapter_column))
        return self

    @model_validator(mode="after")
    def _logs_quote_no_rows(self) -> BatchInferenceSpec:
        if not self.shows_rows and self.engine_args.get("enable_log_requests"):
            raise ValueError(
                "engine_args: enable_log_requests has vLLM log requests, and report_samples=0 keeps rows out "
                "of logs; remove one of the two"
            )
        return self

    @model_validator(mode="after")
    def _model_folders_are_absolute(self) -> BatchInferenceSpec:
        if not self.has_vllm_sampling:
            return self  # a server's model names look like paths
        for name, value in [("model", self.model), *self.engine_args.items()]:
            check = check_absolute if name == "download_dir" else check_model_folder
            if name in _MODEL_FOLDERS and isinstance(value, str) and value:
                try:
                    check(value)
                except ValueError as error:
                    field = name if name == "model" else f"engine_args: {name}"
                    raise ValueError(f"{field}: {error}") from None
        return self

    @model_validator(mode="after")
    def _reasoning_has_a_parser(self) -> BatchInferenceSpec:
        structured = self.response_format != "text" or self.sampling.get("structured_outputs")
        if structured and self.reasoning_parser and not self.splits_reasoning:
            raise ValueError(
                f"engine_args: reasoning_parser {self.reasoning_parser!r} lets the model reason before its "
                "answer, and engine 'ray_data_llm' does not split them, so no response would be JSON or "
                "structured; use engine 'vllm', or remove it"
            )
        budget = self.sampling.get("thinking_token_budget")
        if budget is not None and not self.reasoning_parser and self.has_vllm_sampling:
            raise ValueError(
                f"sampling: thinking_token_budget: {budget!r} needs the tags of the model's reasoning; name "
                "its parser, such as engine_args={'reasoning_parser': 'qwen3'}"
            )
        return self

    @model_validator(mode="after")
    def _logprobs_are_kept(self) -> BatchInferenceSpec:
        try:
            check_logprobs(self.sampling, self.engine_args)
        except ValueError as error:
            raise ValueError(f"sampling: {error}") from None
        return self

    @model_validator(mode="after")
    def _typed_columns_have_a_place(self) -> BatchInferenceSpec:
        if self.response_schema is not None:
            self._check_typed(self.response_schema)
        return self

    def _check_typed(self, schema: Mapping[str, Any]) -> None:
        others = (self.sampling_column, self.adapter_column, self.id_column)
        # A step that reads a column of its own is refused where all steps are known.
        read = [*(() if self.step_name else self.column_arguments()), *filter(None, others)]
        prefix = "rename the step" if self.step_name else "set output_prefix, for example to 'llm_'"
        taken = {name.lower(): f"which the source has already; {prefix}" for name in read}
        own = self.own_columns(self.optional_columns)
        if self.step_name:  # whose columns have their names of the step
            own = dict.fromkeys(own, "which the step has of its own; rename the property")
        try:
            check_names(properties_of(schema), self.output_prefix, {**taken, **own})
        except ValueError as error:
            raise ValueError(f"response_format: {error}") from None

    def with_response_schema(self, schema: Mapping[str, Any]) -> BatchInferenceSpec:
        """This spec, once the schema of the Pydantic model in `response_format` is known.

        :raises ValueError: its properties can't be columns; one sentence, with the argument's name.
        """
        self._check_typed(schema)
        return self.model_copy(update={"sampling": constrained(self.sampling, schema)})

    @model_validator(mode="after")
    def _calls_can_be_read(self) -> BatchInferenceSpec:
        if self.tools is None:
            return self
        if self.calls_tools and (self.response_format != "text" or self.sampling.get("structured_outputs")):
            what = "structured_outputs" if self.response_format == "text" else "response_format"
            raise ValueError(
                f"tools: {what} constrains the response, and a call of a tool is another one; keep one"
            )
        if self.calls_tools and self.engine == "vllm" and self.tool_call_parser is None:
            raise ValueError(
                "tool_call_parser: each model writes calls in a form of its own; name vLLM's parser for it, "
                "such as 'hermes' (Qwen, Hermes), 'llama3_json' or 'mistral'"
            )
        return self

    @property
    def with_tools(self) -> dict[str, BatchInferenceSpec]:
        """The specs of the questions that offer tools, by their steps; by an empty name without steps."""
        return {one.step_name: one for one in self.questions() if one.tools is not None}

    @model_validator(mode="after")
    def _steps_have_their_engine(self) -> BatchInferenceSpec:
        if not self.steps:
            return self
        asked = list(zip(self.steps, self.questions(), strict=True))
        check_fan_out([
            FanOut(one.question, one.asks_several, one.sampling, one.response_schema) for _, one in asked
        ])
        check_adapters(self.steps, self.adapter, self.adapters)
        check_columns([
            StepColumns(step, one.made_columns, list(one.column_arguments()), one.columns_of_source)
            for step, one in asked
        ])
        return self

    def questions(self) -> tuple[BatchInferenceSpec, ...]:
        """A spec for each step, as if it were the only question; this one itself without steps.

        :raises ValueError: a step is wrong; one sentence, with its name.
        """
        if not self.steps:
            return (self,)
        shared = self.model_dump(exclude={"steps", "asked_step"})
        found: list[BatchInferenceSpec] = []
        for number, step in enumerate(self.steps):
            earlier = [name for one in found for name in one.step_columns]
            asked = AskedStep(steps=self.steps, number=number, earlier_columns=earlier)
            own = fields_of(asked, self.sampling)
            try:
                found.append(BatchInferenceSpec.model_validate({**shared, **own}))
            except ValidationError as error:
                raise ValueError(f"steps: {step.name}: {sentence(error).rstrip('.')}") from None
        return tuple(found)

    @model_validator(mode="after")
    def _source_is_not_destination(self) -> BatchInferenceSpec:
        destination = self.destination
        for path in self.source:
            if plain(path) == plain(destination) or reads_into(path, destination):
                raise ValueError(
                    f"destination: {destination!r} is the source {path!r} or lies in it, so the next run "
                    "would read its own output; choose a folder outside"
                )
        return self

    @model_validator(mode="after")
    def _reuse_lies_apart(self) -> BatchInferenceSpec:
        if self.reuse is None:
            return self
        store = self.reuse
        others = [("destination", self.destination), *(("source", path) for path in self.source)]
        for what, path in others:
            if plain(path) == plain(store) or reads_into(path, store) or reads_into(store, path):
                raise ValueError(
                    f"reuse: {store!r} and the {what} {path!r} are one folder, or lie one inside the other, "
                    "so rows and stored responses would mix; choose a folder apart"
                )
        return self

    @property
    def keeps_logprobs(self) -> bool:
        """Whether the dataset has log probabilities."""
        if self.steps:
            return any(step.keeps_logprobs for step in self.questions())
        return bool(kept_logprobs(self.sampling, self.lines_sample))
