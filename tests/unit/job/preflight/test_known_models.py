# SPDX-License-Identifier: Apache-2.0
"""A model's check is made once, and again when anything has changed that it depends on."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from airflow_provider_raybatch.contract.failures import PreflightError
from airflow_provider_raybatch.contract.manifest import Digests
from airflow_provider_raybatch.job.preflight import known_models, model_check, model_version
from airflow_provider_raybatch.job.preflight.loaded_model import AskedModel
from airflow_provider_raybatch.job.preflight.memory_check import model_sizes
from airflow_provider_raybatch.job.preflight.model_check import ModelCheck
from airflow_provider_raybatch.job.preflight.model_version import Version
from airflow_provider_raybatch.job.row import IMAGE_PART, Image, Request, RowFailure
from tests.support.model_configs import SHAPES
from tests.support.specs import spec

FOUND = ModelCheck(
    sampled=1,
    longest=7,
    context=400,
    generation_defaults={"temperature": 0.6, "top_k": 20},
    sizes=model_sizes(SHAPES["8B"], None, None),
)


LONG = "long " * 80


class Checks:
    """Stands for the check, which imports vLLM.

    :ivar made: how often it was asked.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = 0
        self.found: ModelCheck | None = FOUND

    def check_model(self, *asked: Any) -> ModelCheck:
        self.made += 1
        if self.found is None:
            raise PreflightError("model: it is broken.")
        return self.found

    def ask(self, text: str = "Say x", messages: Any = None, **fields: Any) -> ModelCheck:
        given = {"engine": "vllm", "model": str(self.folder), **fields}
        request = Request(messages=messages) if messages else Request(prompt=text)
        return known_models.check_unless_kept(AskedModel(spec(**given), [request], {}))

    def ask_all(self, *chats: list[dict[str, Any]]) -> int:
        """Ask for a check of these chats, and return how often the check was made so far."""
        requests = [Request(messages=chat) for chat in chats]
        known_models.check_unless_kept(AskedModel(spec(engine="vllm", model=str(self.folder)), requests, {}))
        return self.made


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checks:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    (tmp_path / "draft").mkdir()
    checks = Checks(model)
    monkeypatch.setattr(model_check, "check_model", checks.check_model)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return checks


def test_the_second_job_finds_the_check_of_the_first(checks: Checks) -> None:
    first = checks.ask()
    assert first == FOUND
    again = checks.ask("Say y", batch_size=7, prompt="Repeat {row.text}")
    assert checks.made == 1
    prompted = spec(engine="vllm", model=str(checks.folder), prompt="Repeat {row.text}")
    of_these_rows = {"needed": again.needed, "is_kept": True}
    assert again == dataclasses.replace(
        FOUND, digests=Digests(spec=prompted.response_digest), **of_these_rows
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"sampling": {"stop": "x"}},
        {"sampling": {"temperature": 0}},
        {"engine_args": {"max_num_seqs": 8}},
        {"chat_template": "{{ messages }}"},
        {"accelerator_type": "H100"},
        {"messages": [{"role": "user", "content": "x"}]},
        {"text": LONG},
        {"images": ["picture"]},  # the first rows may have none, and the model must take some
    ],
    ids=str,
)
def test_what_may_decide_the_check_is_checked_anew(checks: Checks, changed: dict[str, Any]) -> None:
    checks.ask()
    checks.ask(**changed)
    assert checks.made == 2


