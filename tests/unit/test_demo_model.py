# SPDX-License-Identifier: Apache-2.0
"""The demo model's folder and the generator of its data; other tests run the model."""

from __future__ import annotations

import csv
import hashlib
import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from dags_examples.demo_model import corpus
from dags_examples.demo_model.companies import Split, split_of
from dags_examples.demo_model.documents import BEGINNINGS, QUALITIES, TOPICS, document

FOLDER = Path(corpus.__file__).parent


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def drawn(split: Split, count: int = 3000) -> list[corpus.Conversation]:
    return list(islice(corpus.conversations(split, seed=11), count))


def test_the_folder_stays_small_enough_to_commit() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= 5_000_000


def test_files_of_the_model_agree_on_the_special_tokens() -> None:
    def read(name: str) -> dict[str, object]:
        loaded = json.loads((FOLDER / "model" / name).read_text(encoding="utf-8"))
        assert isinstance(loaded, dict)
        return loaded

    config, generation, tokenizer = map(
        read, ("config.json", "generation_config.json", "tokenizer_config.json")
    )
    added = read("tokenizer.json")["added_tokens"]
    assert isinstance(added, list)
    ids = {token["content"]: token["id"] for token in added}
    assert config["architectures"] == ["LlamaForCausalLM"]
    for kind in ("bos", "eos", "pad"):
        assert config[f"{kind}_token_id"] == generation[f"{kind}_token_id"] == ids[tokenizer[f"{kind}_token"]]
    template = (FOLDER / "model" / "chat_template.jinja").read_text(encoding="utf-8")
    assert tokenizer["chat_template"] == template


def test_both_models_have_one_tokenizer() -> None:
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (FOLDER / "small_model" / name).read_bytes() == (FOLDER / "model" / name).read_bytes()


def test_documents_show_topic_quality_and_split() -> None:
    drawn = [document(Random(seed), split) for seed in range(40) for split in ("train", "held_out")]
    assert {one.topic for one in drawn} == set(TOPICS)
    assert {one.quality for one in drawn} == set(QUALITIES)
    for one in drawn:
        ours, others = one.text.count("!"), [text for text in BEGINNINGS if text != one.topic]
        assert ours == 5 - one.quality  # advertisements
        beginnings = [shape.split("{")[0] for shape in BEGINNINGS[one.topic]]
        assert any(shape in one.text for shape in beginnings)
        assert not any(shape.split("{")[0] in one.text for topic in others for shape in BEGINNINGS[topic])
    held_out = [hashlib.sha256(one.text.encode()).digest()[0] % 8 == 0 for one in drawn]
    assert held_out == [False, True] * 40


def test_every_draw_is_the_same_on_every_python() -> None:
    assert digest([vars(item) for item in drawn("train", 500)]) == "6e8e3ecf33968754"
    assert digest([vars(item) for item in drawn("held_out", 500)]) == "52591756ab5a3745"
    assert digest(corpus.company_rows(200)) == "f93d202e6f686e9c"
    assert digest(corpus.topic_rows(200)) == "7156c2458d131bb6"


def test_held_out_names_and_sums_are_never_trained_on() -> None:
    def asked(split: Split) -> set[str]:
        return {item.prompt for item in drawn(split, 20_000) if item.skill != "question"}

    assert not asked("train") & asked("held_out")


def test_one_in_eight_name_combinations_is_held_out() -> None:
    splits = [split_of(stem, "Dairy Farms") for stem in map(str, range(4000))]
    assert 0.1 < splits.count("held_out") / len(splits) < 0.15


def test_the_mirror_of_a_held_out_sum_is_trained_on() -> None:
    held_out = [(a, b) for a in range(100) for b in range(100) if corpus.sum_is_held_out(a, b)]
    assert len([pair for pair in held_out if max(pair) < 10]) >= 5
    assert not [pair for pair in held_out if corpus.sum_is_held_out(pair[1], pair[0])]


def test_answers_are_right() -> None:
    for item in drawn("train"):
        if item.skill == "sum":
            digits = "".join(letter if letter.isdigit() else " " for letter in item.prompt).split()
            assert int(item.answer) == sum(map(int, digits))
        elif item.skill == "industry":
            label = json.loads(item.answer)["industry"] if item.answer.startswith("{") else item.answer
            assert label in corpus.INDUSTRIES


def test_each_topic_has_several_distinct_pairs() -> None:
    assert len(corpus.facts()) >= 60
    for topic, pairs in corpus.facts().items():
        assert len(set(pairs)) >= 3, topic
        assert all(question.endswith("?") and answer.endswith(".") for question, answer in pairs), topic


def test_company_rows_are_distinct_held_out_names() -> None:
    rows = corpus.company_rows(400)
    assert [row["company_id"] for row in rows] == list(range(1, 401))
    assert len({row["company"] for row in rows}) == 400
    assert {row["industry"] for row in rows} == set(corpus.INDUSTRIES)


def test_topic_rows_use_every_topic_before_one_returns() -> None:
    topics = [row["topic"] for row in corpus.topic_rows(2 * len(corpus.facts()))]
    assert set(topics[: len(corpus.facts())]) == set(corpus.facts())
    assert sorted(map(str, topics)) == sorted(2 * list(corpus.facts()))


@pytest.mark.parametrize("kind", ["companies", "topics"])
def test_the_command_writes_the_rows_as_csv_and_as_json_lines(kind: str, tmp_path: Path) -> None:
    rows = corpus.company_rows(30) if kind == "companies" else corpus.topic_rows(30)
    for name in ("rows.csv", "rows.jsonl"):
        corpus.main([kind, "--rows", "30", "--out", str(tmp_path / name)])
    with (tmp_path / "rows.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.DictReader(file)) == [{key: str(value) for key, value in row.items()} for row in rows]
    lines = (tmp_path / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows


def test_the_command_refuses_fewer_rows_than_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        corpus.main(["topics", "--rows", "0", "--out", str(tmp_path / "rows.csv")])
    assert "--rows is 0; give at least 1." in capsys.readouterr().err
