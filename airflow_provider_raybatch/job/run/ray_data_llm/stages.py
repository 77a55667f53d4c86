# SPDX-License-Identifier: Apache-2.0
"""The stages before and after Ray's processor: plain functions for ``map_batches`` and ``map``.

A row travels with its ordinal and its pickled input columns, so that Ray's stages can't change them or
collide with their names. A row that fails before the engine has its failure in ``__inference_error__``; Ray's
stages skip a row by that column. Every row has the column, since a null in it would silently skip whole
blocks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import pickle
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from airflow_provider_raybatch.contract.arguments.engine import ModelArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.job.engine.chat import ChatEncoder, hf_renderer, template_of
from airflow_provider_raybatch.job.failures.diagnosis import without_traceback
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.monitor.replica_progress import ReplicaProgress
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.replica.request_builder import RequestBuilder, read_columns
from airflow_provider_raybatch.job.row import NOT_ASKED, SKIPPED, Request, Response, RowFailure, RowOutcome
from airflow_provider_raybatch.job.run.ray_data_llm.variants import Variant, variant
from airflow_provider_raybatch.job.work import Done, Job, WorkItem

ERROR = "__inference_error__"
CARRIED = "carried"


def read(batch: dict[str, Any], job: Job) -> Iterator[dict[str, list[Any]]]:
    """Work items to rows with requests."""
    kind = variant(job.spec)
    reader = Reader(job.listing, read_columns(job.spec), job.credentials, texts=job.spec.text_columns())
    builder = RequestBuilder(job.spec, job.task.renderer(), job.keyer)
    for pickled in batch["item"]:
        item: WorkItem = pickle.loads(pickled)
        rows = reader.read(item.chunk)
        positions = item.positions
        asked = builder.ask([rows.rows[position] for position in positions], item.repetitions_of(positions))
        encoded = _encoded(job, kind, [one.request for one in asked])
        inputs = rows.columns().take(pa.array(positions, pa.int64()))
        out: list[dict[str, Any]] = []
        for place, (position, one, ids) in enumerate(zip(positions, asked, encoded, strict=True)):
            failure = next((made for made in (one.request, ids) if isinstance(made, RowFailure)), None)
            request = one.request if failure is None and isinstance(one.request, Request) else None
            carried = {
                "ordinal": item.chunk.ordinal + position,
                "columns": _packed(inputs.slice(place, 1)),
                "asked": one,
                "at": time.time(),
            }
            out.append({
                CARRIED: pickle.dumps(carried),
                ERROR: json.dumps([failure.step, failure.reason]) if failure else "",
                **kind.columns(request, ids if request is not None and isinstance(ids, list) else None),
            })
        if out:
            yield {name: [row[name] for row in out] for name in out[0]}


def _encoded(
    job: Job, kind: Variant, requests: list[Request | RowFailure]
) -> list[list[int] | RowFailure | None]:
    encoded: list[list[int] | RowFailure | None] = [None] * len(requests)
    to_encode: dict[int, Request] = {}
    for place, request in enumerate(requests):
        if isinstance(request, Request) and request.sampling:
            encoded[place] = RowFailure("template", "sampling per row needs engine 'vllm'")
        elif isinstance(request, Request) and kind.needs_tokens:
            to_encode[place] = request
    if kind.needs_tokens:
        wanted = {"tokenizer": job.spec.model, **job.spec.engine_args}
        model = job.spec.model_dump_json(include=set(ModelArguments.model_fields))
        chat = _chat_encoder(json.dumps(wanted), model, job.spec.special_tokens_in_text)
        for place, ids in zip(to_encode, chat.encode(list(to_encode.values())), strict=True):
            encoded[place] = ids
    return encoded


@functools.lru_cache(maxsize=4)
def _chat_encoder(args: str, model: str, special_tokens: str) -> ChatEncoder:
    """Cached per worker process, since loading a tokeniser takes seconds. Arguments are JSON.

    :param args: the engine's; some of them select the tokeniser.
    :param model: the spec's arguments of the model.
    """
    from transformers import AutoConfig, AutoTokenizer

    wanted = json.loads(args)
    of_spec = parse(ModelArguments, model)
    trust = bool(wanted.get("trust_remote_code", False))
    revision = wanted.get("revision") or "main"
    tokenizer = AutoTokenizer.from_pretrained(
        wanted["tokenizer"],
        revision=wanted.get("tokenizer_revision") or revision,
        trust_remote_code=trust,
    )
    vocabulary = None
    with contextlib.suppress(Exception):  # vLLM knows configs that transformers doesn't
        config = AutoConfig.from_pretrained(of_spec.model, revision=revision, trust_remote_code=trust)
        vocabulary = config.get_text_config().vocab_size
    template = template_of(of_spec, tokenizer)
    render = hf_renderer(tokenizer, template, of_spec.chat_template_kwargs)
    text = str(template or tokenizer.chat_template or "")
    return ChatEncoder(tokenizer, render, text, special_tokens, vocabulary=vocabulary)


def before(row: dict[str, Any], kind: str) -> dict[str, Any]:
    """The processor's preprocess: payloads that travelled as JSON text become objects."""
    if "body" not in row:
        return {ERROR: row[ERROR]}
    body = json.loads(row["body"])
    if kind == "ServeDeploymentProcessorConfig":
        chat = "messages" in body
        return {
            ERROR: row[ERROR],
            "method": "chat" if chat else "completions",
            "dtype": "ChatCompletionRequest" if chat else "CompletionRequest",
            "request_kwargs": body,
        }
    return {ERROR: row[ERROR], "payload": body}


