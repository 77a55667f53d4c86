# SPDX-License-Identifier: Apache-2.0
"""All checks before a job pays for anything, in order.

The destination's journal is only read. Written are the marker of a response store, the copy of a manifest
that an earlier submission committed, copies of sources that have no version of their own, and a file that
shows whether the destination keeps jobs apart; it is deleted.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from pydantic import SecretStr

from airflow_provider_raybatch.contract import events, layout
from airflow_provider_raybatch.contract.digest import hex_digest
from airflow_provider_raybatch.contract.manifest import Digests, Summary
from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.contract.submission import Submission
from airflow_provider_raybatch.job.control import private_package as credentials
from airflow_provider_raybatch.job.engine import echo, forced
from airflow_provider_raybatch.job.input.copies import Copies
from airflow_provider_raybatch.job.input.survey import Source
from airflow_provider_raybatch.job.monitor.error_budget import Tolerance
from airflow_provider_raybatch.job.monitor.start_up import StartUp
from airflow_provider_raybatch.job.output import cleanup
from airflow_provider_raybatch.job.output.journal import Journal
from airflow_provider_raybatch.job.output.manifest_copy import renew_copy
from airflow_provider_raybatch.job.parts.ledger import Ledger, look_back
from airflow_provider_raybatch.job.planning import cluster_view, plan
from airflow_provider_raybatch.job.planning.eager import workload_of
from airflow_provider_raybatch.job.preflight import known_models
from airflow_provider_raybatch.job.preflight.input_check import check_rows, look_at_source, sample
from airflow_provider_raybatch.job.preflight.model_check import Checked
from airflow_provider_raybatch.job.preflight.model_files import is_on_disk
from airflow_provider_raybatch.job.preflight.model_look import refuse_by_files, refuse_missing
from airflow_provider_raybatch.job.preflight.prompt_check import Refusal, check_prompts
from airflow_provider_raybatch.job.preflight.row_ids import check_ids
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.asked import Asked, asked_by
from airflow_provider_raybatch.job.reuse.response_store import open_store
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.row import Request
from airflow_provider_raybatch.job.row_order import prefixes
from airflow_provider_raybatch.job.row_order.grouping import sample_of
from airflow_provider_raybatch.job.run.cpu_tasks import apart_if_users_code
from airflow_provider_raybatch.job.run.launch import Launch
from airflow_provider_raybatch.job.run.ray_data_llm import dataset as ray_data_llm
from airflow_provider_raybatch.job.run.ray_data_llm.variants import engine_is_here
from airflow_provider_raybatch.job.work import CheckedModel, Job
from airflow_provider_raybatch.storage.folder import Folder, folder

Emit = Callable[[events.Event], None]


@dataclass(frozen=True)
class Ready:
    """A job that can start.

    :param journal: of the destination, which is this task's to claim.
    :param earlier: what earlier submissions finished of the same input and request configuration.
    :param store: the response store, if there is one.
    :param regenerate: whether existing responses are ignored, because the user asked for new ones.
    :param asked: what the requests depend on.
    :param refusal: if more of the first rows fail than may, unless they have an answer; until that is known,
        no engine starts.
    :param prefix: characters by which prompts that begin alike are told apart; 0 where few rows do, or those
        that do lie together.
    :param lengths: a sample of the rows' keys by length of answer; empty where all may be equally long.
    """

    job: Job
    source: Source
    journal: Journal
    earlier: Ledger
    tolerance: Tolerance
    checked: Checked
    store: ResponseStore | None
    regenerate: bool
    versions: dict[str, str]
    asked: Asked
    refusal: Refusal | None = None
    prefix: int = 0
    lengths: tuple[int, ...] = ()

    @property
    def model(self) -> CheckedModel:
        """What engines load."""
        return _model(self.job.spec, self.checked)


@dataclass(frozen=True)
class AlreadyCommitted:
    """The dataset that an earlier submission of this run committed, with the same arguments."""

    summary: Summary
    destination: Folder
    credentials: AwsCredentials | None


def make_ready(
    spec: BatchInferenceSpec,
    submission: Submission,
    known: Secrets,
    emit: Emit,
    start_up: StartUp,
    launch: Launch,
) -> Ready | AlreadyCommitted:
    """Check everything that can be checked before generation.

    :param known: credentials that travelled with the job.
    :param start_up: told when each phase has ended.
    :param launch: lets replicas start as soon as nothing cheap can refuse the job.
    :returns: the committed dataset, if nothing is left to do.
    :raises RaybatchError: one sentence about the first problem found.
    """
    versions = cluster_view.check_versions()
    if spec.engine == ray_data_llm.NAME:
        ray_data_llm.check_processor(spec)
    destination = folder(spec.destination, known.aws)
    take_over = spec.on_destination_owned == "take_over"
    journal = Journal(destination, submission, take_over, spec.fingerprint)
    committed = journal.committed()
    if committed is not None:
        renew_copy(destination, journal)  # the earlier submission may have failed before it did
        cleanup.collect_copies(destination, journal)
        return AlreadyCommitted(committed.summary(), destination, known.aws)
    journal.check_owner()
    copies = Copies(destination, layout.run_name(submission.task, submission.run_token))
    source = look_at_source(spec, known.aws, copies)
    tolerance = Tolerance(spec, source.rows)
    if spec.id_column is not None:
        check_ids(source, spec.id_column, known.aws)
    start_up.ended("source")
    sampled = check_rows(spec, source, known.aws, tolerance, emit, apart_if_users_code(spec, sample))
    requests = sampled.requests
    journal.check_conditional_writes()
    store = open_store(spec, known.aws, emit)
    environment = credentials.environment(known)
    start_up.ended("prompt")
    spec, refusal = _with_time(spec, journal), None
    if source.rows:
        launch.early(spec, environment, destination, source.rows, workload_of(spec, requests))
        _wait_for_engine_node(spec, journal.began_before(), emit)
        start_up.ended("nodes")
        checked = _check_engine(spec, requests, environment, emit, launch)
        refusal = check_prompts(spec, sampled, checked, tolerance, emit)
        _tell_of_choices(spec, checked, requests, emit)
        if refusal is None:
            launch.load(_model(_as_checked(spec, checked), checked))
        start_up.ended("model")
    else:  # an empty night needs neither nodes nor the model
        checked = _unchecked(spec)
    keyer = Keyer(spec, checked.generation_defaults, checked.digests)
    config_digest = request_config_digest(spec, submission, keyer)
    run_folder = layout.run_folder(submission, config_digest, source.listing.digest)
    job = Job(
        spec=_as_checked(spec, checked),
        listing=source.listing,
        folder=destination,
        part_folder=layout.driver_folder(run_folder, submission.submission_id),
        keyer=keyer,
        credentials=known.aws,
        environment=environment,
    )
    earlier = look_back(destination, run_folder, source.rows)
    regenerate = spec.on_clear == "regenerate" and journal.is_cleared()
    if refusal is not None and store is None and not earlier.files:
        refusal.unless(earlier.good)  # at once, without the keys of all rows
    prefix = prefixes.scattered_prefix(_texts(spec, requests), source.rows)
    lengths = sample_of(requests)
    asked = asked_by(spec, checked.generation_defaults, checked.digests)
    found = (job, source, journal, earlier, tolerance, checked, store, regenerate, versions, asked)
    return Ready(*found, refusal, prefix, lengths)


def _model(spec: BatchInferenceSpec, checked: Checked) -> CheckedModel:
    """:param spec: as it was checked."""
    return CheckedModel(spec, f"{checked.digests.model}-{checked.digests.tokenizer}")


def _texts(spec: BatchInferenceSpec, requests: Sequence[Request]) -> list[str]:
    """What the engine will be asked: with `deduplicate`, equal prompts once."""
    texts = [prefixes.text_of(request) for request in requests]
    return list(dict.fromkeys(texts)) if spec.deduplicate else texts


def request_config_digest(spec: BatchInferenceSpec, submission: Submission, keyer: Keyer) -> str:
    """32 hex digits over everything but the row that decides a response.

    With ``on_clear='regenerate'`` also over the run, so that no response of an earlier run counts.
    """
    of_run = submission.run_token if spec.on_clear == "regenerate" else ""
    return hex_digest(f"{spec.response_digest}-{keyer.digest}-{of_run}")


def _wait_for_engine_node(spec: BatchInferenceSpec, held_before: bool, emit: Emit) -> None:
    """Wait for a node with room for a replica, if the driver's node has no vLLM.

    :raises PreflightError: the cluster can't add such a node, or did not in time.
    """
    if spec.engine == "echo" or not engine_is_here(spec) or _vllm_is_here():
        return
    one = replace(plan.make(spec, 1, cluster_view.view()), replicas=1, fewest_replicas=None)
    if one.gpus and cluster_view.gpu_node(spec.accelerator_type) is None:
        cluster_view.wait_for(one, spec.cluster_wait, held_before, emit)


def _vllm_is_here() -> bool:
    """Whether the driver's node, which is the head, has vLLM."""
    return importlib.util.find_spec("vllm") is not None


