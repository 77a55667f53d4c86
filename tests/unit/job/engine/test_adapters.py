# SPDX-License-Identifier: Apache-2.0
"""An engine has each adapter under a number of its own, over all jobs that it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.engine import vllm_compat, vllm_compat_models
from airflow_provider_raybatch.job.engine.adapters import EngineAdapters, local_folder
from airflow_provider_raybatch.job.engine.base import EngineDeadError
from airflow_provider_raybatch.storage.folder import folder
from tests.support.adapters import save_adapter
from tests.support.s3_server import S3Server
from tests.support.specs import spec


def worker(**found: list[str]) -> dict[str, list[str]]:
    """What a worker of vLLM finds of an adapter."""
    return {"take": [], "size": [], "left": [], "has": [], **found}


class Llm:
    """Stands for vLLM's engine, which has slots for adapters, and knows one by its number alone."""

    def __init__(self, slots: int = 2) -> None:
        self.slots: list[int | None] = [None] * slots
        self.folders: dict[int, str] = {}
        self.errored = False
        parallel = SimpleNamespace(worker_extension_cls=vllm_compat_models.FIT_CLASS)
        self.vllm_config = SimpleNamespace(parallel_config=parallel)
        self.workers: list[dict[str, list[str]] | None] = [worker(take=["q_proj"])]

    async def collective_rpc(self, method: str, args: tuple[int]) -> list[Any]:
        assert callable(getattr(vllm_compat_models.AdapterFit, method))
        assert args[0] in self.folders
        return self.workers

    async def add_lora(self, request: Any) -> bool:
        if "bad" in request.lora_path:
            self.errored = "worse" in request.lora_path
            raise RuntimeError("expected target modules in {'q_proj'}")
        if request.lora_int_id not in self.folders:
            self.folders[request.lora_int_id] = request.lora_path
            self.slots[self.slots.index(None)] = request.lora_int_id
        return True

    async def remove_lora(self, number: int) -> bool:
        self.slots[self.slots.index(number)] = None
        return self.folders.pop(number, None) is not None


@pytest.fixture(autouse=True)
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    def request(name: str, number: int, place: str) -> Any:
        return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=place)

    monkeypatch.setattr(vllm_compat_models, "lora_request", request)
    monkeypatch.setattr(vllm_compat, "engine_dead_error", lambda: EngineDeadError)
    monkeypatch.setattr(vllm_compat, "was_killed", lambda llm: False)


def load(adapters: EngineAdapters, llm: Llm, folders: dict[str, str], **digests: str) -> dict[str, Any]:
    job = spec(adapters=folders, adapter_column="c", adapter_digests=digests)
    return asyncio.run(adapters.load(llm, job))


def test_changed_content_gets_another_number_and_name() -> None:
    """Under the old number the engine would answer with the old weights, and from their cached prefixes."""
    adapters, llm = EngineAdapters(), Llm()
    first = load(adapters, llm, {"a": "/a"}, a="content 1")["a"]
    again = load(adapters, llm, {"renamed": "/a"}, renamed="content 1")["renamed"]
    changed = load(adapters, llm, {"a": "/a"}, a="content 2")["a"]
    back = load(adapters, llm, {"a": "/a"}, a="content 1")["a"]
    assert (first.lora_int_id, first.lora_name) == (again.lora_int_id, again.lora_name)
    assert (back.lora_int_id, back.lora_name) == (first.lora_int_id, first.lora_name)
    assert changed.lora_int_id != first.lora_int_id
    assert changed.lora_name != first.lora_name


def test_the_next_jobs_adapters_take_the_same_slots() -> None:
    """The last slot stays empty: on CPUs it answers rows of the model alone."""
    adapters, llm = EngineAdapters(), Llm(slots=3)
    for job in ({"a": "/a", "b": "/b"}, {"b": "/b", "c": "/c"}, {"d": "/d", "e": "/e"}):
        made = load(adapters, llm, job)
        assert {name: llm.folders[one.lora_int_id] for name, one in made.items()} == job
        assert llm.slots[-1] is None
        assert sorted(llm.folders.values()) == sorted(job.values())
    assert len({one for one in llm.slots if one}) == 2


def test_an_adapter_that_vllm_can_t_load_is_named() -> None:
    adapters, llm = EngineAdapters(), Llm()
    with pytest.raises(PreflightError) as refused:
        load(adapters, llm, {"acme": "/bad"})
    assert str(refused.value) == (
        "adapters: vLLM can't load 'acme' from '/bad' (expected target modules in {'q_proj'})."
    )
    assert list(load(adapters, llm, {"fine": "/fine"})) == ["fine"]


def test_an_engine_that_dies_of_an_adapter_is_dead() -> None:
    with pytest.raises(EngineDeadError, match="while it loaded the adapter 'acme'"):
        load(EngineAdapters(), Llm(), {"acme": "/bad/worse"})


HAS = [f"model.layers.{layer}.self_attn.{name}" for layer in (0, 1) for name in ("k_proj", "q_proj")]
OTHER = "layers.1.self_attn.q_proj"


