# SPDX-License-Identifier: Apache-2.0
"""The classic job: a large CSV behind https, an industry for each company, to S3. Time by step, and memory.

The file is made here with a fixed seed, and served over TLS by Python's own server, without ranges. S3 is
moto's server over HTTP, in a process of its own. Answers are choices, in a column with a name of its own.

    python benchmarks/csv_over_https.py --rows 2000000 --replicas 2      # echo engine
    python benchmarks/csv_over_https.py --rows 20000 --vllm              # vLLM with the demo model
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime
import functools
import http.server
import ipaddress
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))

from cpu_a_row import Usage  # beside this file

from dags_examples.demo_model.companies import COUNTRIES, INDUSTRIES, company, pick

COLUMNS = ("Index", "Customer Id", "Company", "Country", "Email", "Subscription Date", "Industry")
BUCKET = "lake"
REGION = "us-east-1"
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "secret"}
MODEL = Path(__file__).parents[1] / "dags_examples/demo_model/model"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--vllm", action="store_true")
    options = parser.parse_args()
    import ray

    os.environ.update(RAY_DATA_DISABLE_PROGRESS_BARS="1", HF_HUB_OFFLINE="1")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        size = write(folder / "companies.csv", options.rows)
        url = stack.enter_context(serve(folder))
        s3 = stack.enter_context(s3_server())
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error"
        )
        usage = stack.enter_context(Usage())
        began = time.monotonic()
        manifest = run(f"{url}/companies.csv", s3, options, usage)
        seconds = time.monotonic() - began
        usage.begin("end")
        print(json.dumps(result(options, size, usage, manifest, seconds), indent=1))
        ray.shutdown()


def write(path: Path, rows: int) -> int:
    """Customers as such files have them, with names that the demo model never saw; returns the bytes."""
    rng = random.Random(7)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([
            "Index",
            "Customer Id",
            "Company",
            "Country",
            "Email",
            "Subscription Date",
            "Industry",
        ])
        for number in range(rows):
            drawn = company(rng, "held_out")
            writer.writerow([
                number,
                f"{rng.getrandbits(60):015x}",
                drawn.name + (", Inc." if number % 100 == 0 else ""),  # a comma in quotes
                pick(rng, COUNTRIES),
                f"contact@customer-{number}.example",
                f"20{rng.randrange(10, 26)}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}",
                drawn.industry,
            ])
    return path.stat().st_size


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[str]:
    """A folder behind https, by a certificate that this process and its children trust."""
    certificate = folder / "server.pem"
    certificate.write_bytes(self_signed())
    os.environ["SSL_CERT_FILE"] = str(certificate)
    handler = functools.partial(_Quiet, directory=str(folder))
    with _Server(("127.0.0.1", 0), handler) as server:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"https://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class _Server(http.server.ThreadingHTTPServer):
    def handle_error(self, *_: object) -> None:
        pass  # a job that asks for the size alone hangs up


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def self_signed() -> bytes:
    """Key and certificate for 127.0.0.1, good for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "benchmark")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509
        .CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    secret = key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return secret + certificate.public_bytes(encoding)


@contextlib.contextmanager
def s3_server() -> Iterator[str]:
    """An S3 server with a bucket, in a process of its own."""
    import boto3

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        s3: Any = boto3.client("s3", endpoint_url=url, region_name=REGION, **KEYS)
        for _ in range(240):
            with contextlib.suppress(Exception):
                s3.create_bucket(Bucket=BUCKET)
                break
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def run(source: str, s3: str, options: argparse.Namespace, usage: Usage) -> dict[str, Any]:
    from pydantic import SecretStr

    from airflow_provider_raybatch.contract import events
    from airflow_provider_raybatch.contract.base import parse
    from airflow_provider_raybatch.contract.secrets import AwsCredentials, Secrets
    from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
    from airflow_provider_raybatch.job.driver import run as run_job
    from airflow_provider_raybatch.storage.folder import folder

    document = {
        "source": [source],
        "prompt": "What industry is this company in: {row.Company}",
        "model": str(MODEL),
        "sampling": {
            "temperature": 0,
            "max_tokens": 8,
            "structured_outputs": {"choice": list(INDUSTRIES)},
        },
        "engine": "vllm" if options.vllm else "echo",
        "replicas": options.replicas,
        "num_cpus": None if options.vllm else 1,
        "response_column": "inferred_industry",
        "destination": f"s3://{BUCKET}/industries",
        "submission": {
            "task": {"dag_id": "benchmark", "run_id": "r", "task_id": "label"},
            "run_token": "token",
            "submission_id": "raybatch-label-0",
        },
    }
    spec = parse(BatchInferenceSpec, json.dumps(document))
    assert spec.submission is not None
    aws = AwsCredentials(
        **{name: SecretStr(value) for name, value in KEYS.items()}, region_name=REGION, endpoint_url=s3
    )

    def emit(event: events.Event) -> None:
        if isinstance(event, events.Phase):
            usage.begin(event.phase)
        elif isinstance(event, events.Committed):
            usage.begin("after the commit")

    summary = run_job(spec, spec.submission, emit, Secrets(aws=aws))
    destination = folder(spec.destination, aws)
    name = summary.manifest_uri.removeprefix(f"{spec.destination}/")
    found: dict[str, Any] = json.loads(destination.read(name))
    found["right"] = right(found["uri"], s3)
    return found


def right(uri: str, s3: str) -> int:
    """Rows of the dataset whose answer is their industry."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    from pyarrow.fs import S3FileSystem

    lake = S3FileSystem(
        access_key=KEYS["aws_access_key_id"],
        secret_key=KEYS["aws_secret_access_key"],
        endpoint_override=s3,
        region=REGION,
    )
    table = ds.dataset(uri.removeprefix("s3://"), filesystem=lake, format="parquet")
    columns = table.to_table(columns=["Industry", "inferred_industry"])
    return int(pc.sum(pc.equal(columns["Industry"], columns["inferred_industry"])).as_py())


def result(
    options: argparse.Namespace, size: int, usage: Usage, manifest: dict[str, Any], seconds: float
) -> dict[str, Any]:
    assert manifest["counts"]["ok"] == options.rows
    return {
        "rows": options.rows,
        "engine": "vllm" if options.vllm else "echo",
        "replicas": [replica["rows"] for replica in manifest["replicas"]],
        "mebibytes": round(size / 2**20, 1),
        "seconds": round(seconds, 1),
        "seconds_by_step": {name: round(one, 1) for name, one in usage.seconds.items()},
        "cpu_seconds_by_process": {name: round(one, 1) for name, one in usage.by_kind.items()},
        "largest_mebibytes": {name: round(size / 2**20) for name, size in usage.largest.items()},
        "right": round(manifest["right"] / options.rows, 4),
    }


if __name__ == "__main__":
    main()