def _check_engine(
    spec: BatchInferenceSpec,
    requests: list[Request],
    environment: dict[str, SecretStr],
    emit: Emit,
    launch: Launch,
) -> Checked:
    """Check engine and model.

    In another process, on a node with the accelerator: the head may have neither vLLM nor the model.
    """
    if spec.engine == "echo":
        echo.check_echo(spec)
        if unchecked := echo.check_names(spec):
            text = (
                f"sampling: {', '.join(map(repr, unchecked))} could not be checked, since the driver's node "
                "has no vLLM; engine='echo' ignores them, and engine='vllm' refuses unknown names."
            )
            emit(events.Notice(level="warning", message=text))
    if spec.engine == "echo" or not engine_is_here(spec):
        return _unchecked(spec)
    checked = _checked_model(spec, requests, environment, launch)
    if surplus := checked.surplus_tokens:
        text = (
            f"model: its tokenizer is longer than its vocabulary, by {len(surplus):,} (first "
            f"{surplus[0]!r}); rows with such a token will be dead letters."
        )
        emit(events.Notice(level="warning", message=text))
    if checked.absent_bos:
        text = (
            f"chat_template: no chat begins with {checked.absent_bos!r}, as the texts do that the model was "
            "trained with; put {{ bos_token }} at the template's beginning, or responses may be worse."
        )
        emit(events.Notice(level="warning", message=text))
    return checked


