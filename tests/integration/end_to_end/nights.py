# SPDX-License-Identifier: Apache-2.0
"""Two nights of ``nightly_reviews`` on GPUs that cost money, the second with rows that fail.

By hand, in a whole Airflow with its own S3 and Ray::

    .venv/bin/python -m tests.integration.end_to_end.nights [--settings NAME=VALUE ...] [--seconds 1200]

It prints addresses and logins, plays both nights, and stays until Ctrl-C or for so many seconds. Settings are
Airflow's, as ``RAYBATCH__REPORT_CONTENT=True``. ``admin`` and ``viewer`` may see the DAG, ``guest`` may not.
"""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_raybatch.cluster.jobs_api.address import ClusterAddress
from airflow_provider_raybatch.cluster.local.head import RayHead

from .lake import Lake, locked_lake
from .rest import AirflowApi, Run
from .stack import INTERVALS, AirflowStack

DAG = "nightly_reviews"
TASKS = ("label", "summarize", "screen")
NIGHTS = ("2026-03-01", "2026-03-02")
ROWS = 240
GPUS, TYPE, PRICE = 8, "L4", 0.8
"""What Ray is told that the machine has; the price is the connection's, in dollars an hour."""
LONG, UNREADABLE = 8, 5
"""Rows of the second night that fail: their prompt is too long, or the engine refuses it."""

PRODUCTS = ("kettle", "lamp", "tent", "bicycle bell", "desk", "raincoat")
TEXTS = (
    "It works as promised and came in a day.",
    "The handle broke in the first week, and nobody answered my letters.",
    "Good for the price, but louder than I hoped.",
    "Better than the one that we had for ten years.",
    "<b>Great</b> & cheap </script><script>alert('reviews')</script>",
    "מוצר טוב, אבל המשלוח היה איטי",
)


class GpuHead(RayHead):
    """A Ray that believes in GPUs, so that what it gives to replicas can be counted and paid for."""

    def _command(self, *args: Any) -> list[str]:
        kind = f'--resources={{"accelerator_type:{TYPE}": 1}}'
        return [*super()._command(*args), f"--num-gpus={GPUS}", kind]


@contextmanager
def gpus() -> Iterator[ClusterAddress]:
    with GpuHead(num_cpus=8, with_token=False, startup_timeout=300) as address:
        yield address


def reviews(night: str) -> list[dict[str, Any]]:
    """The input of a night; that of the second has rows that fail, for several reasons."""
    rows = [
        {
            "review_id": f"{night}-{number:04d}",
            "product": PRODUCTS[number % len(PRODUCTS)],
            "text": TEXTS[number % len(TEXTS)] + f" ({number})",
            "stars": number % 5 + 1,
        }
        for number in range(ROWS)
    ]
    if night == NIGHTS[1]:
        for row in rows[7 :: ROWS // LONG][:LONG]:
            row["text"] = "and on " * 150
        for row in rows[11 :: ROWS // UNREADABLE][:UNREADABLE]:
            row["text"] = f"[unreadable] {row['text']}"
    return rows


def connect(api: AirflowApi, lake: Lake, ray: ClusterAddress) -> None:
    """Make the DAG's connections and its input."""
    host, _, port = ray.url.removeprefix("http://").partition(":")
    extra = {"gpu_hour_price": {TYPE: PRICE}, "currency": "USD"}
    api.connection("ray_gpus", "ray", host=host, port=int(port), extra=extra)
    lake.connect(api, "lake")
    for night in NIGHTS:
        lake.write_rows(f"reviews/{night}.jsonl", reviews(night))


def play(api: AirflowApi, night: str, timeout: float = 240.0) -> Run:
    """Run the DAG for a night; ``screen`` fails in the second, and the run with it."""
    run = api.trigger(DAG, logical_date=f"{night}T02:00:00+00:00")
    return run.wait("success" if night == NIGHTS[0] else "failed", timeout)


def main() -> None:
    """Play both nights, and stay."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # shells let processes in the background ignore SIGINT
        signal.signal(ending, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1200)
    given = parser.parse_args()
    settings = {**INTERVALS, **dict(setting.split("=", 1) for setting in given.settings)}
    dags = {"tests": Path(__file__).parent / "dags"}
    with locked_lake() as lake, gpus() as ray, AirflowStack(dags, [DAG], settings) as stack:
        connect(stack.api, lake, ray)
        print(f"Airflow {stack.url}, its files {stack.home}; Ray {ray.url}; S3 {lake.url}", flush=True)
        print(f"S3 key {lake.key_id}, secret {lake.secret}; logins {stack.passwords}", flush=True)
        for night in NIGHTS:
            run = play(stack.api, night)
            print(f"{night}: {stack.url}/dags/{DAG}/runs/{run.run_id} {run.state}", flush=True)
            for name in TASKS:
                print(f"  {name}: {run.task(name).state}; {run.task(name).log()[-1:]}", flush=True)
        print("both nights are over", flush=True)
        time.sleep(given.seconds)


if __name__ == "__main__":
    main()
