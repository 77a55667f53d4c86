# SPDX-License-Identifier: Apache-2.0
"""Wrong specs are refused before any request to a cluster."""

from __future__ import annotations

import json

import pytest

from airflow_provider_raybatch.contract.base import parse
from airflow_provider_raybatch.contract.failures import RaybatchError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec

from .place import Case, Place, assert_one_sentence, case, template

SPEC = [
    case("misspelt field", {"samplng": {}}, "samplng"),
    case("no model", {"model": ""}, "model: ", "at least 1 character", "''"),
    case("model set twice", {"engine_args": {"model": "x"}}, "engine_args: model: ", "write model="),
    case(
        "unknown engine",
        {"engine": "tgi"},
        "engine: ",
        "'vllm', 'ray_data_llm' or 'echo'",
        "'tgi'",
    ),
    case("zero completions", {"sampling": {"n": 0}}, "n: ", "at least 1", "but it is 0"),
    case("error fraction above one", {"max_error_fraction": 5}, "at most 1", "5"),
    case("negative limit", {"source": ["/x.csv"], "limit": -1}, "limit", "at least 1", "-1"),
    case("unsupported scheme", {"source": ["hdfs://n/x"]}, "'hdfs'", "use a local path or one of"),
    case("unrendered expression", {"source": ["/in/{{ ds }}"]}, "{{ ds }}", "was not rendered"),
    case("destination over https", {"destination": "https://h/x"}, "'https'", "file://, s3://"),
    case("destination with a wildcard", {"destination": "/out/*"}, "'/out/*'", "name one folder"),
    case(
        "source is destination",
        {"source": ["file:///data/x"], "destination": "/data/x/"},
        "'/data/x' is also the source",
        "choose another folder",
    ),
    case(
        "destination inside of the source",
        {"source": ["/data"], "destination": "/data/out"},
        "'/data/out' lies inside the source '/data'",
        "choose a folder outside",
    ),
    case(
        "function that is not an import path",
        {"prompt_function": "make prompt"},
        "'make prompt' is not an import path",
        "'package.module:function'",
    ),
    case(
        "images of an engine that takes none",
        {"engine": "ray_data_llm", "images": ["photo"]},
        "images: engine 'ray_data_llm' takes no images from here",
        "use engine 'vllm', or remove them",
    ),
    case(
        "root of images that is a pattern",
        {"images": ["photo"], "image_roots": ["s3://b/*"]},
        "image_roots: 's3://b/*' has a wildcard",
        "name the folder above it",
    ),
    case(
        "host of images with its scheme",
        {"images": ["photo"], "image_hosts": ["https://a.com"]},
        "image_hosts: 'https://a.com' is not the name of a host",
        "write it as images.example.com",
    ),
    case("empty template", template(""), "prompt: ", "at least 1 character"),
    case("no messages", {"messages": []}, "messages", "at least 1 item"),
    case(
        "parallel size that is not a number",
        {"engine": "vllm", "engine_args": {"tensor_parallel_size": "two"}},
        "tensor_parallel_size: ",
        "whole number",
        "'two'",
    ),
    case(
        "engines inside of a replica",
        {"engine": "vllm", "engine_args": {"data_parallel_size": 2}},
        "data_parallel_size: 2 asks for GPUs that a replica does not reserve",
        "set replicas to the number of engines",
    ),
    case(
        "hosts inside of a replica",
        {"engine": "vllm", "engine_args": {"nnodes": 2}},
        "nnodes: 2 asks for GPUs that a replica does not reserve",
    ),
    case(
        "processor without its engine",
        {"engine": "vllm", "processor": {"batch_size": 1}},
        "only engine 'ray_data_llm' takes it",
        "put vLLM's arguments into engine_args",
    ),
]


@pytest.mark.parametrize("wrong", SPEC)
def test_a_wrong_spec_is_refused_without_a_cluster(wrong: Case, place: Place) -> None:
    with pytest.raises(RaybatchError) as caught:
        parse(BatchInferenceSpec, json.dumps(place.document(**wrong.fields(place))))
    if wrong.name == "misspelt field":
        assert str(caught.value) == "samplng: there is no such field; remove it or correct its spelling."
    else:
        assert_one_sentence(caught.value, wrong)
