# SPDX-License-Identifier: Apache-2.0
"""The verbs, for argparse and for Airflow, which calls :func:`airflow_commands` at each start."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch import __version__
from airflow_provider_raybatch.cli.verbs import PROGRAM, SUMMARY, VERBS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.cli.cli_config import CLICommand


def parser() -> argparse.ArgumentParser:
    """The parser of ``raybatch``."""
    made = argparse.ArgumentParser(
        prog=PROGRAM,
        description=f"{SUMMARY}.",
        epilog=f"Begin with: {PROGRAM} init FILE. Examples of each verb: {PROGRAM} VERB --help.",
    )
    made.add_argument("--version", action="version", version=f"airflow-provider-raybatch {__version__}")
    verbs = made.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb in VERBS:
        one = verbs.add_parser(
            verb.name,
            help=verb.summary,
            description=verb.wrapped,
            epilog=verb.epilog(PROGRAM),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for option in verb.options:
            one.add_argument(*option.flags, **option.settings)
        one.set_defaults(function=verb.function)
    return made


def airflow_commands() -> list[CLICommand]:
    """The same verbs as ``airflow raybatch VERB``; the provider's key ``cli`` names this function."""
    from airflow.cli.cli_config import ActionCommand, Arg, GroupCommand

    arg: Any = Arg  # which has no types
    return [
        GroupCommand(
            name=PROGRAM,
            help=SUMMARY,
            subcommands=[
                ActionCommand(
                    name=verb.name,
                    help=verb.summary,
                    description=verb.wrapped,
                    epilog=verb.epilog(f"airflow {PROGRAM}"),
                    func=partial(_run, verb.function),
                    args=[arg(option.flags, **option.settings) for option in verb.options],
                )
                for verb in VERBS
            ],
        )
    ]


def main(words: Sequence[str] | None = None) -> None:
    """``raybatch``; `words` are those of the command line."""
    options = parser().parse_args(words)
    _run(options.function, options)


def _run(function: str, options: argparse.Namespace) -> None:
    from airflow_provider_raybatch.cli.running import run_verb

    run_verb(function, options)
