# SPDX-License-Identifier: Apache-2.0
"""A card for a dataset: contents, origin and cost, as JSON and as Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from airflow_provider_raybatch.contract.manifest import BatchManifest
from airflow_provider_raybatch.dataset import Result, Rows
from airflow_provider_raybatch.dataset.opening import open_files
from airflow_provider_raybatch.dataset.writer import folder_to_write
from airflow_provider_raybatch.report.words import fenced, line, markdown_table
from airflow_provider_raybatch.workflows.sift import Funnel

_STEPS = (
    "asked", "skipped", "ok", "rejected", "errors", "resumed", "reused",
    "input_tokens", "cached_tokens", "output_tokens",
)  # fmt: skip
_COSTS = (
    "input_tokens", "cached_tokens", "output_tokens", "tokens_paid", "tokens_saved", "gpu_seconds", "seconds",
)  # fmt: skip


@dataclass
class Card:
    """A data card. Add facts, runs and samples, then call :meth:`write`.

    :param facts: further lines, such as thresholds.
    :param prompts: by step.
    :param samples: rows by kind, such as ``accepted``.
    """

    title: str
    facts: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    funnel: Funnel | None = None
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    runs: list[dict[str, Any]] = field(default_factory=list)

    def add_run(self, step: str, result: Result, model: str, aws_conn_id: str | None = None) -> None:
        """Add the rows and the cost of a batch inference, from its manifest.

        Input, cached and output tokens are those of the delivered rows. `tokens_paid`, `gpu_seconds` and
        `cost` are the run's own; `tokens_saved` are tokens of answers that it did not pay for. A run
        that asked in `steps` also has rows and tokens of each of them.

        :param step: name of the run.
        :param result: what the operator returned.
        :param model: name of the model; a manifest has its digest only.
        :raises UsageError: `result` has no manifest that can be read.
        """
        manifest = open_files(result, aws_conn_id).manifest
        run: dict[str, Any] = {"step": step, "model": model, "manifest_uri": manifest.manifest_uri}
        if isinstance(manifest, BatchManifest):
            counts, tokens, timing = manifest.counts, manifest.tokens, manifest.timing
            run |= {
                "model_digest": manifest.digests.model,
                "sampling": manifest.effective_sampling,
                "rows": counts.ok,
                "errors": counts.error,
                "reused": counts.reused + counts.duplicates,
                "input_tokens": tokens.input,
                "cached_tokens": tokens.cached,
                "output_tokens": tokens.output,
                "tokens_paid": manifest.tokens_paid,
                "tokens_saved": manifest.tokens_saved,
                "gpu_seconds": manifest.gpu_seconds,
                "seconds": round(timing.startup_seconds + timing.generation_seconds, 1),
                "cost": manifest.cost,
                "currency": manifest.currency,
            }
            if manifest.steps:
                run["steps"] = [one.model_dump() for one in manifest.steps]
        self.runs.append(run)

    def add_samples(self, kind: str, rows: Rows, count: int = 5) -> None:
        """Add the first `count` rows of a dataset; `kind` is such as ``accepted``."""
        picked: list[dict[str, Any]] = []
        for batch in rows.batches():
            picked += batch.slice(0, count - len(picked)).to_pylist()
            if len(picked) >= count:
                break
        self.samples[kind] = picked

    def as_json(self) -> dict[str, Any]:
        """The card as plain data."""
        totals: dict[str, Any] = {
            name: round(sum(run.get(name) or 0 for run in self.runs), 1) for name in _COSTS
        }
        currencies = {run["currency"] for run in self.runs if run.get("cost")}
        is_known = all(run["cost"] is not None for run in self.runs if run.get("gpu_seconds"))
        if is_known and len(currencies) == 1:
            cost = round(sum(run.get("cost") or 0 for run in self.runs), 6)
            totals |= {"cost": cost, "currency": currencies.pop()}
        return {
            "title": self.title,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "facts": self.facts,
            "funnel": self.funnel.as_json() if self.funnel else [],
            "runs": self.runs,
            "totals": totals,
            "prompts": self.prompts,
            "samples": self.samples,
        }

    def as_markdown(self) -> str:
        """The card as a page for readers."""
        lines = [f"# {line(self.title)}", ""]
        lines += [f"- {line(name)}: {line(value)}" for name, value in self.facts.items()]
        if self.funnel:
            lines += ["", "## Rows", "", self.funnel.as_markdown().rstrip()]
        if self.runs:
            names = ("step", "model", "rows", "errors", "reused", *_COSTS, "cost", "currency")
            costs = [[run.get(name) for name in names] for run in self.runs]
            lines += ["", "## Cost", "", markdown_table(names, costs).rstrip()]
        for run in self.runs:
            if counts := run.get("steps"):
                asked = [[one["name"], *(one[name] for name in _STEPS)] for one in counts]
                lines += ["", f"## Steps of {line(run['step'])}", ""]
                lines.append(markdown_table(("step", *_STEPS), asked).rstrip())
        for step, prompt in self.prompts.items():
            lines += ["", f"## Prompt of {line(step)}", "", fenced(prompt)]
        for kind, rows in self.samples.items():
            lines += ["", f"## Samples: {line(kind)}", ""]
            columns = tuple(dict.fromkeys(name for row in rows for name in row))
            body = [[row.get(name) for name in columns] for row in rows]
            lines.append(markdown_table(columns, body).rstrip() if rows else "There are none.")
        return "\n".join(lines) + "\n"

    def write(self, folder: str, name: str = "card", aws_conn_id: str | None = None) -> dict[str, str]:
        """Write ``<name>.json`` and ``<name>.md``; each appears whole or not at all.

        :param folder: such as the dataset's destination; never its `uri`, which holds data files only.
        :returns: `card_uri` and `card_markdown_uri`.
        :raises UsageError: `folder` is not the location of a folder.
        """
        place = folder_to_write(folder, aws_conn_id, "folder")
        document = json.dumps(self.as_json(), ensure_ascii=False, indent=1, default=str)
        place.write(f"{name}.md", self.as_markdown().encode())
        place.write(f"{name}.json", document.encode())
        return {"card_uri": f"{place.uri}/{name}.json", "card_markdown_uri": f"{place.uri}/{name}.md"}
