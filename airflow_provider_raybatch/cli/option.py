# SPDX-License-Identifier: Apache-2.0
"""Verbs and their options as plain data, from which both parsers are made."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WIDTH = 90


class Option:
    """An argument of a verb.

    :param flags: as ``add_argument`` of argparse takes them.
    :param settings: those of argparse that Airflow's ``Arg`` knows as well: `help`, `action`, `default`,
        `nargs`, `type`, `choices`, `metavar`, `dest`.
    """

    def __init__(self, *flags: str, help: str, **settings: Any) -> None:
        self.flags = flags
        self.settings: Mapping[str, Any] = {"help": help, **settings}


@dataclass(frozen=True)
class Verb:
    """One command.

    :param function: ``module:name`` below ``airflow_provider_raybatch.cli``; called with the parsed options.
    :param summary: one line in the list of verbs.
    :param description: what it does.
    :param examples: lines of a shell, without the program's name.
    """

    name: str
    function: str
    summary: str
    description: str
    examples: tuple[str, ...]
    options: tuple[Option, ...]

    @property
    def wrapped(self) -> str:
        """The description in lines for help."""
        return textwrap.fill(self.description, _WIDTH)

    def epilog(self, program: str) -> str:
        """The examples, as help shows them."""
        return "\n".join(("examples:", *(f"  {program} {example}" for example in self.examples)))
