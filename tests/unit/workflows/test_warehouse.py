# SPDX-License-Identifier: Apache-2.0
"""Requests to warehouses (moto's servers) by the recipes and the amazon provider's own code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from airflow.providers.amazon.aws.hooks.glue_catalog import GlueCatalogHook
from airflow.providers.amazon.aws.transfers.s3_to_redshift import S3ToRedshiftOperator

from airflow_provider_raybatch.dataset.errors import UsageError
from airflow_provider_raybatch.dataset.writer import DatasetWriter
from airflow_provider_raybatch.workflows.warehouse import (
    Partition,
    athena_statement,
    copy_manifest,
    glue_inputs,
    partitions,
)
from tests.support.datasets import batch, inferred
from tests.support.documents import blocks
from tests.support.s3_server import S3Server, serving

WIDE = [{"Name": "night", "Type": "string"}, {"Name": "language", "Type": "string"}]


def read(aws: S3Server, key: str) -> Any:
    return json.loads(aws.client().get_object(Bucket="lake", Key=key)["Body"].read())


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The server of the connection ``aws_lake`` of the recipes, with a bucket ``lake``."""
    with serving() as server:
        connection = {"conn_type": "aws", **server.connection()}
        monkeypatch.setenv("AIRFLOW_CONN_AWS_LAKE", json.dumps(connection))
        s3 = server.client()
        s3.create_bucket(Bucket="lake")
        yield server
        for key in server.objects("lake"):
            s3.delete_object(Bucket="lake", Key=key)
        s3.delete_bucket(Bucket="lake")


def night(**columns: Any) -> dict[str, Any]:
    """Write a dataset to the lake; return its result."""
    partition_by = columns.pop("partition_by", [])
    with DatasetWriter("s3://lake/industries/one", "aws_lake", partition_by=partition_by) as writer:
        writer.write(batch(**columns))
    return writer.result


def recipe(name: str) -> Any:
    """Return the DAG of a recipe."""
    (block,) = [one for one in blocks("python") if f"def {name}():" in one.text]
    space: dict[str, Any] = {}
    exec(block.text.replace(f"\n{name}()", f"\nmade = {name}()"), space)
    return space["made"]


def call(dag: Any, task_id: str, *arguments: Any) -> Any:
    return dag.get_task(task_id).python_callable(*arguments)


def statements(aws: S3Server) -> list[str]:
    """Return all statements to Redshift; an operator does not always return a statement's id."""
    from moto.redshiftdata.models import redshiftdata_backends

    found = redshiftdata_backends["123456789012"]["us-east-1"].statements
    return [" ".join(one.query_string.split()) for one in found.values()]


@pytest.mark.parametrize("task_id", ["load", "load_with_keys"])
def test_redshift_copies_the_files_of_the_manifest(aws: S3Server, task_id: str) -> None:
    result = night(id=[1, 2], response=["a", "b"])
    dag = recipe("to_warehouses")
    manifest = call(dag, "copy_manifest", result, "s3://lake/copies/one")
    assert manifest["uri"] == "s3://lake/copies/one/copy.json"
    (entry,) = read(aws, manifest["key"])["entries"]
    bucket, key = entry["url"].removeprefix("s3://").split("/", 1)
    size = aws.client("s3").head_object(Bucket=bucket, Key=key)["ContentLength"]
    assert entry == {"url": f"{result['uri']}/part-00000.parquet", "mandatory": True,
                     "meta": {"content_length": size}}  # fmt: skip

    at_once = {"database": "dev", "workgroup_name": "lake", "wait_for_completion": False}  # moto's never end
    if task_id == "load":
        operator = dag.get_task("load")
        sql = operator.sql.replace("{{ ti.xcom_pull('copy_manifest')['uri'] }}", manifest["uri"])
        operator.hook.execute_query(sql=sql, **at_once)
        credentials = "IAM_ROLE default"
    else:
        S3ToRedshiftOperator(
            task_id=task_id,
            table="industries",
            s3_bucket=manifest["bucket"],
            s3_key=manifest["key"],
            copy_options=["FORMAT AS PARQUET", "MANIFEST"],
            aws_conn_id="aws_lake",
            redshift_conn_id="aws_lake",
            redshift_data_api_kwargs=at_once,
        ).execute({})
        credentials = "credentials 'aws_access_key_id=key;aws_secret_access_key=secret'"
    asked = statements(aws)[-1].rstrip(";")
    assert asked == f"COPY industries FROM '{manifest['uri']}' {credentials} FORMAT AS PARQUET MANIFEST"