def checked_response(row: dict[str, Any], job: Job) -> dict[str, Any]:
    """After the processor: the result of a row, whatever columns Ray's stages added or dropped."""
    error = row.get(ERROR) or ""
    result = _failure(error) if error else variant(job.spec).response(row)
    if isinstance(result, Response) and not error:
        result = job.task.check(result, {})
    return {CARRIED: row[CARRIED], "result": pickle.dumps(result)}


def write(batch: pa.Table, job: Job) -> dict[str, list[bytes]]:
    """Write checked rows to a part."""
    asked_at = []
    groups: dict[bytes, tuple[list[RowOutcome], list[pa.Table]]] = {}
    for row in batch.to_pylist():
        carried = pickle.loads(row[CARRIED])
        asked_at.append(carried["at"])
        columns = pa.ipc.open_stream(carried["columns"]).read_all()
        # A column may have another type in another chunk, but has one type in a part.
        outcomes, inputs = groups.setdefault(columns.schema.serialize().to_pybytes(), ([], []))
        outcomes.append(carried["asked"].outcome(carried["ordinal"], pickle.loads(row["result"])))
        inputs.append(columns)
    first = min(outcome.ordinal for outcomes, _ in groups.values() for outcome in outcomes)
    written = [
        part
        for outcomes, inputs in groups.values()
        for part in parts.write_all(
            job.folder, f"{job.part_folder}/{first:012d}", pa.concat_tables(inputs), outcomes, job.task
        )
    ]
    results = [outcome.result for outcomes, _ in groups.values() for outcome in outcomes]
    report = ReplicaProgress(
        replica=f"part-{first}",
        node="",
        state="ready",
        rows=len(results),
        written=len(results),
        errors=sum(part.rows - part.ok for part in written),
        input_tokens=sum(result.input_tokens for result in results),
        output_tokens=sum(result.output_tokens for result in results),
        first_request=min(asked_at),
    )
    return {"done": [pickle.dumps(Done(written, {}, report))]}


def _packed(row: pa.Table) -> bytes:
    """Arrow's IPC format: keeps types, and writes only the rows of a slice."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as writer:
        writer.write_table(row)
    return bytes(sink.getvalue())


def _failure(error: str) -> RowFailure | Response:
    try:
        step, reason = json.loads(error)
    except (ValueError, TypeError):
        return RowFailure("engine", without_traceback(error))
    return SKIPPED if step == NOT_ASKED.step else RowFailure(str(step), str(reason))
