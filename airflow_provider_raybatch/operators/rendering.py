# SPDX-License-Identifier: Apache-2.0
"""Jinja where there is Jinja, and nowhere else: text without an expression is taken as it is."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from airflow_provider_raybatch.contract.failures import FailureClass
from airflow_provider_raybatch.exceptions import RayBatchFailException

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

_OF_LOGICAL_DATE = re.compile(r"'(ds|ds_nodash|ts|ts_nodash|ts_nodash_with_tz|logical_date)' is undefined")


class LiteralTextOperator(BaseOperator):
    """Keeps text without a Jinja expression away from Jinja.

    A choice of ten thousand categories or a large JSON schema then costs nothing, and text keeps its last
    line feed and its type. Where literal text looks like an expression, wrap it in ``airflow.sdk.literal``.
    """

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

        try:
            return super().render_template(content, context, jinja_env, seen_oids)
        except Exception as error:
            field = next(
                (name for name in self.template_fields if getattr(self, name, None) is content), None
            )
            if field is None:
                raise  # a part of a field's value: the call for the whole of it comes by here, too
            failure = error
            if isinstance(error, TemplateError):
                failure = RayBatchFailException(f"{field}: {_sentence(error)}", FailureClass.USER_ERROR)
            self.before_failing(failure, context)
            if failure is error:
                raise
            raise failure from error

    def before_failing(self, error: BaseException, context: Context) -> None:
        """Called with what ends an attempt before it has begun."""


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
