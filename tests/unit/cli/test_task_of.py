# SPDX-License-Identifier: Apache-2.0
"""The batch inference that options name, rendered as in a run."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_provider_raybatch.cli.task_of import NO_DESTINATION, BatchTask, batch_task
from airflow_provider_raybatch.cli.verbs import TASK_OPTIONS
from airflow_provider_raybatch.contract.failures import RaybatchError
from tests.support.approved import AssertSentences

HEAD = """
from datetime import datetime
from airflow.sdk import DAG, Param, XComArg, task
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.ray_job import RayJobOperator

def batch(**given):
    return RayBatchInferenceOperator(**{"task_id": "label", "source": "/lake/in.parquet", "model": "m",
        "prompt": "Label {row.name}", "destination": "/lake/out", **given})

"""


@pytest.fixture
def dag_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    # Files of one size that are written within a second share their bytecode.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(body: str) -> str:
        path = tmp_path / "dags.py"
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        path.write_text(
            HEAD + 'with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1)):\n' + lines
        )
        return str(path)

    return write


def found(*words: str) -> BatchTask:
    parser = ArgumentParser()
    for option in TASK_OPTIONS:
        parser.add_argument(*option.flags, **option.settings)
    return batch_task(parser.parse_args(words))


def refused(*words: str) -> str:
    with pytest.raises(RaybatchError) as caught:
        found(*words)
    return str(caught.value)


def test_rendered_for_a_date(dag_file: Callable[[str], str]) -> None:
    file = dag_file(
        'batch(source="/lake/{{ ds }}/", sampling={"max_tokens": "{{ 2 * 8 }}"}, ray_conn_id="gpus")'
    )
    task = found("--dag", file, "--date", "2026-11-02")
    assert task.spec.source == ["/lake/2026-11-02/"]
    assert task.spec.sampling == {"max_tokens": 16}
    assert (task.ray_conn_id, task.spec.destination) == ("gpus", "/lake/out")
    assert task.title == "task 'label' of DAG 'nightly' on 2026-11-02"


@pytest.mark.parametrize(
    ("given", "set_", "source"),
    [
        ('source="{{ ti.xcom_pull(task_ids=\'extract\') }}"', "extract=/a.csv", ["/a.csv"]),
        ("source=\"{{ ti.xcom_pull('extract', key='k') }}\"", 'extract:k=["/a", "/b"]', ["/a", "/b"]),
        ("source=XComArg(batch(task_id='extract'))", 'extract={"uri": "/a/"}', ["/a/"]),
        ("source=XComArg(batch(task_id='extract'))['uri']", 'extract={"uri": "/a/"}', ["/a/"]),
    ],
)  # fmt: skip
def test_xcoms_that_are_given(
    dag_file: Callable[[str], str], given: str, set_: str, source: list[str]
) -> None:
    words = ["--dag", dag_file(f"batch({given})"), "--task", "label"]
    assert found(*words, "--set", set_).spec.source == source
    message = refused(*words)
    assert message.startswith("source: it takes the XCom")
    assert "add --set extract" in message


def test_defaults_of_xcoms(dag_file: Callable[[str], str]) -> None:
    file = dag_file("batch(source=\"{{ ti.xcom_pull('extract', default='/b') }}\")")
    assert found("--dag", file).spec.source == ["/b"]
    assert found("--dag", file, "--set", "extract=/a").spec.source == ["/a"]


def test_what_is_not_needed_is_left_out(dag_file: Callable[[str], str]) -> None:
    file = dag_file("batch(destination=\"/out/{{ ti.xcom_pull('extract') }}\")")
    task = found("--dag", file)
    assert task.spec.destination == NO_DESTINATION
    (note,) = task.notes
    assert note.startswith("destination: it takes the XCom 'return_value' of task 'extract'")
    assert found("--dag", file, "--destination", "/elsewhere").notes == ()


def test_refusals(dag_file: Callable[[str], str], assert_sentences: AssertSentences) -> None:
    assert_sentences(
        lambda body, task_id: refused(
            "--dag", dag_file(body), *(() if task_id is None else ("--task", task_id))
        )
    )


def test_a_decorated_function_is_called(dag_file: Callable[[str], str]) -> None:
    file = dag_file(
        "@task.ray_batch(model='some/model')\n"
        "def label(path, ds=None):\n"
        "    return {'source': path + ds, 'prompt': '{row.x}', 'destination': '/out', 'limit': 7}\n"
        "label('/lake/{{ ds_nodash }}/')"
    )
    spec = found("--dag", file, "--date", "2026-11-02").spec
    assert (spec.source, spec.limit) == (["/lake/20261102/2026-11-02"], 7)


@pytest.mark.parametrize(("index", "source"), [((), "/a.csv"), (("--map-index", "1"), "/b.csv")])
def test_an_instance_of_a_mapped_task(
    dag_file: Callable[[str], str], index: tuple[str, ...], source: str
) -> None:
    file = dag_file(
        "RayBatchInferenceOperator.partial(task_id='label', model='m', prompt='{row.x} {{ ds }}', "
        "destination='/out').expand(source=['/a.csv', '/b.csv'])"
    )
    spec = found("--dag", file, "--date", "2026-11-02", *index).spec
    assert (spec.source, spec.prompt) == ([source], "{row.x} 2026-11-02")


def test_xcoms_of_mapped_tasks(dag_file: Callable[[str], str]) -> None:
    file = dag_file(
        "@task\ndef part(number): return str(number)\n"
        "other = part.override(task_id='b').expand(number=[1])\n"
        "batch(source=part.expand(number=[1, 2]), sampling={'stop': other})"
    )
    words = ("--dag", file, "--set", 'part=["/1.csv", "/2.csv"]')
    spec = found(*words, "--set", 'b=["x"]').spec
    assert (spec.source, spec.sampling) == (["/1.csv", "/2.csv"], {"stop": ["x"]})
    assert "sampling: it takes the XCom 'return_value' of task 'b'" in refused(*words)


def test_a_task_mapped_over_an_xcom(dag_file: Callable[[str], str]) -> None:
    file = dag_file(
        "@task\ndef files(): return []\n"
        "RayBatchInferenceOperator.partial(task_id='label', model='m', prompt='{row.x}', destination='/out')"
        ".expand(source=files())"
    )
    words = ("--dag", file, "--set", 'files=["/1.csv", "/2.csv"]')
    assert found(*words, "--map-index", "1").spec.source == ["/2.csv"]
    assert "files" in refused("--dag", file)
    assert "map_index: the task has 2 instances here, 0 to 1, but it is 2." in refused(
        *words, "--map-index", "2"
    )


@pytest.mark.parametrize("index", ["-1", "4"])
@pytest.mark.parametrize(
    "expanded", ["expand(source=['/a', '/b'], limit=[1, 2])", "expand_kwargs([{'source': '/a'}] * 4)"]
)
def test_an_index_that_no_instance_has(dag_file: Callable[[str], str], index: str, expanded: str) -> None:
    file = dag_file(
        "RayBatchInferenceOperator.partial(task_id='label', model='m', prompt='{row.x}', destination='/out')"
        f".{expanded}"
    )
    message = refused("--dag", file, "--map-index", index)
    assert message == f"label: map_index: the task has 4 instances here, 0 to 3, but it is {index}."
    assert refused("--dag", dag_file("batch()"), "--map-index", "1") == (
        "map_index: task 'label' is not mapped; leave it out."
    )


def test_options_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    task = found(
        "--source", "a.csv", "s3://lake/b.csv", "--prompt", "{row.x}", "--model", "m",
        "--argument", "chat_template={{ messages }}", "--argument", 'sampling={"max_tokens": 4}',
        "--argument", "max_errors=3",
    )  # fmt: skip
    assert task.spec.source == [f"{tmp_path}/a.csv", "s3://lake/b.csv"]
    assert task.spec.chat_template == "{{ messages }}"
    assert (task.spec.max_errors, task.spec.sampling) == (3, {"max_tokens": 4})
    assert task.spec.destination == NO_DESTINATION


def test_options_replace_those_of_the_task(dag_file: Callable[[str], str]) -> None:
    file = dag_file("batch(source=\"{{ ti.xcom_pull('extract') }}\")")
    task = found("--dag", file, "--source", "/mine.csv", "--argument", "limit=5", "--conn-id", "other")
    assert (task.spec.source, task.spec.limit, task.spec.prompt) == (["/mine.csv"], 5, "Label {row.name}")
    assert task.ray_conn_id == "other"


@pytest.mark.parametrize(
    ("arguments", "option", "expected"),
    [
        ("limits={'max_gpu_hours': '{{ var.value.x }}', 'currency': 'EUR'}", "max_gpu_hours=8",
         {"max_gpu_hours": 8, "currency": "EUR"}),
        ("limits={'max_gpu_hours': '{{ var.value.x }}', 'currency': 'EUR'}", 'limits={"max_gpu_hours": 8}',
         {"max_gpu_hours": 8, "currency": "USD"}),
        ("reuse={'reuse': '/kept/{{ var.value.x }}', 'deduplicate': False}", "limit=1",
         {"reuse": None, "deduplicate": False}),
        ("prompt=None, messages=[{'role': 'user', 'content': '{row.x}'}]", "messages=chat",
         {"messages": None, "messages_column": "chat"}),
        ("model_task={'model_task': 'embed'}", "model_task=generate", {"model_task": "generate"}),
    ],
)  # fmt: skip
def test_options_replace_objects_and_their_values(
    dag_file: Callable[[str], str], arguments: str, option: str, expected: dict[str, object]
) -> None:
    spec = found("--dag", dag_file(f"batch({arguments})"), "--argument", option).spec
    assert {name: getattr(spec, name) for name in expected} == expected


def test_options_that_cannot_be_used(assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda words: refused(*words))


def test_a_misspelt_dag_file_names_the_nearest(dag_file: Callable[[str], str]) -> None:
    file = Path(dag_file("batch()"))
    near = str(file.with_name(f"{file.stem}x.py"))
    assert refused("--dag", near).startswith(f"dag: {near} is not a file; did you mean {file.name!r}?")
    assert "did you mean" not in refused("--dag", str(file.parent))


def test_secrets_are_masked(dag_file: Callable[[str], str]) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret("hunter2-of-the-night")
    file = dag_file("batch(source='{{ (1).x(\"hunter2-of-the-night\") }}')")
    assert "hunter2" not in refused("--dag", file)


def test_runs_that_cannot_be(dag_file: Callable[[str], str], assert_sentences: AssertSentences) -> None:
    assert_sentences(lambda words: refused("--dag", dag_file("batch()"), *words))


def test_params_of_the_run(dag_file: Callable[[str], str]) -> None:
    file = dag_file(
        "batch(prompt='{{ params.question }} {row.x}', params={'question': Param(type='string')})"
    )
    assert "params:" in (message := refused("--dag", file))
    assert "--conf" in message
    assert found("--dag", file, "--conf", '{"question": "Why?"}').spec.prompt == "Why? {row.x}"
