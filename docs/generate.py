# SPDX-License-Identifier: Apache-2.0
"""Writes the parts of the reference that follow from the code: arguments, fields, failure classes, schemas.

Run ``python docs/generate.py`` after a change of a docstring, an argument or a field; a test asks for it.
The pages are written by hand except the regions between ``<!-- generated: NAME -->`` and ``<!-- end -->``.
Texts come from docstrings: the summary, and each ``:param``. A line that ends with a colon before some of the
parameters names their group. An argument of a batch inference is documented once, at its operator: the spec's
schema takes its text from there, and the spec's page links it.
"""

from __future__ import annotations

import ast
import collections.abc
import importlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import PathLike
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
REFERENCE = DOCS / "reference"
sys.path.insert(0, str(DOCS.parent))

from airflow_provider_raybatch.argument_fields import GROUPS, argument_of  # noqa: E402 - the line above finds it
from airflow_provider_raybatch.arguments import ArgumentGroup  # noqa: E402
from airflow_provider_raybatch.cli.verbs import (  # noqa: E402
    PROGRAM,
    TASK_OPTIONS,
    VERBS,
    Option,
    Verb,
)
from airflow_provider_raybatch.contract import failures, spec  # noqa: E402
from airflow_provider_raybatch.contract.arguments.prompt import name_of  # noqa: E402
from airflow_provider_raybatch.contract.arguments.steps import StepArguments  # noqa: E402
from airflow_provider_raybatch.contract.base import ContractModel  # noqa: E402
from airflow_provider_raybatch.contract.manifest import BatchManifest, RunResult  # noqa: E402
from airflow_provider_raybatch.contract.report import Report  # noqa: E402
from airflow_provider_raybatch.contract.together import RULES  # noqa: E402
from airflow_provider_raybatch.places.providers import ClusterDefinition  # noqa: E402

CLASSES = {
    "RayOperator": "operators.base",
    "RayBatchInferenceOperator": "operators.ray_batch",
    "RayJobOperator": "operators.ray_job",
    "RayJobSensor": "sensors.ray_job",
    "KubeRayCluster": "kubernetes.cluster",
    "CreateRayCluster": "kubernetes.operators",
    "Step": "steps",
    **{kind.__name__: "arguments" for kinds in GROUPS.values() for kind in kinds},
}
"""The classes whose arguments the reference lists, by the module that has them."""
RESULTS: tuple[type[ContractModel], ...] = (RunResult, BatchManifest, Report)
"""What a job leaves, on one page; the second and third have all fields of the first."""