def turn(role: str = "user", content: Any = "x", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
PLAIN = [turn()]


@pytest.mark.parametrize(
    "chat",
    [
        [turn("system"), turn()],
        [turn("developer"), turn()],
        [turn("assistant")],
        [turn("User")],
        [turn(), turn()],
        [turn(content="")],
        [turn(content=None)],
        [turn(content=[{"type": "text", "text": "x"}])],
        [turn(name="ann")],
        [turn(), turn("assistant", None, tool_calls=[CALL]), turn("tool", "3", tool_call_id="1")],
        [{"role": "user"}],
    ],
    ids=repr,
)
def test_a_chat_of_another_shape_is_checked_anew(checks: Checks, chat: list[dict[str, Any]]) -> None:
    """A template may refuse system messages, roles that don't alternate, or content that is no text."""
    assert checks.ask_all(PLAIN) == 1
    assert checks.ask_all(PLAIN, chat) == 2
    assert checks.ask_all(PLAIN, PLAIN) == 2
    assert checks.ask_all(chat) == 2


def test_shapes_of_several_nights_are_kept_together(checks: Checks) -> None:
    """Nights whose chats have other numbers of turns need no check once each number was checked."""
    nights = [[turn() for _ in range(turns)] for turns in (1, 2, 3)]
    assert [checks.ask_all(night) for night in nights] == [1, 2, 3]
    assert checks.ask_all(*nights) == 3


def test_other_words_are_no_other_shape(checks: Checks) -> None:
    def call(**function: Any) -> list[dict[str, Any]]:
        return [turn(content="Add."), turn("assistant", None, tool_calls=[{**CALL, "function": function}])]

    assert checks.ask_all(call(name="add", arguments='{"a": 1}')) == 1
    assert checks.ask_all(call(name="subtract", arguments='{"b": [2]}')) == 1
    assert checks.ask_all(call(name="add", arguments={"a": 1})) == 2
    assert checks.ask_all(call(name="add", arguments={"b": [2]})) == 2


def test_a_refused_shape_stays_refused(checks: Checks) -> None:
    """The night after a job whose chats had no system message."""
    checks.ask_all(PLAIN)
    checks.found = None
    for _ in range(2):
        with pytest.raises(PreflightError, match="it is broken"):
            checks.ask_all([turn("system"), turn()])
    assert checks.ask_all(PLAIN) == 3


def test_no_more_shapes_are_kept_than_one_file_bears(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_models, "_MOST_SHAPES", 2)
    nights = [[turn() for _ in range(turns)] for turns in (1, 2, 3)]
    assert [checks.ask_all(night) for night in nights] == [1, 2, 3]
    assert checks.ask_all(nights[2]) == 3
    assert checks.ask_all(nights[0]) == 4


def test_rows_with_other_structured_outputs_are_checked_anew(checks: Checks) -> None:
    """They decide the grammar backend of the engine."""
    asked = spec(engine="vllm", model=str(checks.folder), sampling_column="sampling")
    for schema in ({"type": "integer"}, {"type": "integer"}, {"type": "integer", "multipleOf": 5}):
        rows = [Request(prompt="x", sampling={"structured_outputs": {"json": schema}, "seed": 7})]
        known_models.check_unless_kept(AskedModel(asked, rows, {}))
    assert checks.made == 2


def test_changed_files_and_versions_are_checked_anew(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.ask()
    (checks.folder / "config.json").write_text("[]")
    checks.ask()
    monkeypatch.setattr(known_models.vllm_compat, "installed_version", lambda: "99.0")
    checks.ask()
    checks.ask()
    assert checks.made == 3


@pytest.mark.parametrize(
    "found",
    [
        dataclasses.replace(FOUND, prints_date=True),
        dataclasses.replace(FOUND, generation_defaults={"a": (1, 2)}),  # JSON would make a list of it
    ],
    ids=["another day", "not JSON"],
)
def test_some_outcomes_are_not_kept(checks: Checks, found: ModelCheck) -> None:
    checks.found = found
    assert checks.ask() == checks.ask() == found
    assert checks.made == 2


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (dataclasses.replace(FOUND, failures=((0, RowFailure("tokenize", "too long")),)), "Say x"),
        (dataclasses.replace(FOUND, truncated=1), "Say x"),
        (FOUND, LONG),
    ],
    ids=["too long prompts", "cut prompts", "prompts that may be too long"],
)
def test_the_same_rows_need_no_second_check(checks: Checks, found: ModelCheck, text: str) -> None:
    """A retry, a cleared task and a run with another destination have the same; other rows are counted."""
    checks.found = found
    first, second = checks.ask(text), checks.ask(text)
    assert dataclasses.replace(second, digests=first.digests) == first == found
    assert not second.is_kept
    assert checks.made == 1
    checks.ask(text.replace("a", "b") + "!")
    assert checks.made == 2


@pytest.mark.parametrize(
    "changed", [{"on_overlong": "truncate"}, {"special_tokens_in_text": "escape"}], ids=str
)
def test_rows_of_other_tokens_are_checked_anew(checks: Checks, changed: dict[str, Any]) -> None:
    """The remedy that a refusal names changes no request."""
    failed = dataclasses.replace(FOUND, failures=((0, RowFailure("tokenize", "leaves no room")),))
    checks.found = failed
    assert checks.ask(LONG) == failed
    checks.found = FOUND
    for _ in range(2):
        assert not checks.ask(LONG, **changed).failures
    assert checks.made == 2


def test_chunks_of_other_sizes_are_checked_anew(checks: Checks) -> None:
    """A kept check of the model does not say whether it takes chunks so long."""
    chunks = [{}, {"chunk_tokens": 16}, {"chunk_tokens": 10**6}]
    for fields in (*chunks, {"chunk_tokens": 16, "chunk_overlap_tokens": 8}):
        checks.ask(model_task="embed", **fields)
    assert checks.made == 4


def test_rows_that_must_be_counted_are_counted_once(checks: Checks) -> None:
    """As where they may not fit the engine's context, by their bytes."""
    job, rows = spec(engine="vllm", model=str(checks.folder)), [Request(prompt="Say y")]
    checks.ask()
    assert known_models.kept(AskedModel(job, rows, {})).is_kept  # type: ignore[union-attr]
    for _ in range(2):
        assert not known_models.check_rows_anew(AskedModel(job, rows, {})).is_kept
        assert not known_models.kept(AskedModel(job, rows, {})).is_kept  # type: ignore[union-attr]
    assert checks.made == 2


