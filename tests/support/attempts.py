# SPDX-License-Identifier: Apache-2.0
"""Attempts of a task without engines: each finds finished rows and writes others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_raybatch.contract import layout
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.input.reader import Reader
from airflow_provider_raybatch.job.parts import part as parts
from airflow_provider_raybatch.job.parts.ledger import look_back
from airflow_provider_raybatch.job.parts.part import Part
from airflow_provider_raybatch.job.preflight.checked_job import request_config_digest
from airflow_provider_raybatch.job.replica.request_builder import RequestBuilder
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.reuse.response_store import StoredResponses, remember
from airflow_provider_raybatch.job.reuse.reuse import parts_of_task, plan_reuse
from airflow_provider_raybatch.job.reuse.store.store import ResponseStore
from airflow_provider_raybatch.job.work import Job, in_sequence
from airflow_provider_raybatch.storage.folder import Folder, LocalFolder
from tests.support.publishing import response
from tests.support.sources import look_at_source
from tests.support.specs import submitted

GREEDY = {"temperature": 0}


class Attempt:
    """A submission over an input of `texts`: it finds finished rows, and writes responses to the others."""

    def __init__(
        self,
        root: Path,
        texts: Sequence[Any],
        store: ResponseStore | None = None,
        folder: Folder | None = None,
        **fields: Any,
    ) -> None:
        root.mkdir(exist_ok=True)
        rows = [text if isinstance(text, dict) else {"text": text} for text in texts]
        file, text = root / "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
        if not file.exists() or file.read_text() != text:  # a new file is another input
            file.write_text(text)
        folder = folder or LocalFolder(str(root / "out"))
        places = {"source": [str(root / "in.jsonl")], "destination": folder.uri}
        spec = submitted(**{**places, **fields})
        keyer = Keyer(spec, {}, Digests())
        self.source = look_at_source(spec)
        run = layout.run_folder(
            spec.submission, request_config_digest(spec, spec.submission, keyer), self.source.listing.digest
        )
        driver = layout.driver_folder(run, spec.submission.submission_id)
        self.job = Job(spec, self.source.listing, folder, driver, keyer)
        self.run_folder = run
        earlier = look_back(folder, run, self.source.rows)
        self.events: list[Any] = []
        stored = None if store is None else StoredResponses(store)
        self.reuse_plan = plan_reuse(
            self.job, self.source, earlier, earlier.good, stored, in_sequence, self.events.append
        )
        self.asked = np.flatnonzero(~(earlier.good | self.reuse_plan.rows)).tolist()

    def answer(self, ordinals: Sequence[int]) -> Attempt:
        asker = RequestBuilder(self.job.spec, self.job.task.renderer(), self.job.keyer)
        rows = Reader(self.job.listing, None, None).read(self.source.chunks(16)[0])
        asked = asker.ask(rows.rows, dict(self.reuse_plan.repetitions))
        outcomes = [asked[ordinal].outcome(ordinal, response(f"r{ordinal}")) for ordinal in ordinals]
        columns = rows.columns().take(pa.array(ordinals))
        parts.write_all(self.job.folder, f"{self.job.part_folder}/0", columns, outcomes, self.job.task)
        return self

    def write_parts(self) -> list[Part]:
        return self.reuse_plan.write_parts(self.job, self.source)

    def store_in(self, store: ResponseStore) -> None:
        remember(store, self.job.folder, parts_of_task(self.job), store.emit, self.job.task)
