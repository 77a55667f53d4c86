# SPDX-License-Identifier: Apache-2.0
"""Locations with another meaning on the cluster, and folders that are not apart, are refused."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_raybatch.contract.arguments.data import OutputArguments
from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.location import local_path, plain
from airflow_provider_raybatch.contract.text import shown_uri, without_queries
from tests.support.approved import AssertSentences
from tests.support.specs import spec, spec_error


def test_a_folder_that_means_another_place_is_refused(assert_sentences: AssertSentences) -> None:
    def said(uri: str) -> str:
        sentence = spec_error(destination=uri)
        assert spec_error(reuse=uri).removeprefix("reuse: ") == sentence.removeprefix("destination: ")
        return sentence

    assert_sentences(said)


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
    assert (
        "before the host of 's3://bucket/x'; remove it, and name the connection in aws_conn_id for S3."
        in sentence
    )
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


def test_a_model_folder_is_absolute(assert_sentences: AssertSentences) -> None:
    def said(name: str) -> str:
        sentence = spec_error(model=name).removeprefix("model: ")
        for argument in ("tokenizer", "generation_config", "hf_config_path"):
            assert spec_error(engine_args={argument: name}) == f"engine_args: {argument}: {sentence}"
        return sentence

    assert_sentences(said)


@pytest.mark.parametrize(
    "name", ["org/name", "name", "/models/m", "org/repo-GGUF:Q4_K_M", "org/repo/file.gguf", "s3://b/a/model"]
)
def test_what_vllm_loads_passes(name: str) -> None:
    assert spec(model=name, engine_args={"generation_config": "auto"}).model == name


def test_download_dir_is_absolute_and_a_servers_model_is_free() -> None:
    sentence = spec_error(engine_args={"download_dir": "models"})
    assert sentence.startswith("engine_args: download_dir: 'models' is relative")
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


def test_destination_that_is_the_source_or_in_it_is_refused(assert_sentences: AssertSentences) -> None:
    assert_sentences(
        lambda source, destination: spec_error(source=["/o.csv", source], destination=destination)
    )


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        ("/data/in", "/data/in2"),
        ("/data/in/x.csv", "/data/in/out"),
        ("/data/in/*.csv", "/data/in/out"),
        ("s3://bucket/a", "s3://other/a"),
        ("/data/out/day1", "/data/out"),
    ],
)
def test_destination_beside_the_source_is_allowed(source: str, destination: str) -> None:
    assert spec(source=["/o.csv", source], destination=destination).destination == destination


def test_response_store_inside_another_folder_is_refused(assert_sentences: AssertSentences) -> None:
    def said(store: str) -> str:
        paths = ["/data/in.jsonl", "/lake/in", "/lake/deep/**/*.csv", "/lake/flat/*.csv"]
        return spec_error(source=paths, reuse=store)

    assert_sentences(said)


def test_response_store_beside_other_folders_is_allowed() -> None:
    for store in ("/data/store", "/data/output", "s3://data/out"):
        assert spec(reuse=store).reuse == store


@pytest.mark.parametrize(
    ("uri", "kept"),
    [("/out/", "/out"), ("/", "/"), ("s3://bucket/", "s3://bucket"), ("file:///out//", "file:///out")],
)
def test_trailing_slashes_of_the_destination_go(uri: str, kept: str) -> None:
    assert parse(OutputArguments, {"destination": uri}).destination == kept
