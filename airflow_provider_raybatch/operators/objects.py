# SPDX-License-Identifier: Apache-2.0
"""Objects among an operator's arguments: their defaults, and how Airflow renders what they hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_raybatch.argument_fields import GROUPS, over_default
from airflow_provider_raybatch.coercion import from_text
from airflow_provider_raybatch.operators.rendering import LiteralTextOperator

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

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
