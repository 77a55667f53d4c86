# SPDX-License-Identifier: Apache-2.0
"""Replicas load what preflight has checked."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.events import Notice
from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.spec import BatchInferenceSpec
from airflow_provider_raybatch.job.engine_process.proxy import identity
from airflow_provider_raybatch.job.planning.plan import ClusterView
from airflow_provider_raybatch.job.preflight.check import Facts
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.memory_check import model_sizes
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.request.keys import Keyer
from airflow_provider_raybatch.job.row import Request
from tests.support.model_configs import SHAPES
from tests.support.specs import spec

engine_check = pytest.importorskip("airflow_provider_raybatch.job.preflight.engine_check")
COMMIT = "a" * 40


def test_the_engine_loads_the_revision_that_was_checked() -> None:
    asked = spec(engine="vllm", engine_args={"revision": "main", "max_num_seqs": 5})
    checked = ModelCheck(revisions={"revision": COMMIT, "tokenizer_revision": COMMIT})
    loaded = engine_check.as_checked(asked, checked)
    assert loaded.engine_args == {"max_num_seqs": 5, **checked.revisions}
    assert engine_check.as_checked(asked, ModelCheck()) == asked
    compact = {"backend": "xgrammar", "disable_any_whitespace": True}
    loaded = engine_check.as_checked(asked, ModelCheck(structured_outputs_config=compact))
    assert loaded.engine_args == {**asked.engine_args, "structured_outputs_config": compact}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        (
            {"engine_args": {"max_modl_len": 9}},
            r"^engine_args: vLLM .*'max_modl_len'; did you mean 'max_model_len'",
        ),
        ({"sampling": {"foo": 1}}, "^sampling: vLLM .* has no parameter 'foo'"),
    ],
)
def test_names_are_checked_before_anything_else(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], sentence: str
) -> None:
    """There is neither a Ray, a destination nor the model."""
    ready = pytest.importorskip("airflow_provider_raybatch.job.preflight.ready")
    model_check = pytest.importorskip("airflow_provider_raybatch.job.preflight.model_check")
    from tests.support.services import services_of

    compat = engine_check.vllm_args.vllm_compat
    monkeypatch.setattr(compat, "engine_arg_names", lambda: frozenset({"max_model_len"}))
    monkeypatch.setattr(compat, "sampling_names", lambda: (frozenset({"seed", "n"}), frozenset({"choice"})))
    monkeypatch.setattr(engine_check.cluster_view, "check_versions", dict)
    job = spec(engine="vllm", model="/no/such/model", destination="s3://no-such-bucket", **fields)
    for check in (
        lambda: ready.open_destination(Facts(job, services_of(job))),
        lambda: model_check.check_model(AskedModel(job, [], {})),
    ):
        with pytest.raises(PreflightError, match=sentence):
            check()


def test_a_kept_check_is_looked_up_for_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"HF_TOKEN": SecretStr("hf_job")}
    found = {"hf_job": ModelCheck(context=400)}
    here = SimpleNamespace(get_node_id=lambda: "head")
    monkeypatch.setattr(engine_check.ray, "get_runtime_context", lambda: here)
    monkeypatch.setattr(engine_check.cluster_view, "gpu_node", lambda _: "head")
    monkeypatch.setattr(
        engine_check.known_models,
        "kept",
        lambda asked: found[asked.environment["HF_TOKEN"].get_secret_value()],
    )
    job = spec(engine="vllm", model="/")
    assert engine_check._checked_model(AskedModel(job, [], environment), launch=None) == found["hf_job"]


def test_a_misspelt_folder_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "Llama-3.1-8B").mkdir()
    job = spec(engine="vllm", model=str(tmp_path / "Lama-3.1-8B"))
    with pytest.raises(
        PreflightError, match=r"checks it; did you mean 'Llama-3\.1-8B'\? Else make it readable"
    ):
        engine_check.refuse_missing(AskedModel(job, [], {}))


def node(name: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"NodeID": name, "Alive": alive, "Resources": {"CPU": 4.0, **resources}}


HEAD = node("head")


@pytest.mark.parametrize(
    ("nodes", "refused"),
    [
        pytest.param([HEAD], True, id="the only node"),
        pytest.param([HEAD, node("lost", alive=False)], True, id="the only one alive"),
        pytest.param([node("head", GPU=1.0), node("other", GPU=1.0)], True, id="the node that checks"),
        pytest.param([HEAD, node("other")], False, id="another without GPUs"),
        pytest.param([HEAD, node("other", GPU=1.0)], False, id="GPUs elsewhere"),
    ],
)
def test_a_missing_folder_waits_for_no_replica(
    monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, Any]], refused: bool
) -> None:
    """A replica that could be asked imports vLLM first. Where others may have the folder, one is asked."""
    asked: list[str] = []

    class Launched:
        def ask(self, function: Any, of: AskedModel) -> ModelCheck:
            asked.append(of.spec.model)
            return ModelCheck(context=400)

    monkeypatch.setattr(
        engine_check.ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "head")
    )
    monkeypatch.setattr(engine_check.ray, "nodes", lambda: nodes)
    job = spec(engine="vllm", model="/no/such/model")
    if refused:
        with pytest.raises(PreflightError, match=r"^model: nothing is at '/no/such/model' on the node that"):
            engine_check._checked_model(AskedModel(job, [], {}), Launched())
    else:
        assert engine_check._checked_model(AskedModel(job, [], {}), Launched()).context == 400
    assert asked == ([] if refused else ["/no/such/model"])


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (
            {"surplus_tokens": ("<|im_end|>", "<|im_start|>")},
            "model: its tokenizer is longer than its vocabulary, by 2 (first '<|im_end|>'); rows with such a "
            "token will be dead letters.",
        ),
        (
            {"absent_bos": "<bos>"},
            "chat_template: no chat begins with '<bos>', as the texts do that the model was trained with; "
            "put {{ bos_token }} at the template's beginning, or responses may be worse.",
        ),
    ],
)
def test_what_may_spoil_responses_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, found: dict[str, Any], text: str
) -> None:
    monkeypatch.setattr(engine_check, "_checked_model", lambda *_: ModelCheck(context=400, **found))
    notices: list[Notice] = []
    engine_check.check_engine(spec(engine="vllm", model="acme/tiny"), [], {}, notices.append, launch=None)
    assert [(notice.level, notice.message) for notice in notices] == [("warning", text)]


def test_one_line_says_that_choices_are_whole() -> None:
    sampling = {"max_tokens": 8, "structured_outputs": {"choice": ["very positive", "negative"]}}
    told: list[str] = []

    def tell(spec: BatchInferenceSpec, *sampling: dict[str, Any]) -> list[str]:
        told.clear()
        requests = [Request(prompt="x", sampling=one) for one in sampling]
        engine_check.tell_of_choices(spec, ModelCheck(), requests, lambda event: told.append(event.message))
        return told

    line = (
        "sampling: max_tokens=8 could cut off the choice 'very positive'; responses may have 14 tokens, so "
        "that each is a whole choice"
    )
    job = spec(engine="vllm", model="m", sampling=sampling)
    assert tell(job, {}, {}) == [line]
    assert tell(spec(engine="vllm", model="m"), {}, sampling, sampling) == [line]
    assert tell(spec(sampling=sampling), {}) == []
    assert tell(job, {"max_tokens": 20}) == []


L4_NODE = {"CPU": 8.0, "GPU": 1.0, "accelerator_type:L4": 1.0}
BOUNDED = {"engine": "vllm", "model": "acme/medium", "sampling": {"max_tokens": 16}}


def sized(needed: int, **fields: Any) -> ModelCheck:
    """Of a model whose own context no L4 holds."""
    sizes = model_sizes(SHAPES["8B"], None, None)
    return ModelCheck(context=131_072, needed=needed, sizes=sizes, **fields)


def told(
    monkeypatch: pytest.MonkeyPatch, needed: int, **fields: Any
) -> tuple[BatchInferenceSpec, BatchInferenceSpec, list[Notice], ModelCheck]:
    """The job as it was asked and as engines load it, what is said, and the check."""
    monkeypatch.setattr(engine_check.cluster_view, "view", lambda: ClusterView((HEAD["Resources"], L4_NODE)))
    asked, notices = spec(**{**BOUNDED, **fields}), list[Notice]()
    checked = engine_check.tell_of_memory(asked, sized(needed), notices.append)
    return asked, engine_check.as_checked(asked, checked), notices, checked


def test_engines_load_a_context_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for all rows, so that jobs share warm engines; and no request key changes by it."""
    asked, loaded, notices, checked = told(monkeypatch, 2000)
    assert loaded.engine_args == {"max_model_len": 27_648}
    assert notices[0].message == (
        "max_model_len: 27,648 (surely fits: the model's own 131,072 tokens take 16.0 GiB of KV cache, and "
        "L4 holds about 32,500 tokens)"
    )
    assert notices[1].message.endswith("or 1.2 rows of 27,648 tokens (max_model_len)")
    assert checked.shown()["kv_cache_tokens"] == {
        "value": 32_511,
        "reason": "expected from the model's config and the GPU",
    }
    assert loaded.response_digest == asked.response_digest
    assert Keyer(loaded, {}, checked.digests).digest == Keyer(asked, {}, checked.digests).digest
    _, other, _, _ = told(monkeypatch, 20_000)
    assert identity(other, "files") == identity(loaded, "files") != identity(asked, "files")


