# SPDX-License-Identifier: Apache-2.0
"""Jinja where there is Jinja, and nowhere else: text without an expression is taken as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context


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
        return super().render_template(content, context, jinja_env, seen_oids)


def _has_expression(text: str, env: jinja2.Environment) -> bool:
    if env.line_statement_prefix is not None or env.line_comment_prefix is not None:
        return True
    starts = (env.variable_start_string, env.block_start_string, env.comment_start_string)
    return any(start in text for start in starts)