def test_a_manifest_leaves_out_empty_files_and_wants_s3(aws: S3Server, tmp_path: Path) -> None:
    local = inferred(tmp_path, [{"id": 1, "response": "a"}])
    with pytest.raises(UsageError, match=r"^result: '.*' is not in S3, which alone COPY reads"):
        copy_manifest(local, "s3://lake/copies", aws_conn_id="aws_lake")
    result = night(id=pa.array([], pa.int64()))
    with pytest.raises(UsageError, match=r"^folder: '/tmp/x' is not in S3"):
        copy_manifest(result, "/tmp/x", aws_conn_id="aws_lake")
    made = copy_manifest(result, "s3://lake/copies", "night", "aws_lake")
    assert read(aws, "copies/night.json") == {"entries": []}
    assert made["key"] == "copies/night.json"


def test_partitions_of_both_kinds_of_datasets(aws: S3Server, tmp_path: Path) -> None:
    rows = [{"id": n, "response": "a"} for n in range(3)]
    local = inferred(tmp_path, rows)
    assert partitions(local, {"night": "2026-01-31"}) == [Partition({"night": "2026-01-31"}, local["uri"], 3)]
    result = night(id=[1, 2, 3], topic=["a b", "c=d", "a b"], partition_by=["topic"])
    found = partitions(result, aws_conn_id="aws_lake")
    assert [(one.values, one.rows) for one in found] == [({"topic": "a b"}, 2), ({"topic": "c=d"}, 1)]
    keys = aws.objects("lake", "industries/one/data/")
    folders = {f"s3://lake/{key.rpartition('/')[0]}" for key in keys}
    assert {one.uri for one in found} == folders


def test_athena_gets_the_partition_of_a_night(aws: S3Server) -> None:
    result = night(id=[1])
    dag = recipe("to_warehouses")
    register = dag.get_task("register")
    register.query = call(dag, "statement", result, "2026-01-31")
    register.execute({})
    client = aws.client("athena")
    (asked,) = client.list_query_executions()["QueryExecutionIds"]
    query = client.get_query_execution(QueryExecutionId=asked)["QueryExecution"]
    assert query["Query"] == (
        "ALTER TABLE industries ADD IF NOT EXISTS\n"
        f"PARTITION (`night` = '2026-01-31') LOCATION '{result['uri']}/'"
    )
    assert query["QueryExecutionContext"]["Database"] == "lake"


def test_values_in_a_statement_are_quoted() -> None:
    found = [Partition({"topic": "it's"}, "s3://lake/a", 1), Partition({"topic": "b"}, "s3://lake/b", 1)]
    assert athena_statement("t", found) == (
        "ALTER TABLE t ADD IF NOT EXISTS\nPARTITION (`topic` = 'it''s') LOCATION 's3://lake/a/'\n"
        "PARTITION (`topic` = 'b') LOCATION 's3://lake/b/'"
    )
    with pytest.raises(UsageError, match=r"^partitions: one has no value; give `more`"):
        athena_statement("t", [Partition({}, "s3://lake/a", 1)])


def test_glue_knows_a_night_once(aws: S3Server) -> None:
    result = night(id=[1])
    glue = aws.client("glue")
    glue.create_database(DatabaseInput={"Name": "lake"})
    storage = {"Columns": [{"Name": "id", "Type": "bigint"}], "Location": "s3://lake/", "InputFormat": "x"}
    table = {"Name": "industries", "PartitionKeys": WIDE[:1], "StorageDescriptor": storage}
    glue.create_table(DatabaseName="lake", TableInput=table)
    hook = GlueCatalogHook(aws_conn_id="aws_lake")
    inputs = glue_inputs(
        hook.get_table("lake", "industries"), partitions(result, {"night": "2026-01-31"}, "aws_lake")
    )
    for refused in ([], ["AlreadyExistsException"]):  # a cleared task repeats it
        answer = hook.conn.batch_create_partition(
            DatabaseName="lake", TableName="industries", PartitionInputList=inputs
        )
        assert [one["ErrorDetail"]["ErrorCode"] for one in answer.get("Errors", [])] == refused
    (known,) = glue.get_partitions(DatabaseName="lake", TableName="industries")["Partitions"]
    assert known["Values"] == ["2026-01-31"]
    assert known["StorageDescriptor"]["Location"] == f"{result['uri']}/"
    assert known["StorageDescriptor"]["Columns"] == storage["Columns"]


def test_glue_inputs_name_a_missing_value() -> None:
    table = {"PartitionKeys": WIDE, "StorageDescriptor": {"Columns": []}}
    with pytest.raises(UsageError, match=r"^partitions: s3://lake/a has no value for 'language'"):
        glue_inputs(table, [Partition({"night": "one"}, "s3://lake/a", 1)])
    values = {"language": "en", "night": "one"}
    (made,) = glue_inputs(table, [Partition(values, "s3://lake/a", 1)])
    assert made["Values"] == ["one", "en"]  # in the table's order