def _tell_of_choices(
    spec: BatchInferenceSpec, checked: Checked, requests: Sequence[Request], emit: Emit
) -> None:
    """Say once where responses may have more tokens than `max_tokens`. The echo engine cuts no choice."""
    defaults = {**checked.generation_defaults, **spec.sampling}
    told = (forced.lengthened({**defaults, **request.sampling}) for request in requests)
    text = next(filter(None, told), "")
    if text and spec.engine != "echo":
        emit(events.Notice(message=text))


def _checked_model(
    spec: BatchInferenceSpec, requests: list[Request], environment: dict[str, SecretStr], launch: Launch
) -> Checked:
    """By a check that is kept here, in a replica that has started, or else in a task."""
    node = cluster_view.gpu_node(spec.accelerator_type)
    is_here = node in {None, ray.get_runtime_context().get_node_id()}
    if is_here:
        known = known_models.kept(spec, requests, environment)
        if known is not None:
            return known
    if is_here and (node is not None or cluster_view.has_one_node()):
        refuse_missing(spec.model)
    if is_here or not is_on_disk(spec.model):
        refuse_by_files(spec, environment)
    check = known_models.check_model
    checked: Checked | None = launch.ask(check, spec, requests, environment)
    if checked is not None:
        return checked
    options: dict[str, Any] = {"num_cpus": 0, "max_retries": 1}
    if node is not None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=True)
    made: list[Checked] = ray.get([ray.remote(check).options(**options).remote(spec, requests, environment)])
    return made[0]


def _unchecked(spec: BatchInferenceSpec) -> Checked:
    return Checked(digests=Digests(spec=spec.response_digest))


def _with_time(spec: BatchInferenceSpec, journal: Journal) -> BatchInferenceSpec:
    """Set the date that chat templates may print: the run's, so that a retry makes the same requests."""
    began = journal.run_began() or time.time()
    return spec.model_copy(update={"template_time": began})


def _as_checked(spec: BatchInferenceSpec, checked: Checked) -> BatchInferenceSpec:
    """Pin the model version that was checked, so that exactly this one is loaded, and how JSON is written.

    Ray's processor uses vLLM's async engine, which ignores the model's `generation_config`.
    """
    engine_args = {**spec.engine_args, **checked.revisions}
    if checked.structured_outputs_config:
        engine_args["structured_outputs_config"] = checked.structured_outputs_config
    changed: dict[str, Any] = {"engine_args": engine_args}
    if spec.engine == ray_data_llm.NAME:
        changed["sampling"] = {**checked.generation_defaults, **spec.sampling}
    return spec.model_copy(update=changed)
