# SPDX-License-Identifier: Apache-2.0
"""A dataset card is what hubs read, and no text of a row gets out of its place."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from huggingface_hub import DatasetCard
from markdown_it import MarkdownIt
from markdown_it.token import Token

from airflow_provider_raybatch.report.card import dataset_card, size_category
from airflow_provider_raybatch.report.words import cell, line
from tests.support import reports


def front_matter(card: str) -> dict[str, Any]:
    return dict(yaml.safe_load(card.split("---\n")[1]))


def tokens(text: str) -> list[Token]:
    """What a hub makes of Markdown, also of what stands within lines."""
    found = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    return [part for one in found for part in (one, *(one.children or ()))]


def kinds(card: str) -> set[str]:
    return {one.type for one in tokens(card.split("---\n", 2)[2])}


def headings(card: str) -> list[str]:
    found = tokens(card.split("---\n", 2)[2])
    return [found[place + 1].content for place, one in enumerate(found) if one.type == "heading_open"]


def test_a_card_has_the_prompts_and_counts_of_steps() -> None:
    card = dataset_card(reports.in_steps())
    assert "draft: prompt:\n\n```\nDescribe {row.company}.\n```" in card
    assert "| rows asked in step draft | 10,000 (450 rejected) |" in card
    assert "| rows asked in step judge | 9,850 |" in card


def test_a_card_has_what_hubs_search_by() -> None:
    assert front_matter(dataset_card(reports.good())) == {
        "pretty_name": "label of nightly",
        "size_categories": ["1K<n<10K"],
        "task_categories": ["text-generation"],
        "tags": ["synthetic", "airflow", "ray", "vllm"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": "data/20261127T020930-0123abcd/*.parquet"}],
            }
        ],
    }


def test_a_card_is_what_hugging_face_reads() -> None:
    found = DatasetCard(dataset_card(reports.good()))
    assert found.data.to_dict()["size_categories"] == ["1K<n<10K"]
    assert found.text.lstrip().startswith("# label")


@pytest.mark.parametrize("name", reports.GALLERY)
def test_no_text_makes_markup(name: str) -> None:
    card = dataset_card(reports.GALLERY[name]())
    assert card.encode()
    assert not kinds(card) & {"html_block", "html_inline", "link_open", "image", "em_open", "s_open"}
    assert set(front_matter(card)) <= {"pretty_name", "size_categories", "task_categories", "tags", "configs"}
    made = {"How it was made", "Contents", "Columns", "Cost", "Known failures", "Samples"}
    assert {title for title in headings(card)[1:] if not title.startswith("Row ")} <= made


def test_samples_keep_their_text() -> None:
    blocks = [one.content for one in tokens(dataset_card(reports.nasty())) if one.type == "fence"]
    assert f"{reports.NASTY[9]}\n" not in blocks  # beyond the samples that a card shows
    assert f"{reports.NASTY[0]}\n" in blocks


def test_a_fence_in_an_answer_is_no_end_of_the_block() -> None:
    sample = reports.good().samples[0].model_copy(update={"response": reports.NASTY[9]})
    card = dataset_card(reports.changed(samples=[sample]))
    assert f"{reports.NASTY[9]}\n" in [one.content for one in tokens(card) if one.type == "fence"]


def test_a_card_without_content_has_no_samples() -> None:
    card = dataset_card(reports.good().without_content())
    assert "## Samples" not in card
    assert "Company 3" not in card


def test_a_card_says_how_rows_were_made_and_failed() -> None:
    card = dataset_card(reports.good())
    assert "- model: unsloth/Llama-3.1-8B-Instruct\n" in card
    assert "```\nWhat industry is {row.company} in?\n```" in card
    assert "| cost | 1.82 USD |" in card
    assert "- 120 rows failed at tokenize, mostly: the prompt has 5,210 tokens" in card


@pytest.mark.parametrize(
    ("rows", "category"),
    [
        (0, "n<1K"),
        (999, "n<1K"),
        (1000, "1K<n<10K"),
        (10_000, "10K<n<100K"),
        (999_999, "100K<n<1M"),
        (1_000_000, "1M<n<10M"),
        (10**9, "1B<n<10B"),
        (10**11, "100B<n<1T"),
        (10**12, "n>1T"),
        (10**14, "n>1T"),
    ],
)
def test_a_size_is_one_of_the_hubs(rows: int, category: str) -> None:
    assert size_category(rows) == category


@pytest.mark.parametrize(
    "text",
    [
        *reports.NASTY,
        "# heading",
        "- item",
        "1. item",
        "12) item",
        "_emphasis_ **strong** ~~gone~~",
        "&lt;b&gt; & co",
        "http://example.com www.example.com me@example.com",
        "a\\",
        "$x$",
        "snake_case_name",
    ],
)
def test_a_cell_shows_each_character(text: str) -> None:
    shown = " ".join(text.encode("utf-8", "replace").decode().split())
    for markdown in (line(text), f"- {line(text)}", f"| {cell(text)} |\n|---|\n| {cell(text)} |"):
        found = [one for one in tokens(markdown) if one.type == "inline"]
        assert found
        for one in found:
            assert {part.type for part in one.children or ()} <= {"text", "text_special"}
            said = "".join(part.content for part in one.children or ())
            if text.isascii():
                assert said == shown