def test_what_is_measured_is_no_part_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, loaded, notices, _ = told(monkeypatch, 30_000)
    assert loaded.engine_args == {"max_model_len": -1}
    assert notices[0].message.startswith("max_model_len: auto (what vLLM's cache holds: L4 holds about")
    assert [notice.level for notice in notices] == ["info", "info"]
    assert loaded.response_digest == asked.response_digest


def test_a_counted_row_that_may_not_fit_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, notices, _ = told(monkeypatch, 40_000)
    assert notices[0].level == "warning"
    assert "the longest prompt counted, 40,000 tokens with its response, may be a dead" in notices[0].message


@pytest.mark.parametrize("given", [64, "auto"])
def test_the_users_context_stays(monkeypatch: pytest.MonkeyPatch, given: int | str) -> None:
    _, loaded, notices, checked = told(monkeypatch, 30, engine_args={"max_model_len": given})
    assert loaded.engine_args == {"max_model_len": given}
    assert checked.length is not None
    assert checked.length.reason == "set in engine_args"
    assert not [one for one in notices if one.message.startswith("max_model_len")]


@pytest.mark.parametrize(("needed", "again"), [(20_000, False), (50_000, True), (100_000, True)])
def test_rows_that_may_not_fit_are_counted_anew(
    monkeypatch: pytest.MonkeyPatch, needed: int, again: bool
) -> None:
    """It knows their bytes alone, and a refusal must not come from a guess."""
    monkeypatch.setattr(engine_check.cluster_view, "view", lambda: ClusterView((HEAD["Resources"], L4_NODE)))
    monkeypatch.setattr(engine_check, "_kept_or_made", lambda *_: sized(needed, is_kept=True))
    made = SimpleNamespace(ask=lambda check, *_: sized(5, longest=1))
    found = engine_check._checked_model(AskedModel(spec(**BOUNDED), [], {}), made)
    assert (found.needed, found.is_kept) == ((5, False) if again else (needed, True))
