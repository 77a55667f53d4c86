# SPDX-License-Identifier: Apache-2.0
"""What the check of a model finds without an engine, with a real vLLM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.row import Request

pytest.importorskip("vllm")
from tests.support.real_model import MODEL, SUM, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_check_is_found_again_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job whose model was checked on this node before does not import vLLM for it."""
    from airflow_provider_raybatch.job.preflight import known_models, model_check

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = known_models.check_unless_kept(AskedModel(spec(), [Request(messages=SUM)], {}))
    monkeypatch.delattr(model_check, "check_model")
    assert known_models.check_unless_kept(AskedModel(spec(), [Request(messages=SUM)], {})) == found
    assert found.generation_defaults
    assert found.structured_outputs_config == {"backend": "xgrammar", "disable_any_whitespace": True}


def test_an_offline_check_by_name_is_found_again(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the cache's branch or its files are others."""
    from airflow_provider_raybatch.job.preflight import known_models, model_check

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    repository = hub_cache / "models--acme--kept"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("a" * 40)
    for commit in ("a" * 40, "b" * 40):
        shutil.copytree(MODEL, repository / "snapshots" / commit)
    job, requests = spec(model="acme/kept"), [Request(messages=SUM)]
    found = known_models.check_unless_kept(AskedModel(job, requests, {}))
    assert found.revisions == {"revision": "a" * 40, "tokenizer_revision": "a" * 40}
    monkeypatch.delattr(model_check, "check_model")
    assert known_models.check_unless_kept(AskedModel(job, requests, {})) == found
    (repository / "snapshots" / ("a" * 40) / "generation_config.json").unlink()
    assert known_models.kept(AskedModel(job, requests, {})) is None
    (repository / "refs/main").write_text("b" * 40)
    assert known_models.kept(AskedModel(job, requests, {})) is None


def test_hub_model_is_loaded_at_the_commit_that_was_checked(hub_cache: Path) -> None:
    """Even if the hub's main branch or another node's cache has another commit when the engine starts."""
    from airflow_provider_raybatch.job.engine import vllm_compat
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    repository = hub_cache / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    main = repository / "refs/main"
    commits = {"a" * 40: 1024, "b" * 40: 512}
    for commit, context in commits.items():
        snapshot = shutil.copytree(MODEL, repository / "snapshots" / commit)
        config = json.loads((snapshot / "config.json").read_text())
        (snapshot / "config.json").write_text(json.dumps({**config, "max_position_embeddings": context}))
    first, second = commits
    digests = set()
    for commit in commits:
        main.write_text(commit)
        checked = check_model(AskedModel(spec(model="acme/tiny"), [Request(messages=SUM)], {}))
        assert checked.revisions == {"revision": commit, "tokenizer_revision": commit}
        assert checked.context == commits[commit]
        digests.add(checked.digests.model)
    assert len(digests) == 2
    assert main.read_text() == second
    config = vllm_compat.model_config({"model": "acme/tiny", "revision": first, "tokenizer_revision": first})
    assert config.max_model_len == commits[first]


def test_tokens_that_the_model_lacks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tokenizer, and in the rows; the check that is kept says so again."""
    from transformers import AutoTokenizer

    from airflow_provider_raybatch.job.preflight import known_models, model_check

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = shutil.copytree(MODEL, tmp_path / "model")
    extended = AutoTokenizer.from_pretrained(MODEL)
    extended.add_tokens(["<|extra|>"], special_tokens=True)
    extended.save_pretrained(model)
    job = spec(model=str(model))
    with pytest.raises(PreflightError, match=r"the first fails: the prompt has the token '<\|extra\|>'"):
        model_check.check_model(AskedModel(job, [Request(prompt="a <|extra|>")], {}))
    found = known_models.check_unless_kept(AskedModel(job, [Request(prompt="a")], {}))
    assert found.surplus_tokens == ("<|extra|>",)
    assert known_models.kept(AskedModel(job, [Request(prompt="a")], {})) == found


def test_a_date_in_the_template_is_that_of_the_run() -> None:
    """Chats of one run have one date, which is in their keys; other templates have keys without a date."""
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    def digest(template: str | None, day: float, **kwargs: Any) -> str:
        fields = {"chat_template": template, "chat_template_kwargs": kwargs, "template_time": day * 86400.0}
        return check_model(AskedModel(spec(**fields), [Request(messages=SUM)], {})).digests.chat_template

    dated = (
        "{% if date_string is not defined and strftime_now is defined %}"
        "{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        "{{ date_string }} {{ messages[0]['content'] }}"
    )
    assert digest(dated, 1) == digest(dated, 1.5) != digest(dated, 2)
    assert digest(dated, 1, date_string="today") == digest(dated, 2, date_string="today")
    assert digest(None, 1) == digest(None, 2)


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0]['content'] }}<think>\n",
        "{{ messages[0]['content'] }}{% if enable_thinking is defined and not enable_thinking %}"
        "<think>\n\n</think>\n\n{% endif %}",
    ],
)
def test_chat_template_kwargs_that_reason_first_give_no_json(template: str) -> None:
    from airflow_provider_raybatch.job.preflight.model_check import check_model

    def check(sampling: dict[str, Any], **kwargs: Any) -> None:
        fields = {"chat_template": template, "chat_template_kwargs": kwargs}
        of_json = spec(**fields, response_format="json_object", sampling=sampling)
        check_model(AskedModel(of_json, [Request(messages=SUM)], {}))

    with pytest.raises(PreflightError, match=r"response_format: .* reasons before it answers"):
        check({})
    check({"structured_outputs": {"json_object": True}})
    if "enable_thinking" in template:
        check({}, enable_thinking=False)


def test_a_batch_line_with_texts_needs_no_chat_template(tmp_path: Path) -> None:
    """Models for vectors have none, and a list of texts is not a chat."""
    from airflow_provider_raybatch.job.preflight.model_check import check_model
    from airflow_provider_raybatch.job.request.openai_batch.line import request_of
    from tests.support import specs
    from tests.support.small_models import classifier

    classifier(tmp_path, "bert", ["a", "b"])
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["BertModel"]}))
    job = specs.spec(
        engine="vllm", model=str(tmp_path), model_task="embed", prompt=None, format="openai_batch",
        destination_format="openai_batch", engine_args={"dtype": "float32"},
    )  # fmt: skip
    body = {"model": str(tmp_path), "input": ["red fox", "deep blue sea"]}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": json.dumps(body)}
    found = check_model(AskedModel(job, [request_of(line, job)], {}))
    assert (found.sampled, found.failures) == (1, ())
