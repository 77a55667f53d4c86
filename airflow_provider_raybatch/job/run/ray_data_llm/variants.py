# SPDX-License-Identifier: Apache-2.0
"""Ray Data LLM's processors, one class each: the columns that a row needs, and where its response is.

Pitfalls of Ray 2.60 that are avoided here: Ray stores rows as Arrow structs, which gives every row the keys
of all others, so every row gets the same keys, and structured output travels as JSON text. The engine adds
special tokens to text to which the chat template has added them already, so rows carry token ids. The
processors' defaults for the scheduler are those of a server, so they are set.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_raybatch.contract.failures import PreflightError, SpecError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine.forced import whole
from airflow_provider_raybatch.job.engine.vllm_args import cpu_defaults
from airflow_provider_raybatch.job.planning.plan import Plan
from airflow_provider_raybatch.job.row import Completion, Request, Response, RowFailure

_STAGES = ("chat_template_stage", "tokenize_stage", "detokenize_stage")
_OWNED = ("model_source", "engine_kwargs", "should_continue_on_error", *_STAGES)


class Variant:
    """One of Ray's processors.

    :raises SpecError: `processor` lacks what it needs.
    """

    name = ""
    needs_tokens = False
    """Whether a row carries token ids."""

    def __init__(self, spec: BatchInferenceSpec) -> None:
        self._spec = spec

    def config(self, plan: Plan) -> Any:
        """Ray's processor config. :raises SpecError: a field of `processor` is not the user's to set."""
        raise NotImplementedError

    def check(self) -> None:
        """:raises PreflightError: the job is known to fail, or to get wrong responses."""

    def columns(self, request: Request | None, ids: list[int] | None) -> dict[str, Any]:
        """The columns of a row; with ``None``, the same keys for a row that will be skipped."""
        raise NotImplementedError

    def response(self, row: Mapping[str, Any]) -> Response | RowFailure:
        """The response in a row that went through the processor."""
        raise NotImplementedError


def variant(spec: BatchInferenceSpec) -> Variant:
    """The processor that ``processor["config"]`` names, by default vLLM's.

    :raises SpecError: Ray has no such processor.
    """
    name = spec.processor.get("config", VllmVariant.name)
    known = {one.name: one for one in (VllmVariant, SglangVariant, HttpVariant, ServeVariant)}
    if name not in known:
        raise SpecError(
            f"processor: {name!r} is not a processor of Ray Data LLM; use one of {', '.join(known)}."
        )
    return known[name](spec)


class VllmVariant(Variant):
    """``vLLMEngineProcessorConfig``."""

    needs_tokens = True
    name = "vLLMEngineProcessorConfig"

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        self._max_tokens = whole(spec.sampling).get("max_tokens")

    def config(self, plan: Plan) -> Any:
        """See :class:`Variant`."""
        import ray.data.llm

        spec = self._spec
        # Four batches overlap within a task. Tasks for four times the sequence slots measured best.
        rows = plan.rows_per_chunk
        fields: dict[str, Any] = {
            "batch_size": rows,
            "max_concurrent_batches": plan.chunks_in_flight,
            "concurrency": _replicas(spec, plan),
            # vLLM's metrics for Ray import Ray Serve, which few batch clusters have.
            "log_engine_metrics": False,
            **dict.fromkeys(_STAGES, False),
        }
        if plan.accelerator_type:
            fields["accelerator_type"] = plan.accelerator_type
        if not plan.gpus:
            fields["placement_group_config"] = {"bundles": [{"CPU": plan.cpus}]}
        fields.update(_passed_on(spec, _OWNED))
        config = getattr(ray.data.llm, self.name)
        for name in {"log_engine_metrics", "placement_group_config"} - config.model_fields.keys():
            fields.pop(name, None)
        return config(
            model_source=spec.model,
            engine_kwargs={**self._engine_defaults(plan), **spec.engine_args},
            should_continue_on_error=True,
            **fields,
        )

    def _engine_defaults(self, plan: Plan) -> dict[str, Any]:
        if plan.gpus:
            return {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
        return cpu_defaults(self._spec.model, self._spec.engine_args)

    def check(self) -> None:
        """The engine runs in the job itself. Arrow's structs have no numbers as keys."""
        if self._spec.sampling.get("logit_bias"):
            raise PreflightError(
                "sampling: logit_bias can't be sent through Ray Data LLM; remove it, or use engine 'vllm'."
            )

    def columns(self, request: Request | None, ids: list[int] | None) -> dict[str, Any]:
        """See :class:`Variant`."""
        return {"prompt": "", "tokenized_prompt": ids or [0], "sampling_params": self._sampling()}

    def _sampling(self) -> dict[str, Any]:
        sampling = {**self._spec.sampling, "max_tokens": self._max_tokens}
        structured = sampling.get("structured_outputs")
        if isinstance(structured, Mapping) and isinstance(structured.get("json"), (dict, list)):
            # As a dict, Arrow would give each branch of an anyOf the keys of the others.
            sampling["structured_outputs"] = {**structured, "json": json.dumps(structured["json"])}
        return sampling

    def response(self, row: Mapping[str, Any]) -> Response | RowFailure:
        """See :class:`Variant`. Ray gives no finish reason: a response of `max_tokens` tokens was cut off."""
        generated = int(row["num_generated_tokens"])
        cut = self._max_tokens is not None and generated >= int(self._max_tokens)
        completion = Completion(str(row["generated_text"]), "length" if cut else "stop", generated)
        return Response((completion,), int(row["num_input_tokens"]))


