# SPDX-License-Identifier: Apache-2.0
"""Locations with another meaning on the cluster are refused; the error names the intended one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.location import local_path, plain
from airflow_provider_raybatch.contract.shown_uri import shown_uri, without_queries
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error

HERE = str(Path.cwd())
HOME = str(Path.home())
RELATIVE = (
    "is relative, and on the cluster that is a folder which Ray deletes; write the absolute path, such as"
)
WINDOWS = "is a Windows path; name a folder that the cluster's nodes can see"

NO_DATASET = "names no dataset of the Hugging Face hub; write it as hf://datasets/owner/name@revision/path."

FOLDERS = [
    ("out/x", f"'out/x' {RELATIVE} '{HERE}/out/x'."),
    ("./out", f"'./out' {RELATIVE} '{HERE}/out'."),
    ("../out", f"{RELATIVE} '{Path(HERE).parent}/out'."),
    ("$HOME/out", RELATIVE),
    ("~/out", f"'~/out' begins with '~', which the cluster does not expand; write '{HOME}/out'."),
    ("~nobody-here/out", "does not expand; write the absolute path."),
    ("file:/x", "'file:/x' has too few slashes; write 'file:///x'."),
    ("file:x", "write 'file:///x'."),
    ("s3:/bucket/x", "'s3:/bucket/x' has too few slashes; write 's3://bucket/x'."),
    ("C:\\data", WINDOWS),
    ("d:/data", WINDOWS),
    ("\\\\server\\data", WINDOWS),
    ("file://data/x", "'file://data/x' names 'data' as a host; write 'file:///data/x'."),
    ("file://~/x", "write 'file:///~/x'."),
    ("file:///~/x", f"does not expand; write '{HOME}/x'."),
    ("file://", "'file://' names no path; write it as file:///path."),
    ("file:///a/fu#run1", "has a '#', where a URL ends its path; write 'file:///a/fu%23run1'"),
    ("file:///a/b%0Ac", "has the control character '\\n'; remove it."),
    ("FILE:///x", "has the scheme 'FILE'; write 'file:///x'."),
    ("S3://bucket/x", "has the scheme 'S3'; write 's3://bucket/x'."),
    ("s3a://bucket/x", "has the scheme 's3a'; write 's3://bucket/x'."),
    ("gs://bucket/x", "has the scheme 'gs'; use a local path or one of file://, s3://."),
    ("abfss://c@account.dfs.core.windows.net/x", "has the scheme 'abfss'; use a local path or one of"),
    ("hdfs://name/x", "has the scheme 'hdfs'; use a local path or one of file://, s3://."),
    ("s3://my bucket/x", "names the bucket 'my bucket', which can't exist; write it as s3://bucket/key."),
    ("s3://bucket/a//b", "has an empty name between its slashes, which S3 does not resolve; write 's3://bucket/a/b'."),
    ("s3://bucket/../b", "has the name '..' between its slashes, which S3 does not resolve; write 's3://bucket/b'."),
    ("s3://bucket/./b", "write 's3://bucket/b'."),
    ("s3://bucket/x#1", "has a '#', at which many S3 tools end a path; use a name without it"),
    (" /out", "' /out' begins or ends with white space; write '/out'."),
    ("s3://bucket/out\n", "begins or ends with white space; write 's3://bucket/out'."),
    ("/o\tut", "has the control character '\\t'; remove it."),
    ("/out\x00/x", "has the control character '\\x00'; remove it."),
    ("/out/{% if x %}", "still has a Jinja expression; the field was not rendered."),
    ("/out/{{ ds }}/", "still has a Jinja expression; the field was not rendered."),
    ("s3://data-*/x", "'s3://data-*/x' has a wildcard in its bucket; name one bucket."),
    ("https://host/x", "has the scheme 'https'; use a local path or one of file://, s3://."),
]  # fmt: skip


@pytest.mark.parametrize(("uri", "message"), FOLDERS)
def test_a_folder_that_means_another_place_is_refused(uri: str, message: str) -> None:
    for field in ("destination", "reuse"):
        sentence = spec_error(**{field: uri})
        assert sentence.startswith(f"{field}: ")
        assert message in sentence


SEVERAL = "has a list in one text; write a list of paths, such as ['s3://a/x', 's3://a/y']."


def test_so_is_a_source(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda uri: spec_error(source=["/good.csv", uri]))


def test_the_hub_is_a_source_and_no_destination() -> None:
    glob = "hf://datasets/acme/reviews@refs/convert/parquet/default/train/*.parquet"
    assert spec(source=[glob]).source == [glob]
    assert "has the scheme 'hf'; use a local path or one of file://, s3://." in spec_error(
        destination="hf://datasets/acme/reviews"
    )


@pytest.mark.parametrize("uri", ["s3://my_conn@bucket/x", "s3://AKIA:secret@bucket/x"])
def test_a_login_is_refused_and_not_shown(uri: str) -> None:
    sentence = spec_error(destination=uri)
    assert "before the host of 's3://bucket/x'; remove it and name the connection in aws_conn_id." in sentence
    assert "secret" not in sentence
    assert "secret" not in spec_error(source=["https://me:secret@host/x.csv"])


@pytest.mark.parametrize(
    ("uri", "path"),
    [
        ("/a/b%20c", "/a/b%20c"),
        ("/a/fu#run1", "/a/fu#run1"),
        ("file:///a/b%20c", "/a/b c"),
        ("file:///a/fu%23run1", "/a/fu#run1"),
        ("file://localhost/a", "/a"),
        ("file:///a/x?.csv", "/a/x?.csv"),
    ],
)
def test_local_paths_are_read_whole(uri: str, path: str) -> None:
    assert local_path(uri) == path
    assert spec(source=[uri, "s3://bucket/in/*.csv", "https://host/x.csv?a=%2F"]).source


def test_one_place_has_one_spelling() -> None:
    assert (local_path("file:///"), plain("file:///"), plain("/")) == ("/", "/", "/")
    assert plain("//data/x") == plain("/data/x") == plain("file:////data/x/")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("./model", f"{RELATIVE} '{HERE}/model'."),
        ("../model", RELATIVE),
        ("models/llama/3", f"{RELATIVE} '{HERE}/models/llama/3'."),
        ("model/", RELATIVE),
        ("~/model", f"write '{HOME}/model'."),
        ("D:\\model", WINDOWS),
        ("file:///models/m", "is a URL, which vLLM does not load; write '/models/m'."),
        ("https://huggingface.co/org/name/tree/main", "which vLLM does not load; write 'org/name'."),
        (" org/name", "begins or ends with white space; write 'org/name'."),
    ],
)
def test_a_model_folder_is_absolute(name: str, message: str) -> None:
    assert spec_error(model=name).startswith("model: ")
    assert message in spec_error(model=name)
    for argument in ("tokenizer", "generation_config", "hf_config_path"):
        sentence = spec_error(engine_args={argument: name})
        assert sentence.startswith(f"engine_args: {argument}: ")
        assert message in sentence


@pytest.mark.parametrize(
    "name", ["org/name", "name", "/models/m", "org/repo-GGUF:Q4_K_M", "org/repo/file.gguf", "s3://b/a/model"]
)
def test_what_vllm_loads_passes(name: str) -> None:
    assert spec(model=name, engine_args={"generation_config": "auto"}).model == name


def test_download_dir_is_absolute_and_a_servers_model_is_free() -> None:
    assert RELATIVE in spec_error(engine_args={"download_dir": "models"})
    processor = {"config": "HttpRequestProcessorConfig", "url": "http://x"}
    assert spec(engine="ray_data_llm", processor=processor, model="accounts/a/models/m") is not None


@pytest.mark.parametrize("template", ["/models/chat.jinja", "chat_template.jinja", ""])
def test_chat_template_is_not_a_path(template: str) -> None:
    assert "so each row would ask the same; give the template's text, not the path" in spec_error(
        model="m", chat_template=template
    )


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://host/a b.csv?X-Amz-Signature=s3cret', b", "https://host/a b.csv"),
        ("HTTP://me:s3cret@host:1/a.csv#s3cret", "HTTP://host:1/a.csv"),
        ("https:/host/a?s3cret", "https:/host/a"),
        ("abfss://c@account/a@b?sig=s3cret", "abfss://c@account/a@b"),
        ("ABFS://c@account/a", "ABFS://c@account/a"),
        ("wasbs://$web@account", "wasbs://$web@account"),
        ("oci://bucket@namespace/a", "oci://bucket@namespace/a"),
        ("abfss://me:s3cret@account/a", "abfss://account/a"),
        ("redis://:s3cret@host/0", "redis://host/0"),
        ("ftp://me@host/a", "ftp://host/a"),
        ("s3://bucket/day=?/a@b#c.csv", "s3://bucket/day=?/a@b#c.csv"),
        ("file:///a?.csv", "file:///a?.csv"),
        ("/a?b@c.csv", "/a?b@c.csv"),
    ],
)
def test_what_may_be_a_secret_of_a_uri_is_not_shown(uri: str, shown: str) -> None:
    assert shown_uri(uri) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("source: https://a/b.csv?X=s3cret,s3cret&b=1 is", "source: https://a/b.csv is"),
        ("(see 'http://b/?c=s3cret;s3cret').", "(see 'http://b/')."),
        ('["https://a","https://me:s3c@ret@b"]', '["https://a","https://b"]'),
        ("['https://a/b?s3cret', 'az://c/d?s3cret']", "['https://a/b', 'az://c/d']"),
        ("see https://a/b#s3cret?s3cret, https://c/#s3cret.", "see https://a/b, https://c/."),
        ('{"uri": "https://a/b?s3cret"}', '{"uri": "https://a/b"}'),
        (
            "read https://me:s3cret@host:1/a.csv or abfss://c@b/d?s3cret, ftp://s3cret@b/d.",
            "read https://host:1/a.csv or abfss://c@b/d, ftp://b/d.",
        ),
        ("['wasb://c@a/d','abfs://me:s3cret@a/d']", "['wasb://c@a/d','abfs://a/d']"),
        ("which rows? s3://b/x?.csv, see https://docs.example/x or https://a/@b, me@c.example.", None),
    ],
)
def test_queries_of_urls_are_cut_from_a_text(text: str, shown: str | None) -> None:
    assert without_queries(text) == (text if shown is None else shown)


@pytest.mark.parametrize(
    "text",
    [
        "a." * 200_000,
        "http://" * 100_000,
        "abfs://" * 100_000,
        f"http://h/?{')' * 500_000}a",
        "http://a@" * 70_000,
    ],
)
def test_long_texts_without_queries_are_as_quick(text: str) -> None:
    """Growing with its square, each of these would take an hour."""
    assert len(without_queries(text)) <= len(text)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": ["https://host/x.csv?sig=s3cret "]},
        {"source": ["https://host/{{ x }}?sig=s3cret"]},
        {"source": ["HTTPS://host/x.csv?sig=s3cret"]},
        {"source": ["https:/host/x.csv?sig=s3cret"]},
        {"source": ["https://?sig=s3cret"]},
        {"source": ["abfss://c@a/x?sig=s3cret"]},
        {"source": "https://host/x.csv?sig=s3cret"},
        {"limit": "https://host/x.csv?sig=s3cret"},
        {"destination": "https://host/x?sig=s3cret"},
        {"model": "https://host/x?sig=s3cret"},
    ],
)
def test_a_refused_location_shows_no_signature(fields: dict[str, Any]) -> None:
    assert "s3cret" not in spec_error(**fields)