REGION = re.compile(r"(<!-- generated: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
_PARAM = re.compile(r"^:param (\w+):", re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|data|mod):`~?(?:[\w.]*\.)?(\w+)`")
_PLAIN_TYPES: dict[Any, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
    timedelta: "timedelta",
    datetime: "datetime",
    PathLike: "path",
    tuple: "tuple",
    collections.abc.Mapping: "dict",
    collections.abc.Sequence: "list",
    collections.abc.Iterable: "list",
}


def pages() -> dict[Path, str]:
    """Every file that this program writes, with its content."""
    filled = [*sorted(REFERENCE.glob("*.md")), *DOCS.glob("kubernetes.md")]
    written = {path: _filled(path.read_text(encoding="utf-8")) for path in filled}
    return {
        **written,
        REFERENCE / "schemas/batch_inference_spec.json": _schema_file(spec.BatchInferenceSpec),
        REFERENCE / "schemas/batch_manifest.json": _schema_file(BatchManifest),
        REFERENCE / "schemas/report.json": _schema_file(Report),
    }


def _filled(page: str) -> str:
    return REGION.sub(lambda found: found[1] + _region(found[2]) + found[3], page)


def _region(name: str) -> str:
    """The content of a region.

    :param name: ``arguments CLASS``, ``arguments CLASS / GROUP``, ``fields of the spec``, ``fields of
        results``, ``failure classes``, ``rules`` or ``verbs``.
    """
    kind, _, rest = name.partition(" ")
    tables: dict[str, Callable[[str], str]] = {
        "arguments": _arguments,
        "fields": lambda of: _spec_fields() if of == "of the spec" else _result_fields(),
        "failure": lambda _: _failure_classes(),
        "rules": lambda _: _rules(),
        "verbs": lambda _: "\n".join([*(line for verb in VERBS for line in _verb(verb)), *_task_options()]),
    }
    return tables[kind](rest)


# Arguments of operators and sensors.


@dataclass(frozen=True)
class Argument:
    """One argument as its class documents it.

    :param group: the heading it stands under in the docstring, empty where there is none.
    :param templated: whether Airflow renders it.
    """

    name: str
    group: str
    type: str
    meaning: str
    templated: bool


def arguments(name: str) -> list[Argument]:
    """The documented arguments of one of :data:`CLASSES`, in the order of its docstring."""
    kind: Any = getattr(importlib.import_module(f"airflow_provider_raybatch.{CLASSES[name]}"), name)
    # Operators name these without importing them, so that DAGs are parsed sooner.
    hints = typing.get_type_hints(
        kind.__init__, localns={"ClusterDefinition": ClusterDefinition, "KubeRayCluster": ClusterDefinition}
    )
    known = set(inspect.signature(kind.__init__).parameters)
    templated = {
        field for one in (kind, *kind.__subclasses__()) for field in getattr(one, "template_fields", ())
    }
    found: list[Argument] = []
    group = ""
    for paragraph in re.split(r"\n\n+", inspect.getdoc(kind) or ""):
        _, parameters = _texts_of(paragraph)
        for argument, meaning in parameters.items():
            if argument not in known:
                raise ValueError(f"{name} documents {argument!r}, which is not an argument of it")
            kind_of_value = _type_of(hints[argument])
            found.append(Argument(argument, group, kind_of_value, meaning, argument in templated))
        if paragraph.endswith(":") and not parameters:
            group = re.split(r"[;:]", paragraph)[0]
    return found


def _arguments(wanted: str) -> str:
    name, _, group = wanted.partition(" / ")
    chosen = [one for one in arguments(name) if not group or one.group == group]
    if not chosen:
        raise ValueError(f"{name} has no arguments under {group!r}")
    rows = ["| argument | type | meaning |", "| --- | --- | --- |"]
    for one in chosen:
        mark = " *t*" if one.templated else ""
        rows.append(f"| `{one.name}`{mark} | {_cell(one.type)} | {_cell(_sentence(one.meaning))} |")
    return "\n".join(rows) + "\n"


def _type_of(hint: Any) -> str:
    """A type as the reference shows it, without ``None``, and without the text that a template leaves."""
    options = _options(hint)
    shown = list(dict.fromkeys(_one_type(option) for option in options if option is not type(None)))
    if {"boolean", "integer", "number"} & set(shown):
        shown = [one for one in shown if one != "text"]
    return " or ".join(shown)


def _options(hint: Any) -> tuple[Any, ...]:
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return typing.get_args(hint)
    return (hint,)


def _one_type(hint: Any) -> str:
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{value}`" for value in typing.get_args(hint))
    if inspect.isclass(hint) and issubclass(hint, ArgumentGroup):
        return f"`{hint.__name__}`"
    return _PLAIN_TYPES.get(typing.get_origin(hint) or hint, "any")


# What does not go together.


def _rules() -> str:
    rows = ["| argument | has no effect | because | remedy |", "| --- | --- | --- | --- |"]
    named: dict[tuple[str, str, str], dict[str, None]] = {}
    for rule in RULES:
        name = name_of(rule.argument)
        beside = f"{'without' if rule.needs else 'with'} {rule.other.name}".replace("'", "`")
        named.setdefault((beside, rule.why, rule.remedy), {})[f"`{name}`"] = None
    joined: dict[tuple[str, str, str], list[str]] = {}
    for (beside, why, remedy), names in named.items():
        joined.setdefault((", ".join(names), why, remedy), []).append(beside)
    for (shown, why, remedy), others in joined.items():
        rows.append(f"| {shown} | {', '.join(others)} | {_cell(why)} | {_cell(remedy)} |")
    return "\n".join(rows) + "\n"


# Failure classes.


def _failure_classes() -> str:
    rows = ["| class | means | retried |", "| --- | --- | --- |"]
    for one, meaning in _documented_members(failures.FailureClass):
        rows.append(f"| `{one.value}` | {_cell(meaning)} | {'yes' if one.retryable else 'no'} |")
    return "\n".join(rows) + "\n"


def _documented_members(kind: type[failures.FailureClass]) -> Iterator[tuple[failures.FailureClass, str]]:
    """Each member with the string that follows it in the source."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and isinstance(after, ast.Expr):
            assert isinstance(statement.targets[0], ast.Name)
            assert isinstance(after.value, ast.Constant)
            yield kind[statement.targets[0].id], _one_line(str(after.value.value))


# Verbs of the command line.


def _verb(verb: Verb) -> Iterator[str]:
    yield f"## {verb.name}\n\n{verb.description}\n\n```bash"
    yield from (f"{PROGRAM} {example}" for example in verb.examples)
    yield "```\n"
    yield from _options_table([one for one in verb.options if one not in TASK_OPTIONS])
    if set(TASK_OPTIONS) <= set(verb.options):
        yield "And [the options of a batch inference](#options-of-a-batch-inference).\n"


def _task_options() -> Iterator[str]:
    yield "## Options of a batch inference\n"
    yield "They name a task of a DAG file, the operator's arguments, or both; options override the task.\n"
    yield from _options_table(TASK_OPTIONS)


def _options_table(options: Iterable[Option]) -> Iterator[str]:
    yield "| option | meaning |\n| --- | --- |"
    for option in options:
        yield f"| `{_usage(option)}` | {_cell(_sentence(option.settings['help']))} |"
    yield ""


def _usage(option: Option) -> str:
    """The option as a user writes it."""
    settings = option.settings
    if settings.get("action") == "store_true":
        return ", ".join(option.flags)
    value = settings.get("metavar") or "{" + ",".join(settings.get("choices", ())) + "}"
    if settings.get("nargs") == "+":
        value += " ..."
    if option.flags[0].startswith("-"):
        return f"{', '.join(option.flags)} {value}"
    return f"[{value}]" if settings.get("nargs") == "?" else value


# Fields of spec, manifest and report.


def _schema_file(model: type[ContractModel]) -> str:
    return json.dumps(_schema(model), indent=2, ensure_ascii=False) + "\n"


def _schema(model: type[ContractModel]) -> dict[str, Any]:
    """Pydantic's schema, with the docstrings' texts where they belong."""
    schema = model.model_json_schema(by_alias=True)
    known = {kind.__name__: kind for kind in (model, *_models())}
    _describe(schema, known[model.__name__])
    for name, part in schema.get("$defs", {}).items():
        if name in known:
            _describe(part, known[name])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _models() -> Iterator[type[ContractModel]]:
    """Every model of the contract that is imported by now."""
    waiting = list(ContractModel.__subclasses__())
    while waiting:
        model = waiting.pop()
        yield model
        waiting += model.__subclasses__()


def _describe(schema: dict[str, Any], model: type[ContractModel]) -> None:
    schema["description"], _ = _texts_of(inspect.getdoc(model) or "")
    parameters = _texts_of_fields(model)
    for name, field in model.model_fields.items():
        shown = schema["properties"][field.alias or name]
        shown.pop("title", None)
        if text := parameters.get(name):
            shown["description"] = text


def _texts_of_fields(model: type[ContractModel]) -> dict[str, str]:
    """What each field means. The docstrings of the operator, its objects and `Step` document their own."""
    texts: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if issubclass(kind, ContractModel):
            texts |= _texts_of(inspect.cleandoc(kind.__doc__ or ""))[1]
    if model is StepArguments:
        texts |= {one.name: one.meaning for one in arguments("Step")}
    if model is spec.BatchInferenceSpec:
        groups = [kind.__name__ for kinds in GROUPS.values() for kind in kinds]
        for name in [*groups, "RayBatchInferenceOperator"]:
            for one in arguments(name):
                texts[one.name] = one.meaning.replace("seconds or `timedelta`", "seconds")
    return texts


def _spec_fields() -> str:
    """The spec's fields with their defaults. Names of arguments are links to where they are documented."""
    schema = _schema(spec.BatchInferenceSpec)
    headings = {one.name: one.group for one in arguments("RayBatchInferenceOperator")}
    fields = spec.BatchInferenceSpec.model_fields.keys() - spec.NOT_ARGUMENTS
    groups = {name: headings[argument_of(name)] for name in fields}
    groups_of_steps = {one.name: "Steps" for one in arguments("Step")}
    tables = {"BatchInferenceSpec": schema, **_inner(schema)}
    elsewhere = tables.keys() & _result_tables().keys()
    parts: list[str] = []
    for name in [one for one in tables if one not in elsewhere]:
        known = {"BatchInferenceSpec": groups, "StepArguments": groups_of_steps}.get(name, {})
        parts += [f"## {name}\n", tables[name]["description"] + "\n", _spec_table(tables[name], known)]
    page = "\n".join(parts)
    for name in elsewhere:
        page = page.replace(f"](#{name.lower()})", f"](manifest.md#{name.lower()})")
    return page


def _spec_table(schema: dict[str, Any], groups: Mapping[str, str]) -> str:
    rows = ["| field | type | default | meaning |", "| --- | --- | --- | --- |"]
    needed = schema.get("required", ())
    for name, field in schema["properties"].items():
        # Pydantic doesn't tell a default that a function makes; here all of them are empty.
        absent: object = [] if field.get("type") == "array" else {}
        default = "needed" if name in needed else f"`{json.dumps(field.get('default', absent))}`"
        shown, meaning = f"`{name}`", _cell(field.get("description", ""))
        if group := groups.get(name):
            shown, meaning = f"[{shown}](operators.md#{group.lower().replace(' ', '-')})", ""
        rows.append(f"| {shown} | {_type(field)} | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _result_fields() -> str:
    """The fields of manifest and report, those of both once. A job writes them, so defaults are left out."""
    parts: list[str] = []
    for name, schema in _result_tables().items():
        parts += [f"## {name}\n", schema["description"] + "\n"]
        parts += ["| field | type | meaning |", "| --- | --- | --- |"]
        for field, one in schema["properties"].items():
            parts.append(f"| `{field}` | {_type(one, bounds=False)} | {_cell(one.get('description', ''))} |")
        parts.append("")
    return "\n".join(parts)


def _result_tables() -> dict[str, dict[str, Any]]:
    """The schemas of :data:`RESULTS` and of what is in them; a field of the first is there alone."""
    schemas = {model.__name__: _schema(model) for model in RESULTS}
    shared, *others = schemas.values()
    for one in others:
        one["properties"] = {
            name: field for name, field in one["properties"].items() if name not in shared["properties"]
        }
    inner = {name: part for schema in schemas.values() for name, part in _inner(schema).items()}
    return {**schemas, **dict(sorted(inner.items()))}


def _inner(schema: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: part for name, part in schema.get("$defs", {}).items() if "properties" in part}


def _type(field: dict[str, Any], *, bounds: bool = True) -> str:
    def inner(one: dict[str, Any]) -> str:
        return _type(one, bounds=bounds)

    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        page = "failures.md" if name == failures.FailureClass.__name__ else f"#{name.lower()}"
        return f"[{name}]({page})"
    if "const" in field:
        return f"`{json.dumps(field['const'])}`"
    if "enum" in field:
        return " or ".join(f"`{json.dumps(value)}`" for value in field["enum"])
    options = field.get("anyOf") or field.get("oneOf")
    if options:
        return " or ".join(map(inner, options))
    match field.get("type"):
        case "array" if "prefixItems" in field:
            return f"[{', '.join(map(inner, field['prefixItems']))}]"
        case "array":
            return f"list of {inner(field['items'])}"
        case "object":
            values = field.get("additionalProperties")
            return f"object of {inner(values)}" if isinstance(values, dict) else "object"
        case kind:
            return str(kind or "any") + (_bounds(field) if bounds else "")


def _bounds(field: dict[str, Any]) -> str:
    signs = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
    found = [f"{sign} {field[name]:g}" for name, sign in signs.items() if name in field]
    return f" ({', '.join(found)})" if found else ""


# Texts.


def _texts_of(docstring: str) -> tuple[str, dict[str, str]]:
    """Summary and parameters of a docstring, each on one line."""
    summary, *pairs = _PARAM.split(
        re.sub(r"^:(?:raises|return).*", "", docstring, flags=re.DOTALL | re.MULTILINE)
    )
    return _one_line(summary), {
        name: _one_line(text) for name, text in zip(pairs[::2], pairs[1::2], strict=True)
    }


def _one_line(text: str) -> str:
    plain = _ROLE.sub(r"`\1`", text).replace("``", "`").replace("`None`", "`null`")
    return " ".join(plain.split())


def _sentence(text: str) -> str:
    python = text.replace("`null`", "`None`")
    return python if python.startswith("vLLM") else python[:1].upper() + python[1:]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main() -> None:
    """Write the pages."""
    for path, content in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    main()
