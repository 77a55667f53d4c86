# SPDX-License-Identifier: Apache-2.0
"""Template fields: a task renders those that are set, and only text with an expression goes through Jinja.

Objects among an operator's arguments have defaults, and what they hold is rendered, too.
"""

from __future__ import annotations

import copy
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator, ObjectStoragePath, literal

from airflow_provider_raybatch.argument_fields import GROUPS, over_default
from airflow_provider_raybatch.coercion import from_text
from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.places.providers import ClusterDefinition

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

_OF_LOGICAL_DATE = re.compile(r"'(ds|ds_nodash|ts|ts_nodash|ts_nodash_with_tz|logical_date)' is undefined")
_STARTS = ("{{", "{%", "{#")
_NUMBERS = (bool, int, float)
_PLAIN = (str, bytes, int, float, type(None), os.PathLike)
_LITERAL = type(literal(""))


class LiteralTextOperator(BaseOperator):
    """Keeps text without a Jinja expression away from Jinja.

    So ten thousand categories or a large JSON schema cost nothing, and text keeps its last line feed.
    """

    text_fields: ClassVar[frozenset[str]] = frozenset()
    """Template fields that stay text where a DAG renders native objects, such as ``"3.10"``."""
    as_text: frozenset[str] = frozenset()
    """The same, of those that are being rendered."""

    def depends_on_run(self, value: Any) -> bool:
        """Whether Airflow changes an argument, or a part of it, when the task runs."""
        if value.__class__ in _NUMBERS:
            return False
        own_jinja = self.dag.jinja_environment_kwargs if self._dag is not None else None
        # With delimiters of the DAG's own, any text may be an expression.
        starts = ("",) if own_jinja else _STARTS
        try:
            return callable(value) or _changes(value, starts, tuple(self.template_ext))
        except RecursionError:
            return True

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        fields = list(template_fields)
        if self._should_render_native(self.get_dag()):
            # Messages of a chat and of steps are texts, too, unless one template makes the whole list.
            inside = {
                name for name in ("messages", "steps") if isinstance(getattr(self, name, None), (list, tuple))
            }
            of_text = getattr(parent, "text_fields", frozenset()) | self.as_text
            of_text |= inside if parent is self else set()
            texts = [name for name in fields if name in of_text]
            fields = [name for name in fields if name not in texts]
            native, self.render_template_as_native_obj = self.render_template_as_native_obj, False
            try:
                env = self.get_template_env()
                super()._do_render_template_fields(parent, texts, context, env, seen_oids)
            finally:
                self.render_template_as_native_obj = native
        super()._do_render_template_fields(parent, fields, context, jinja_env, seen_oids)

    def render_template(
        self,
        content: Any,
        context: Context,
        jinja_env: jinja2.Environment | None = None,
        seen_oids: set[int] | None = None,
    ) -> Any:
        """As Airflow's, which calls it for every text in a template field."""
        if isinstance(content, str):
            env = jinja_env or self.get_template_env()
            if not content.endswith(tuple(self.template_ext)) and not _has_expression(content, env):
                return content
            jinja_env = env
        from jinja2 import TemplateError

        # Airflow writes what it renders into the object itself, which several tasks may share.
        own = copy.copy(content) if isinstance(content, ClusterDefinition) else content
        try:
            return super().render_template(own, context, jinja_env, seen_oids)
        except Exception as error:
            field = next(
                (name for name in self.template_fields if getattr(self, name, None) is content), None
            )
            if field is None:
                raise  # content is only a part of a field, and the call for the whole field comes here, too
            failure = error
            if isinstance(error, TemplateError):
                failure = RayBatchFailException(f"{field}: {_sentence(error)}", FailureClass.USER_ERROR)
            self.before_failing(failure, context)
            if failure is error:
                raise
            raise failure from error

    def _set_xcomargs_dependencies(self) -> None:
        """As Airflow's, which does not look into objects with templates of their own."""
        super()._set_xcomargs_dependencies()
        cluster = getattr(self, "ray_cluster", None)
        if isinstance(cluster, ClusterDefinition):
            self._set_xcomargs_dependency("ray_cluster", cluster)

    def _set_xcomargs_dependency(self, field: str, newvalue: Any) -> None:
        inner = vars(newvalue) if isinstance(newvalue, ClusterDefinition) else newvalue
        super()._set_xcomargs_dependency(field, inner)

    def before_failing(self, error: BaseException, context: Context) -> None:
        """Called with the error that ends an attempt while its templates are rendered."""


def _changes(value: Any, starts: tuple[str, ...], extensions: tuple[str, ...]) -> bool:
    if isinstance(value, ObjectStoragePath):
        value = str(value)
    if isinstance(value, str):
        for start in starts:  # not any() of them, which costs twice the time for each argument of a DAG
            if start in value:
                return True
        return bool(extensions) and value.endswith(extensions)
    if isinstance(value, _PLAIN):
        return False
    if isinstance(value, (Mapping, list, tuple, set, frozenset)):
        inner = value.values() if isinstance(value, Mapping) else value
        return any(_changes(one, starts, extensions) for one in inner)
    # A literal counts, too, and an object with templates of its own.
    return hasattr(value, "resolve") or hasattr(value, "template_fields")


def is_reference(value: Any) -> bool:
    """Whether it is an XComArg, a MappedArgument or a DagParam, which only template fields may have."""
    return hasattr(value, "resolve") and not isinstance(value, (*_PLAIN, ObjectStoragePath, _LITERAL))


