# SPDX-License-Identifier: Apache-2.0
"""The verbs, for argparse and for Airflow, which calls :func:`airflow_commands` at each start."""

from __future__ import annotations

import argparse
import os
import sys
from argparse import Namespace
from functools import partial
from importlib import import_module
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
                    func=partial(run_verb, verb.function),
                    args=[arg(option.flags, **option.settings) for option in verb.options],
                )
                for verb in VERBS
            ],
        )
    ]


def main(words: Sequence[str] | None = None) -> None:
    """``raybatch``; `words` are those of the command line."""
    options = parser().parse_args(words)
    run_verb(options.function, options)


_FAILED = 1
_INTERRUPTED = 130


def run_verb(function: str, options: Namespace) -> None:
    """Call ``module:name`` below this package with the options of its verb.

    :raises SystemExit: with 1 for an error, whose sentence is written to stderr; with 130 for Ctrl-C.
    """
    from airflow_provider_raybatch.contract.failures import RaybatchError
    from airflow_provider_raybatch.contract.text import clean, write_utf8

    write_utf8()
    module, _, name = function.partition(":")
    try:
        getattr(import_module(f"{__package__}.{module}"), name)(options)
        sys.stdout.flush()
    except RaybatchError as error:
        print(" ".join(_masked(str(error)).split()), file=sys.stderr)
        sys.exit(_FAILED)
    except ModuleNotFoundError as error:
        print(f"{error.name}: it is not installed here; install it with pip.", file=sys.stderr)
        sys.exit(_FAILED)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
    except BrokenPipeError:
        # The reader, such as `head`, has enough. Python flushes stdout once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if error.filename is None:
            raise
        # Of a file that an option names: no right to read it, a name that is too long, a disk that is full.
        print(clean(f"{error.filename}: it can't be used ({error.strerror})."), file=sys.stderr)
        sys.exit(_FAILED)


def _masked(text: str) -> str:
    from airflow_provider_raybatch.contract.text import clean

    if "airflow" not in sys.modules:  # so no secret is known, and importing it takes seconds
        return clean(text)
    from airflow.sdk.log import redact  # type: ignore[attr-defined]

    return clean(str(redact(text)))
