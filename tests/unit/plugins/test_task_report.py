# SPDX-License-Identifier: Apache-2.0
"""Rendered fields decide where a report is looked for, and by whose login."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.plugins.reading import NotShownError
from airflow_provider_raybatch.plugins.task_report import ReportPlace, report_place

CUT = "Truncated. You can change this behaviour in [core]max_templated_field_length. 's3://lake/..."


def test_a_destination_and_its_connections() -> None:
    assert report_place({"destination": "s3://lake/out/"}) == ReportPlace("s3://lake/out")
    given = {"destination": "/data/out", "aws_conn_id": "lake", "ray_conn_id": "gpus", "source": ["x"]}
    assert report_place(given) == ReportPlace("/data/out", "lake", "gpus")


@pytest.mark.parametrize("absent", [None, "", "None", " "])
def test_a_connection_that_is_not_given(absent: Any) -> None:
    assert report_place({"destination": "/out", "aws_conn_id": absent}).aws_conn_id is None


@pytest.mark.parametrize(
    "destination",
    [
        "out", "./out", "../out", "~/out", "~root/out", "http://169.254.169.254/latest", "https://host/out",
        "hf://a/b",
        "gs://lake/out", "S3://lake/out", "s3a://lake/out", "s3:/lake", "s3://", "s3://login@lake/out",
        "s3://key:secret@lake/out", "s3://lake/../other", "s3://lake/a/./b", "s3://lake//out",
        "s3://la ke/out",
        "s3://169.254.169.254:80/x", "s3://*/out", "s3://lake/*", "file://host/out", "file:out", "ftp://h/o",
        "/out\n/etc", "/out\x00", "{{ ds }}", "C:\\out", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_a_destination_that_is_not_read(destination: str) -> None:
    """Nothing is asked of the network or of a disk for it, and no secret in it is shown."""
    with pytest.raises(NotShownError, match="destination") as caught:
        report_place({"destination": destination})
    assert "\n" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "num_dag_runs_to_retain_rendered_fields"),
        ({"source": "x"}, "no destination"),
        ({"destination": None}, "no destination"),
        ({"destination": ["/out"]}, "not text"),
        ({"destination": {"a": 1}}, "not text"),
        ({"destination": CUT}, "max_templated_field_length"),
        ({"destination": "s3://***/out"}, "masked"),
        ({"destination": "/out", "aws_conn_id": "***"}, "aws_conn_id: Airflow has masked"),
        ({"destination": "/out", "aws_conn_id": CUT}, "aws_conn_id: Airflow has cut"),
        ({"destination": "/out", "aws_conn_id": 5}, "aws_conn_id"),
        ({"destination": "/out", "ray_conn_id": ["a"]}, "ray_conn_id"),
        ({"destination": "DYNAMIC (set during execution)"}, "not known yet"),
    ],
)
def test_fields_that_do_not_tell(fields: dict[str, Any], said: str) -> None:
    """A login that is not known is never replaced by the API server's own."""
    with pytest.raises(NotShownError, match=said):
        report_place(fields)