@pytest.mark.parametrize("nested", [False, True])
def test_files_that_arguments_name_are_looked_at_each_time(checks: Checks, nested: bool) -> None:
    draft = str(checks.folder.parent / "draft")
    for _ in range(2):
        checks.ask(engine_args={"speculative_config": {"model": draft}} if nested else {"tokenizer": draft})
    assert checks.made == 2


class Names:
    """Stands for the hub.

    :ivar commit: that the name has now; empty if the hub does not tell.
    :ivar was_read: whether the check got all of its files.
    :ivar tokens: with which it was asked.
    """

    def __init__(self) -> None:
        self.commit = "a" * 40
        self.was_read = True
        self.tokens: list[str | None] = []

    def current(self, model: str, engine_args: Any, token: str | None) -> Version | None:
        self.tokens.append(token)
        return Version(f"{model}@{self.commit}", self.commit) if self.commit else None

    @property
    def found(self) -> ModelCheck:
        return dataclasses.replace(FOUND, revisions=Version("", self.commit).revisions)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names()
    monkeypatch.setattr(model_version, "current", names.current)
    monkeypatch.setattr(model_version, "was_read", lambda *_: names.was_read)
    monkeypatch.setattr(known_models, "refuse_missing", lambda _: None)
    return names


def test_a_model_by_name_is_checked_once_a_commit(checks: Checks, names: Names) -> None:
    for commit in ("a" * 40, "b" * 40):
        names.commit = commit
        checks.found = names.found
        first, second = checks.ask(model="acme/tiny"), checks.ask(model="acme/tiny")
        assert first.revisions == second.revisions == names.found.revisions
    assert checks.made == 2
    names.commit = ""
    checks.ask(model="acme/tiny")
    checks.ask(model="acme/tiny")
    assert checks.made == 4


@pytest.mark.parametrize("changed", [{"commit": "b" * 40}, {"was_read": False}], ids=str)
def test_a_check_of_other_files_is_not_kept(checks: Checks, names: Names, changed: dict[str, Any]) -> None:
    """The branch has moved, the check has read an older commit in the cache, or missed files."""
    checks.found = names.found
    vars(names).update(changed)
    checks.ask(model="acme/tiny")
    checks.ask(model="acme/tiny")
    assert checks.made == 2


def test_the_hub_is_asked_with_the_token_of_the_job(
    checks: Checks, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver, which looks first, never has it in its environment."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    job = spec(engine="vllm", model="acme/tiny")
    environment = {"HF_TOKEN": SecretStr("hf_job")}
    assert known_models.kept(AskedModel(job, [], environment)) is None
    checks.found = names.found
    known_models.check_unless_kept(AskedModel(job, [], environment))
    found = known_models.kept(AskedModel(job, [], environment))
    assert found is not None
    assert found.revisions == names.found.revisions
    assert known_models.kept(AskedModel(job, [], {})) == found
    assert names.tokens == ["hf_job"] * 3 + [None]
    assert "HF_TOKEN" not in os.environ


def test_a_kept_check_says_how_long_these_rows_may_be(checks: Checks) -> None:
    """It has not counted them: a token has a byte at least, and the chat template adds some."""
    for limit in (30, 40):
        checks.ask("x" * 90, sampling={"max_tokens": limit})
        found = checks.ask("y" * 90, sampling={"max_tokens": limit})
        assert found.is_kept
        assert 90 + limit < found.needed <= 170 + limit


def test_a_broken_cache_costs_time_only(checks: Checks, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.ask()
    home = known_models.folder()
    assert home is not None
    for kept in home.iterdir():
        kept.write_text("{")
    assert checks.ask() == FOUND
    old = time.time() - 100 * 86400
    for kept in home.iterdir():
        os.utime(kept, (old, old))
    assert checks.ask() == FOUND
    assert checks.made == 3
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert checks.ask() == checks.ask() == FOUND
    assert checks.made == 5


def test_other_images_are_checked_anew(checks: Checks) -> None:
    """How many tokens an image has, the check alone finds out."""
    part = dict(IMAGE_PART)
    chat = [{"role": "user", "content": [part, {"type": "text", "text": "x"}]}]
    of = spec(engine="vllm", model=str(checks.folder))
    requests = [Request(messages=chat, images=(Image(b"1", version=name),)) for name in ("a", "a", "b")]
    made = []
    for request in requests:
        known_models.check_unless_kept(AskedModel(of, [request], {}))
        made.append(checks.made)
    assert made == [1, 1, 2]
    raw = [Request(prompt="x", images=(Image(b"1"),) * count) for count in (0, 1, 2)]
    assert len({next(iter(known_models.shapes([one]))) for one in raw}) == 3
