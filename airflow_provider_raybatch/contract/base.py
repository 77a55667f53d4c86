# SPDX-License-Identifier: Apache-2.0
"""The base of every contract model, types of its fields, and pydantic's errors turned into one sentence.

The types are durations, names of columns and import paths; a refusal of theirs is a ``ValueError``: one
sentence, without the field's name.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, ValidationError

from airflow_provider_raybatch.contract.failures import SpecError
from airflow_provider_raybatch.contract.text import clean, cut_to, nearest, shown_uri, without_queries

Model = TypeVar("Model", bound="ContractModel")

_LONGEST_VALUE = 120
_MUST_BE = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "dict_type": "a dictionary",
    "mapping_type": "a dictionary",
    "list_type": "a list",
    "tuple_type": "a list",
    "greater_than_equal": "at least {ge:.15g}",
    "greater_than": "more than {gt:.15g}",
    "less_than_equal": "at most {le:.15g}",
    "less_than": "less than {lt:.15g}",
    "literal_error": "{expected}",
}
"""By pydantic's type of error, https://docs.pydantic.dev/latest/errors/validation_errors/."""
_CHOICE = re.compile(r"'([^']+)'")


class ContractModel(BaseModel):
    """Frozen and strict about unknown fields, so that a misspelt argument is never silently ignored.

    Pydantic's own errors show no input, since some models hold secrets; :func:`parse` shows it where it may.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), hide_input_in_errors=True)


class SpecPart(ContractModel, defer_build=True):
    """Some arguments of a spec. Pydantic builds no validator for it: that of the whole spec has them all."""


def cleaned(longest: int | None = None) -> BeforeValidator:
    """Of a field with text from elsewhere: it is made fit for a log and a terminal, and cut to `longest`."""

    def clean_text(value: object) -> object:
        # Before the check of types, which refuses lone surrogates.
        text = clean(value) if isinstance(value, str) else value
        return text if longest is None or not isinstance(text, str) else cut_to(text, longest)

    return BeforeValidator(clean_text)


def parse(model: type[Model], data: Any) -> Model:
    """Validate `data`: plain Python data (``dict``) or a JSON document (``str``, ``bytes``).

    :raises SpecError: one sentence, which names the field, the value and the remedy.
    """
    try:
        if isinstance(data, (str, bytes)):
            return model.model_validate_json(data)
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(sentence(error)) from None


def parse_file(model: type[Model], content: bytes, file: str, what: str, remedy: str) -> Model:
    """Validate a document that was read from storage: it may be broken, foreign or of another version.

    :param file: where it lies.
    :param what: it should be, such as ``a manifest``.
    :param remedy: what the user can do.
    :raises SpecError: names the file, and the field that is wrong in it.
    """
    try:
        return parse(model, content)
    except SpecError as error:
        raise SpecError(f"{file}: it is not {what} that this version writes ({error}); {remedy}.") from None


def sentence(error: ValidationError) -> str:
    """The first of pydantic's errors as one sentence, with the number of the others."""
    errors = error.errors(include_url=False)
    first = errors[0]
    location = [str(part) for part in first["loc"]]
    field = ".".join(location) or error.title
    kind, message = first["type"], first["msg"]
    if kind == "extra_forbidden":
        text = f"{field}: there is no such field; remove it or correct its spelling"
    elif kind == "missing":
        text = f"{field}: a value is needed here; none was given"
    elif kind == "value_error":
        text = f"{field}: {first['ctx']['error']!s}" if field != error.title else str(first["ctx"]["error"])
    else:
        context, value = first.get("ctx", {}), first["input"]
        meant = _likeliest(kind, context, value)
        hint = f"; did you mean {meant!r}?" if meant else ""
        text = f"{field}: {requirement(kind, message, context)}, but it is {shown(value)}{hint}"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return text + more + ("" if text.endswith("?") and not more else ".")


def shown(value: object) -> str:
    """`value` as it is shown in a message: ``repr``, cut to a bearable length."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a {type(value).__name__} of great depth"
    text = without_queries(text)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def requirement(kind: str, message: str, context: Mapping[str, Any]) -> str:
    """What the value must be, such as ``it must be at least 1``; of pydantic's type, message and context."""
    if kind in _MUST_BE:
        return f"it must be {_MUST_BE[kind].format(**context)}"
    return f"{message[0].lower()}{message[1:]}"


def _likeliest(kind: str, context: Mapping[str, Any], value: object) -> str | None:
    """Of several allowed texts, the one that `value` misspells."""
    if kind != "literal_error" or not isinstance(value, str):
        return None
    return nearest(value, _CHOICE.findall(str(context["expected"])))


def refuse_boolean(model: type[BaseModel], field: str, value: Any) -> Any:
    """The value of a field as it was given.

    :raises ValueError: it is a boolean, and the field takes numbers alone.
    """
    if isinstance(value, bool) and field in _numbers(model):
        raise ValueError(f"it must be a number, but it is {shown(value)}")
    return value


@cache
def _numbers(model: type[BaseModel]) -> frozenset[str]:
    """Fields that take an ``int`` or a ``float``, and no ``bool``."""
    types = {name: frozenset(_types(field.annotation)) for name, field in model.model_fields.items()}
    return frozenset(name for name, of in types.items() if of & {int, float} and not of & {bool, Any})


def _types(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, such as those of a union."""
    inner = get_args(annotation)
    if not inner:
        yield annotation
    for one in inner:
        yield from _types(one)


def in_words(seconds: float) -> str:
    """A duration for people: ``5 s``, ``3 min 5 s``, ``2 h 10 min``."""
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def seconds_of(value: Any) -> float:
    """A duration in seconds, of a ``timedelta``, a finite number or the text of one."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        with suppress(ValueError, OverflowError):
            seconds = float(value)
            if math.isfinite(seconds):
                return seconds
    raise ValueError(f"{shown(value)} is not a duration; give seconds or a timedelta")


Seconds = Annotated[float, BeforeValidator(seconds_of)]
"""A field that holds a duration in seconds."""


_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def check_characters(name: str) -> None:
    """Refuse white space at an end, and characters that can't be seen."""
    if name != name.strip():
        raise ValueError(
            f"{shown_uri(name)!r} begins or ends with white space; write {shown_uri(name.strip())!r}"
        )
    if found := _CONTROL.search(name):
        raise ValueError(f"{shown_uri(name)!r} has the control character {found.group()!r}; remove it")


def ascii_name(name: str) -> str:
    """`name` where only ASCII is taken: ``tägliche`` becomes ``tagliche``, and ``日`` becomes ``u65e5``."""
    plain = "".join(c for c in unicodedata.normalize("NFKD", name) if not unicodedata.combining(c))
    return "".join(c if c.isascii() else f"u{ord(c):04x}" for c in plain)


def checked_column_name(name: str) -> str:
    """A column's name, unless readers of the dataset can't write it, or can't tell it from another."""
    if not name.strip():
        raise ValueError("a column's name is empty; give it at least one letter")
    check_characters(name)
    return name


def is_import_path(value: object) -> bool:
    """Whether `value` is written as ``package.module:name``."""
    return isinstance(value, str) and _IMPORT_PATH.fullmatch(value) is not None


def _checked_import_path(value: str) -> str:
    if not is_import_path(value):
        raise ValueError(f"{value!r} is not an import path; write it as 'package.module:function'")
    return value


ColumnName = Annotated[str, AfterValidator(checked_column_name)]
"""A field that holds the name of a column."""

ImportPath = Annotated[str, AfterValidator(_checked_import_path)]
"""A field that names a user's function: ``package.module:function``."""
