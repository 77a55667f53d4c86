# SPDX-License-Identifier: Apache-2.0
"""What Airflow learns about this package without importing anything else of it.

The keys are those of Airflow's ``provider_info.schema.json``; the connection form's are described by
``conn-fields`` in ``provider.yaml.schema.json``.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

_NAME = "Ray Batch"
_PACKAGE = "airflow_provider_raybatch"
_VERSION = "0.1.0"
"""The first one with these settings."""


def get_provider_info() -> dict[str, Any]:
    """The provider's description, called by Airflow through the entry point ``apache_airflow_provider``."""
    return {
        "package-name": "airflow-provider-raybatch",
        "name": _NAME,
        "description": "Batch inference on Ray with Ray Data and vLLM: dataset + prompt + model -> dataset.",
        "integrations": [
            {"integration-name": _NAME, "external-doc-url": "https://docs.ray.io/", "tags": ["software"]},
        ],
        "operators": [_modules("operators.ray_batch", "operators.ray_job", *_of_doors())],
        "sensors": [_modules("sensors.ray_job")],
        "hooks": [_modules("hooks.ray")],
        "triggers": [_modules("triggers.ray_job")],
        "extra-links": [
            f"{_PACKAGE}.links.ray_dashboard.RayDashboardLink",
            *(f"{_PACKAGE}.links.report.{name}" for name in ("ReportLink", "FailedRowsLink", "DatasetLink")),
        ],
        "config": {"raybatch": {"description": "Reports and the Batch API.", "options": _options()}},
        "cli": [f"{_PACKAGE}.cli.definition.airflow_commands"],
        "task-decorators": [
            {"name": "ray_batch", "class-name": f"{_PACKAGE}.decorators.ray_batch.ray_batch_task"},
        ],
        "connection-types": [_connection_type()],
    }


def _of_doors() -> list[str]:
    """Modules of operators in folders that may be left out of an installation."""
    return ["kubernetes.operators"] if find_spec(f"{_PACKAGE}.kubernetes") else []


def _options() -> dict[str, Any]:
    """Airflow's settings in the section ``[raybatch]``."""
    return {
        "report_roots": _option(
            "Folders of the API server's machine, separated by commas, below which reports are read.\n"
            "Reports in other local folders are not shown. Buckets need no entry.\n",
            example="/data/lake,/mnt/nfs/out",
        ),
        "report_content": _option(
            "Whether reports in the UI show content of rows: prompts, answers and columns. Who may read\n"
            "the XComs of a DAG sees its reports, and need not have rights on the bucket.\n",
            kind="boolean",
            default="False",
        ),
        **_batch_api(),
        **_limits(),
    }


def _batch_api() -> dict[str, Any]:
    return {
        "batch_api_root": _option(
            "Folder or bucket with the files and batches of the Batch API: an absolute path that API\n"
            "servers, workers and Ray clusters share, or s3://bucket/prefix. Without it there is no\n"
            "Batch API.\n",
            example="s3://lake/batch-api",
        ),
        "batch_api_aws_conn_id": _option(
            "AWS connection for that bucket; by default the identity of each machine. Jobs have it,\n"
            "too, unless the model names one of its own.\n",
            example="aws_default",
        ),
        "batch_api_secret": _option(
            "Signs records of files and batches, 32 characters or more, the same on API servers and\n"
            "workers; by default derived from [core] fernet_key. Records signed with another secret are\n"
            "refused.\n",
            sensitive=True,
        ),
        "batch_api_models": _option(
            "Models that clients may name: a JSON object, or the absolute path of a file with one,\n"
            "which API servers, DAG processors and workers read. Each name has the arguments of\n"
            "RayBatchInferenceOperator for the model.\n",
            example="/opt/airflow/batch_models.json",
        ),
        "batch_api_strict": _option(
            "Accept what OpenAI accepts: 50,000 requests and 200 MB a file, and 24-hour windows alone.\n",
            kind="boolean",
            default="False",
        ),
    }


def _limits() -> dict[str, Any]:
    """What one user may ask of the Batch API."""
    texts = {
        "batch_api_max_file_bytes": ("Bytes of one uploaded file; 0 for no limit.\n", "2000000000"),
        "batch_api_max_user_bytes": (
            "Bytes of all files of a user that have not expired, with those that batches have made;\n"
            "0 for no limit. Uploads are refused above it, and batches go on.\n",
            "50000000000",
        ),
        "batch_api_requests_per_minute": (
            "Requests of a user in a minute, counted by each process of the API server on its own;\n"
            "0 for no limit.\n",
            "3000",
        ),
        "batch_api_batches_per_hour": (
            "Batches that a user may create in an hour; 0 for no limit.\n",
            "2000",
        ),
        "batch_api_unfinished_batches": (
            "Batches of a user that may wait or run at once; 0 for no limit.\n",
            "1000",
        ),
    }
    return {name: _option(text, kind="integer", default=default) for name, (text, default) in texts.items()}


def _option(
    text: str, kind: str = "string", example: str | None = None, default: str = "", **more: Any
) -> dict[str, Any]:
    given = {"description": text, "version_added": _VERSION, "type": kind, **more}
    return {**given, "example": example, "default": default}


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}


def _connection_type() -> dict[str, Any]:
    """The connection ``ray`` and its form."""
    return {
        "connection-type": "ray",
        "hook-class-name": f"{_PACKAGE}.hooks.ray.RayHook",
        "hook-name": "Ray",
        "ui-field-behaviour": {
            "hidden-fields": ["login"],
            "relabeling": {
                "host": "Dashboard host",
                "schema": "http or https",
                "password": "Bearer token",
            },
            "placeholders": {
                "host": "ray-head.example.com, or local: each task starts a private Ray",
                "port": "8265",
                "schema": "http",
            },
        },
        "conn-fields": _connection_fields(),
    }


def _connection_fields() -> dict[str, Any]:
    return {
        "path_prefix": _field("Path prefix", "Path at which a proxy serves the dashboard, such as /ray."),
        "verify": _field(
            "Verify TLS", "Check the server's certificate (https only).", kind="boolean", default=True
        ),
        "ca_bundle": _field(
            "CA bundle", "PEM file on the Airflow machines, for a private certificate authority."
        ),
        "secret_headers": _field(
            "Headers", 'JSON object sent with every request, such as {"X-Api-Key": "..."}.', format="password"
        ),
        "secret_cookies": _field(
            "Cookies", "JSON object of cookies sent with every request.", format="password"
        ),
        "connect_timeout": _field(
            "Connect timeout", "Seconds until a network connection must stand.", kind="number", minimum=0.1
        ),
        "request_timeout": _field(
            "Request timeout", "Seconds that an answer may keep silent.", kind="number", minimum=0.1
        ),
        "namespace": _field(
            "Namespace",
            "Tells apart several Airflows that share this cluster; by default the id of this Airflow.",
        ),
        "secret_seal_key": _field(
            "Seal key",
            "Fernet key that seals credentials on their way; RAYBATCH_SEAL_KEY on the cluster's nodes.",
            format="password",
        ),
        "dashboard_url": _field(
            "Dashboard URL for people", "Where browsers find the dashboard, if not at the host."
        ),
        "gpu_hour_price": _field(
            "Price of a GPU hour",
            'A number, or a JSON object by accelerator type, such as {"H100": 3.9, "*": 1.2}.',
        ),
        "currency": _field("Currency", "Of the price, as in ISO 4217; by default USD."),
    }


def _field(label: str, description: str, kind: str = "string", **schema: Any) -> dict[str, Any]:
    return {"label": label, "description": description, "schema": {"type": [kind, "null"], **schema}}
