# SPDX-License-Identifier: Apache-2.0
"""A model that no GPU holds is refused before an engine starts; of others, the room for tokens is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.planning import cluster_view
from airflow_provider_raybatch.job.planning.context_length import ContextLength
from airflow_provider_raybatch.job.planning.model_fit import ModelSizes
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.preflight.memory_check import (
    check_memory,
    checked_context,
    expected_fit,
    expected_tokens,
    model_sizes,
    refuse_share,
    with_length,
)
from airflow_provider_raybatch.job.preflight.model_files import ModelFiles
from tests.support.approved import AssertSentences
from tests.support.clusters import DGX, H200, HEAD, LAPTOP, SMALL, autoscaled  # noqa: F401 - in messages
from tests.support.model_configs import SHAPES
from tests.support.specs import spec

L4 = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:L4": 1.0}
A100 = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:A100": 1.0}
LARGE, MEDIUM = model_sizes(SHAPES["70B"], None, None), model_sizes(SHAPES["8B"], None, None)


def told(model: ModelSizes | None, cluster: ClusterView, **fields: Any) -> tuple[str, str] | None:
    engine_args = {"max_model_len": 8192, **fields.pop("engine_args", {})}
    notice = check_memory(
        spec(engine="vllm", model="acme/large", engine_args=engine_args, **fields), model, cluster
    )
    return None if notice is None else (notice.level, notice.message)


def test_what_is_said_of_memory(assert_sentences: AssertSentences) -> None:
    """No GPU may hold the weights, also of those to come; a group or a node may not name its own."""

    def said(model: ModelSizes, cluster: ClusterView, **fields: Any) -> str:
        try:
            return ": ".join(told(model, cluster, **fields) or ["nothing"])
        except PreflightError as error:
            return f"refused: {error}"

    assert_sentences(said)


GIB = 1024**3
NODES = ClusterView(tuple({"CPU": 2.0, "memory": free * GIB, "object_store_memory": GIB} for free in (8, 15)))


def on_cpus(
    most: float | None, model: ModelSizes | None = LARGE, cluster: ClusterView = NODES, **fields: Any
) -> bool:
    """Whether nodes are asked for their memory.

    :param most: GiB of the largest one.
    """
    asked = []

    def most_memory() -> int | None:
        asked.append(most)
        return None if most is None else int(most * GIB)

    job = spec(engine="vllm", model="acme/large", **fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_view, "most_memory", most_memory)
        assert check_memory(job, model, cluster) is None
    return bool(asked)


def test_weights_that_no_node_holds_are_refused_on_cpus() -> None:
    with pytest.raises(PreflightError) as caught:
        on_cpus(23.5)
    assert str(caught.value) == (
        "model: the weights of 'acme/large' take 131.4 GiB of main memory, since the cluster has no GPU, and "
        "its largest node has 23.5 GiB; choose a smaller model or a larger node, or add GPUs."
    )
    with pytest.raises(PreflightError, match=r"take 262\.\d GiB of main memory"):
        on_cpus(140, engine_args={"dtype": "float32"})


@pytest.mark.parametrize(
    ("most", "fields", "asked"),
    [
        pytest.param(140, {}, True, id="more than Ray counts"),
        pytest.param(None, {}, True, id="a node that does not tell"),
        pytest.param(1, {"model": MEDIUM}, False, id="as Ray counts"),
        pytest.param(1, {"model": None}, False, id="unknown model"),
        pytest.param(1, {"cluster_wait": 60.0}, False, id="nodes may join"),
        pytest.param(1, {"cluster": autoscaled(*NODES.nodes, groups=[(HEAD, 1)])}, False, id="autoscaler"),
        pytest.param(1, {"engine_args": {"cpu_offload_gb": 9}}, False, id="unknown sizes"),
    ],
)
def test_models_that_nodes_may_hold_are_not_refused(
    most: float | None, fields: dict[str, Any], asked: bool
) -> None:
    assert on_cpus(most, **fields) is asked


def test_the_smallest_of_several_gpus_decides_what_fits() -> None:
    job = spec(engine="vllm", model="acme/large", engine_args={"max_model_len": 8192})
    reason = expected_fit(job, MEDIUM, ClusterView((HEAD, L4, H200))).reasons["model"]
    assert "of 0.92 x 22.0 GiB of L4, 4.0 GiB are left for a KV cache of about 32,500 tokens" in reason
    assert expected_fit(job, MEDIUM, ClusterView((HEAD, SMALL))).fits is None


def test_a_share_that_does_not_hold_the_model_is_refused() -> None:
    """Before an engine starts: by the rows, and for a model without a KV cache."""
    cluster, half = ClusterView((HEAD, L4)), {"engine": "vllm", "model": "acme/large", "num_gpus": 0.5}
    refused = r"^num_gpus: 0\.5 of L4 gives an engine at most 10\.4 GiB .* set num_gpus to at least 0\."
    assert MEDIUM is not None
    with pytest.raises(PreflightError, match=refused + "85, or"):
        refuse_share(spec(**half, model_task="embed"), MEDIUM, cluster)
    rows = spec(**{**half, "num_gpus": 0.15}, sampling={"max_tokens": 9})
    h200 = ClusterView((HEAD, H200))
    assert checked_context(rows, MEDIUM, h200, 131_072, 9_000).problem == ""
    with pytest.raises(
        PreflightError, match=r"KV cache of 60,000 tokens 7\.3 GiB; set num_gpus to at least 0\.2"
    ):
        checked_context(rows, MEDIUM, h200, 131_072, 60_000)


def test_a_share_that_holds_the_model_is_told() -> None:
    half = spec(engine="vllm", model="acme/large", num_gpus=0.5, model_task="embed")
    cluster = ClusterView((HEAD, H200))
    assert MEDIUM is not None
    refuse_share(half, MEDIUM, cluster)
    refuse_share(half, MEDIUM, ClusterView((HEAD,)))  # waits for a GPU of an unknown kind
    assert expected_fit(half, MEDIUM, cluster).reasons["replicas"] == "2 replicas of 0.5 GPU a node of 1 GPU"


@pytest.mark.parametrize(
    ("version", "counts"),
    [(None, False), ("0.26.0", False), ("0.27.0", True), ("0.29.0+cpu", True), ("1.0", True), ("dev", False)],
)
def test_graphs_count_by_the_version_of_vllm(version: str | None, counts: bool) -> None:
    sizes = model_sizes(SHAPES["8B"], None, version)
    assert sizes is not None
    assert sizes.counts_graphs is counts


INDEX = "model.safetensors.index.json"
OF_IMAGES = {"model_type": "gemma3", "text_config": SHAPES["270M"]}


def files(sizes: dict[str, int | None], index: object = None) -> ModelFiles:
    return ModelFiles({**sizes, INDEX: 9}, lambda _: json.dumps(index).encode())


@pytest.mark.parametrize(
    ("config", "found", "stored"),
    [
        pytest.param(
            OF_IMAGES, files({"model-1.safetensors": 5, "model-2.safetensors": 6}), 11, id="a folder"
        ),
        pytest.param(
            OF_IMAGES,
            files({"model-1.safetensors": None}, {"metadata": {"total_size": 12}}),
            12,
            id="the hub, by its index",
        ),
        pytest.param(OF_IMAGES, files({"model.safetensors": None}, {"metadata": {}}), None, id="no total"),
        pytest.param(OF_IMAGES, files({"model.safetensors": None}, ["x"]), None, id="no index"),
        pytest.param(OF_IMAGES, None, None, id="no files"),
        pytest.param(SHAPES["8B"], files({"model.safetensors": 5}), None, id="needs no files"),
    ],
)
def test_files_of_weights_count_where_parameters_do_not(
    config: dict[str, Any], found: ModelFiles | None, stored: int | None
) -> None:
    sizes = model_sizes(config, found, None)
    assert sizes is not None
    assert sizes.stored == stored


def context_of(cluster: ClusterView, needed: int = 2000, **fields: Any) -> ContextLength:
    given = {"sampling": {"max_tokens": 16}, **fields}
    job = spec(engine="vllm", model="acme/medium", **given)
    return checked_context(job, MEDIUM, cluster, 131_072, needed)


def test_engines_get_a_context_that_their_cache_holds() -> None:
    found = context_of(ClusterView((HEAD, L4)))
    assert found.max_model_len == 27_648
    job = spec(engine="vllm", model="acme/medium", sampling={"max_tokens": 16})
    notice = check_memory(with_length(job, found), MEDIUM, ClusterView((HEAD, L4)))
    assert notice is not None
    assert notice.level == "info"
    assert notice.message.endswith("rows of 27,648 tokens (max_model_len)")
    own = {"max_model_len": 512}
    assert with_length(job.model_copy(update={"engine_args": own}), found).engine_args == own


@pytest.mark.parametrize(
    ("cluster", "fields"),
    [
        pytest.param(ClusterView((HEAD, L4)), {"needed": 100_000}, id="a row too long"),
        pytest.param(ClusterView((HEAD, L4)), {"sampling": {}}, id="responses may fill the context"),
        pytest.param(ClusterView((HEAD, L4)), {"on_overlong": "truncate"}, id="prompts are cut to it"),
    ],
)
def test_a_context_that_no_gpu_holds_is_refused(cluster: ClusterView, fields: dict[str, Any]) -> None:
    with pytest.raises(PreflightError, match=r"^max_model_len: the "):
        context_of(cluster, **fields)
    grown = context_of(cluster, **fields, cluster_wait=60.0)  # a larger node may join
    assert grown.problem


def test_weights_are_refused_before_a_context() -> None:
    job = spec(engine="vllm", model="acme/large", sampling={"max_tokens": 16})
    with pytest.raises(PreflightError, match=r"^model: the weights of 'acme/large'"):
        checked_context(job, LARGE, ClusterView((HEAD, L4)), 131_072, 100_000)


@pytest.mark.parametrize(
    ("cluster", "known"),
    [
        (ClusterView((HEAD, L4)), True),
        (ClusterView((HEAD, H200)), True),
        (ClusterView((HEAD, A100)), False),  # of 40 or 80 GB
        (ClusterView((HEAD, L4, H200)), False),
        (LAPTOP, False),
    ],
)
def test_tokens_are_expected_of_one_kind_of_gpu(cluster: ClusterView, known: bool) -> None:
    job = spec(engine="vllm", model="acme/medium", engine_args={"max_model_len": 8192})
    assert bool(expected_tokens(job, MEDIUM, cluster)) is known