class SglangVariant(VllmVariant):
    """``SGLangEngineProcessorConfig``: the same rows with SGLang's names for sampling."""

    name = "SGLangEngineProcessorConfig"

    def _engine_defaults(self, plan: Plan) -> dict[str, Any]:
        return {}  # SGLang has other names for its arguments

    def check(self) -> None:
        """SGLang has other names for constraints, and Ray passes them on unchecked."""
        if "structured_outputs" in self._spec.sampling:
            raise PreflightError(
                "sampling: SGLang has no 'structured_outputs'; use its 'json_schema', 'regex' or 'ebnf'."
            )

    def _sampling(self) -> dict[str, Any]:
        sampling = super()._sampling()
        longest = sampling.pop("max_tokens", None)
        return {**sampling, "max_new_tokens": longest} if longest is not None else sampling


class HttpVariant(Variant):
    """``HttpRequestProcessorConfig``: an OpenAI-compatible server behind `processor["url"]`."""

    name = "HttpRequestProcessorConfig"

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        if self.name == HttpVariant.name and not spec.processor.get("url"):
            raise SpecError(
                "processor: HttpRequestProcessorConfig needs 'url', the address of the server's endpoint."
            )

    def config(self, plan: Plan) -> Any:
        """See :class:`Variant`."""
        import ray.data.llm

        fields = {**_sizes(self._spec, plan), "max_retries": 5, **_passed_on(self._spec, ())}
        return ray.data.llm.HttpRequestProcessorConfig(**fields)

    def columns(self, request: Request | None, ids: list[int] | None) -> dict[str, Any]:
        """See :class:`Variant`. The payload goes as JSON text; `stages.before` reads it back."""
        body = {"model": self._spec.model, **whole(self._spec.sampling)}
        if request is not None and request.messages is not None:
            body["messages"] = request.messages
        elif request is not None:
            body["prompt"] = request.prompt
        return {"body": json.dumps(body)}

    def response(self, row: Mapping[str, Any]) -> Response | RowFailure:
        """See :class:`Variant`."""
        return openai_response(row.get("http_response"))


class ServeVariant(HttpVariant):
    """``ServeDeploymentProcessorConfig``: a deployment with the methods of Ray Serve's LLM server.

    They take OpenAI's requests as objects: `chat` where rows have messages, else `completions`.
    """

    name = "ServeDeploymentProcessorConfig"

    def __init__(self, spec: BatchInferenceSpec) -> None:
        super().__init__(spec)
        self._deployment = spec.processor.get("deployment_name")
        self._application = spec.processor.get("app_name", "default")
        if not self._deployment:
            raise SpecError(
                "processor: ServeDeploymentProcessorConfig needs 'deployment_name', the deployment that "
                "answers."
            )

    def config(self, plan: Plan) -> Any:
        """See :class:`Variant`."""
        import ray.data.llm
        from ray.serve.llm.openai_api_models import ChatCompletionRequest, CompletionRequest

        return ray.data.llm.ServeDeploymentProcessorConfig(
            dtype_mapping={one.__name__: one for one in (ChatCompletionRequest, CompletionRequest)},
            should_continue_on_error=True,
            **{
                **_sizes(self._spec, plan),
                **_passed_on(self._spec, ("dtype_mapping", "should_continue_on_error")),
            },
        )

    def check(self) -> None:
        """Refuse a missing deployment, since Ray would wait for it without end."""
        from ray import serve

        found = serve.status().applications
        here = found.get(self._application)
        if here is None or self._deployment not in here.deployments:
            runs = [f"{one!r} in {name!r}" for name, app in found.items() for one in app.deployments]
            raise PreflightError(
                f"processor: Ray Serve runs no deployment {self._deployment!r} in an application "
                f"{self._application!r} on this cluster; it runs {', '.join(runs) or 'none'}."
            )

    def response(self, row: Mapping[str, Any]) -> Response | RowFailure:
        """See :class:`Variant`."""
        return openai_response(row)


def openai_response(answer: Any) -> Response | RowFailure:
    """The response in an OpenAI-style answer; any other answer fails the row."""
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if choices is None or len(choices) == 0:
        return RowFailure("engine", f"the server answered without a completion: {str(answer)[:500]}")
    usage = answer.get("usage") or {}
    completions = []
    for choice in choices:
        text = choice["message"].get("content") if choice.get("message") else choice.get("text")
        completions.append(Completion(str(text or ""), str(choice.get("finish_reason") or "unknown"), 0))
    total = int(usage.get("completion_tokens") or 0)
    first = Completion(completions[0].text, completions[0].finish_reason, total)
    return Response((first, *completions[1:]), int(usage.get("prompt_tokens") or 0))


def _sizes(spec: BatchInferenceSpec, plan: Plan) -> dict[str, Any]:
    return {"batch_size": plan.rows_per_chunk, "concurrency": _replicas(spec, plan)}


def _replicas(spec: BatchInferenceSpec, plan: Plan) -> tuple[int, int]:
    """A range is for Ray's own pool to use; other replicas are asked for at once."""
    return plan.fewest if isinstance(spec.replicas, tuple) else plan.replicas, plan.replicas


def _passed_on(spec: BatchInferenceSpec, owned: tuple[str, ...]) -> dict[str, Any]:
    for name in owned:
        if name in spec.processor:
            raise SpecError(
                f"processor: {name!r} is set by the operator (rows are rendered and tokenised before the "
                "processor, and the engine's arguments go into engine_args); remove it."
            )
    return {name: value for name, value in spec.processor.items() if name != "config"}


def engine_is_here(spec: BatchInferenceSpec) -> bool:
    """Whether vLLM runs in this job, so that its arguments and the model's files can be checked first."""
    name = spec.processor.get("config", VllmVariant.name)
    return spec.engine == "vllm" or (spec.engine == "ray_data_llm" and name == VllmVariant.name)