@pytest.mark.parametrize(
    ("workers", "refused", "noted"),
    [
        ([worker(take=HAS[:1], has=HAS)], "", ""),
        ([worker(take=HAS[2:], has=HAS[:2], left=[OTHER]), worker(has=HAS[2:])], "", ""),
        (
            [worker(take=HAS[:1], left=["visual.proj", "a"]), worker(take=HAS[1:], left=["visual.proj"])],
            "",
            "adapters: 'acme' answers without its weights of 1 module, as of 'visual.proj'.",
        ),
        (
            [worker(left=[OTHER], has=HAS[:2]), worker(left=[OTHER], has=HAS[2:])],
            "adapters: 'acme' fits no module of the model, which would answer alone: it is for "
            "'layers.1.self_attn.q_proj', and adapters may be for 'model.layers.0.self_attn.q_proj', "
            "'model.layers.1.self_attn.q_proj' and others; give the model it was trained on, or correct "
            "lora_target_modules in engine_args.",
            "",
        ),
        (
            [worker(take=HAS), worker(take=HAS, size=HAS[:1])],
            "adapters: 'acme' has weights of other sizes than the model's for "
            "'model.layers.0.self_attn.k_proj'; give the model it was trained on.",
            "",
        ),
        (
            [worker(take=HAS), None],
            "",
            "adapters: 'acme' may not fit the model: the engine does not say which modules take weights.",
        ),
    ],
)
def test_an_adapter_is_compared_with_the_models_modules(
    workers: list[Any], refused: str, noted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each worker has a part of the model: of its layers, or of each layer."""
    adapters, llm = EngineAdapters(), Llm()
    llm.workers = workers
    if refused:
        with pytest.raises(PreflightError) as error:
            load(adapters, llm, {"acme": "/a"})
        assert str(error.value) == refused
        llm.workers = [worker(take=HAS)]
    assert list(load(adapters, llm, {"acme": "/a"})) == ["acme"]
    assert list(llm.folders.values()) == ["/a"]
    assert capsys.readouterr().err.strip() == noted


def test_a_workers_extension_of_the_user_stays(capsys: pytest.CaptureFixture[str]) -> None:
    llm = Llm()
    llm.vllm_config.parallel_config.worker_extension_cls = "acme.Worker"
    llm.workers = [worker()]
    assert list(load(EngineAdapters(), llm, {"acme": "/a"})) == ["acme"]
    assert "may not fit the model" in capsys.readouterr().err


def weights(rows: list[int | None] | int, width: int = 8) -> Any:
    """Return weights of a layer, or of its parts; some parts may have none."""
    if isinstance(rows, int):
        return SimpleNamespace(lora_a=np.zeros((2, width)), lora_b=np.zeros((rows, 2)))
    both = [(None, None) if one is None else (np.zeros((2, width)), np.zeros((one, 2))) for one in rows]
    return SimpleNamespace(lora_a=[one for one, _ in both], lora_b=[one for _, one in both])


@pytest.mark.parametrize(
    ("parts", "given", "gpus", "fits"),
    [
        ([6], weights(6), 1, True),
        ([6], weights(5), 1, False),
        ([6], weights(6, width=7), 1, False),
        ([6, 2, 2], weights([6, None, 2]), 1, True),
        ([6, 2, 2], weights([6, None, 1]), 1, False),
        ([6, 2, 2], weights(10), 1, True),
        ([6, 2, 2], weights(9), 1, False),
        ([3, 3, 3, 4], weights([9, 4]), 1, True),
        ([3, 3, 3, 4], weights([9, 3]), 1, False),
        ([3, 3, 3, 4], weights([9, None]), 1, True),
        ([3, 1, 1], weights([6, 1, 1]), 2, True),
        ([3, 1, 1], weights([6, 1, 1], width=9), 2, False),
    ],
)
def test_sizes_of_weights_are_those_of_the_module(
    parts: list[int], given: Any, gpus: int, fits: bool
) -> None:
    """Weights may be for each part of a layer, for some of its parts together, or for the whole one."""
    buffers = [np.zeros((1, 1, rows, 4)) for rows in parts]
    layer = SimpleNamespace(base_layer=SimpleNamespace(input_size=8), lora_b_stacked=buffers, tp_size=gpus)
    manager = SimpleNamespace(
        modules={"qkv_proj": layer},
        packed_modules={},
        get_adapter=lambda number: SimpleNamespace(loras={"qkv_proj": given}),
        _get_lora_layer_weights=lambda adapter, name: adapter.loras.get(name),
    )
    made = vllm_compat_models.AdapterFit()
    assert made.raybatch_fit(1) is None  # this worker has another runner
    made.model_runner = SimpleNamespace(lora_manager=SimpleNamespace(_adapter_manager=manager))
    found = worker(take=["qkv_proj"], has=["qkv_proj"], size=[] if fits else ["qkv_proj"])
    assert made.raybatch_fit(1) == found


def test_a_copy_of_s3_is_whole_and_shared(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """VLLM reads adapters from folders; a second engine of the node finds the copy of the same content."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    s3_server.open_to_this_process(monkeypatch)
    source = save_adapter(tmp_path / "adapter")
    location = f"s3://{s3_server.new_bucket()}/adapters/acme"
    place = folder(location, s3_server.credentials)
    for path in [*source.iterdir(), Path(__file__)]:
        place.write(path.name, path.read_bytes())
    made = Path(local_folder(location, "content 1"))
    assert {path.name: path.read_bytes() for path in made.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }
    place.delete([path.name for path in source.iterdir()])
    assert local_folder(f"{location}/", "content 1") == str(made)
    assert local_folder(location, "content 2") != str(made)
    assert len(list(made.parent.iterdir())) == 2
    assert local_folder(str(source), "x") == str(source)


def test_a_replica_on_several_nodes_needs_a_shared_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_raybatch.job.engine import adapters as module

    monkeypatch.setattr(module, "local_folder", lambda location, content: f"/cache/{content}")
    with pytest.raises(PreflightError, match="give a folder that all nodes see"):
        load(EngineAdapters(spans_nodes=True), Llm(), {"a": "s3://b/a"})