def _sentence(error: jinja2.TemplateError) -> str:
    message = (error.message or "").rstrip(".")
    if message == "'row' is undefined":
        return (
            "a column stands in double braces, which Airflow fills in before the job; write single braces, "
            "as in {row.name}."
        )
    if (found := _OF_LOGICAL_DATE.fullmatch(message)) is not None:
        return (
            f"{{{{ {found.group(1)} }}}} is undefined, since this run has no logical date; use "
            "{{ dag_run.run_after | ts_nodash }}, which each run has."
        )
    return (
        f"Jinja can't render it ({message}); correct the expression, or wrap text that is none in "
        "airflow.sdk.literal."
    )


def _has_expression(text: str, env: jinja2.Environment) -> bool:
    if env.line_statement_prefix is not None or env.line_comment_prefix is not None:
        return True
    starts = (env.variable_start_string, env.block_start_string, env.comment_start_string)
    return any(start in text for start in starts)


def only_set(fields: Sequence[str] | Mapping[str, str]) -> Any:
    """A class attribute with the names of template fields, or with a value for each name.

    Airflow writes the attribute, and each field that it names, into the serialised DAG for every task. So a
    task leaves out fields that have their defaults. Mapped tasks and subclasses read the class.
    """
    return _OnlySet(fields)


class _OnlySet:
    def __init__(self, fields: Sequence[str] | Mapping[str, str]) -> None:
        self._fields = fields

    def __set_name__(self, operator: type, _: str) -> None:
        self._operator = operator

    def __get__(self, task: Any, owner: type | None = None) -> Any:
        if task is None:
            return self._fields
        given = vars(task).get
        names = [
            name
            for name, default in self._defaults
            if (value := given(name)) is not default and _differs(value, default)
        ]
        if isinstance(self._fields, Mapping):
            return {name: self._fields[name] for name in names}
        return tuple(names)

    @cached_property
    def _defaults(self) -> list[tuple[str, Any]]:
        """Each field with the default of its argument, without a subclass's own, which may be a template."""
        defaults = {
            name: parameter.default
            for each in reversed(self._operator.__mro__)
            if "__init__" in vars(each)
            for name, parameter in inspect.signature(vars(each)["__init__"]).parameters.items()
        }
        return [(name, defaults.get(name)) for name in self._fields]


def _differs(value: Any, default: Any) -> bool:
    # An XCom or an array has comparisons of its own.
    return value.__class__ is not default.__class__ or bool(value != default)


_TEXTS = frozenset({
    "adapter", "adapter_column", "currency", "document", "documents_column", "postprocess", "query",
    "response_column", "sampling_column", "served_model_name", "tool_call_parser",
})  # fmt: skip
"""What is text whatever it looks like."""


class ObjectsOperator(LiteralTextOperator):
    """Renders the templates in objects."""

    _given: dict[str, Any]
    """The task's own part of each object."""

    def over_default(self, default_args: Mapping[str, Any] | None, name: str, value: Any) -> Any:
        """The object of an argument over that of `default_args`."""
        self._given = {**getattr(self, "_given", {}), name: value}
        return over_default(name, (default_args or {}).get(name), value)

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        fields = list(template_fields)
        for name in [*fields] if parent is self else ():
            value = getattr(self, name, None)
            if name in GROUPS and isinstance(value, Mapping) and id(value) not in seen_oids:
                fields.remove(name)
                self._render_object(name, value, context, jinja_env, seen_oids)
        super()._do_render_template_fields(parent, fields, context, jinja_env, seen_oids)

    def _render_object(
        self,
        name: str,
        value: Mapping[str, Any],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        # Values of a mapped task's XCom must not be rendered, and a chat template is the model's own Jinja.
        own = self._given.get(name)
        final = {"chat_template"} if isinstance(value.get("chat_template"), str) else set()
        if id(own) in seen_oids:
            known = from_text(own)
            final |= known.keys() if isinstance(known, Mapping) else {name}
        rendered = {key: value[key] for key in final}
        try:
            for as_text in (False, True):
                part = {key: one for key, one in value.items() if key not in final}
                part = {key: one for key, one in part.items() if (key in _TEXTS) is as_text}
                setattr(self, name, part)
                self.as_text = frozenset({name} if as_text else ())
                # A copy of the ids, since that of `part` may be another object's afterwards.
                super()._do_render_template_fields(self, [name], context, jinja_env, {*seen_oids})
                rendered |= getattr(self, name)
        except Exception:
            setattr(self, name, value)
            raise
        setattr(self, name, {key: rendered[key] for key in value})


def each_value(operator: Any, name: str, render: Callable[[str], None]) -> dict[str, Exception]:
    """Render an argument, value by value if it is an object.

    :param render: renders an argument of the operator.
    :returns: why values could not be rendered, by their names; they stay as they are.
    """
    whole = getattr(operator, name)
    is_object = name in GROUPS and isinstance(whole, Mapping)
    failures: dict[str, Exception] = {}
    done: dict[str, Any] = {}
    for key, value in whole.items() if is_object else ((name, whole),):
        try:
            setattr(operator, name, {key: value} if is_object else value)
            render(name)
            done |= getattr(operator, name) if is_object else {}
        except Exception as error:
            failures[key] = error
            done[key] = value
    if is_object:
        setattr(operator, name, done)
    return failures
