# SPDX-License-Identifier: Apache-2.0
"""``@task.ray_batch``: a function on the Airflow worker returns the arguments of a batch inference."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import NEVER_EXPIRE  # type: ignore[attr-defined] # exported, but missing in the stub file
from airflow.sdk.bases.decorator import (
    DecoratedOperator,
    TaskDecorator,
    determine_kwargs,
    task_decorator_factory,
)
from airflow.sdk.definitions._internal.types import SET_DURING_EXECUTION
from airflow.sdk.definitions.context import context_merge
from airflow.sdk.log import redact  # type: ignore[attr-defined]

from airflow_provider_raybatch.argument_fields import GROUPS, check_names, over_default
from airflow_provider_raybatch.coercion import listed
from airflow_provider_raybatch.contract.base import shown
from airflow_provider_raybatch.contract.failures import FailureClass, SpecError
from airflow_provider_raybatch.exceptions import RayBatchFailException
from airflow_provider_raybatch.operators.arguments import ARGUMENTS
from airflow_provider_raybatch.operators.ray_batch import RayBatchInferenceOperator
from airflow_provider_raybatch.operators.rendering import only_set

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_provider_raybatch.operators.run_record import Store

_KEY = "raybatch_returned"
_LONGEST = 4096
"""Characters of one argument; Airflow shows no more of a rendered field either, by default."""


def keep(store: Store, returned: Mapping[str, Any]) -> None:
    """Store the arguments as plain data, without what Airflow masks in rendered fields."""
    plain = {name: _bounded(redact(_plain(value), name), name) for name, value in returned.items()}
    store.set(_KEY, plain, retention=NEVER_EXPIRE)


def kept(store: Store) -> dict[str, Any]:
    """The arguments that the attempt's function returned before it was deferred."""
    found = store.get(_KEY)
    return found if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=_as_plain))


def _as_plain(value: Any) -> Any:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def _bounded(value: Any, name: str = "") -> Any:
    if name in GROUPS and isinstance(value, dict):
        return {key: _bounded(one) for key, one in value.items()}
    text = value if isinstance(value, str) else json.dumps(value)
    return value if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_RETURNABLE = (*ARGUMENTS, "runtime_env", "aws_conn_id", "hf_conn_id")


class RayBatchDecoratedOperator(DecoratedOperator, RayBatchInferenceOperator):
    """The operator behind ``@task.ray_batch``."""

    template_fields: Sequence[str] = only_set((
        *DecoratedOperator.template_fields,
        *RayBatchInferenceOperator.template_fields,
    ))
    template_fields_renderers: ClassVar[dict[str, str]] = only_set({
        **DecoratedOperator.template_fields_renderers,
        **RayBatchInferenceOperator.template_fields_renderers,
    })
    custom_operator_name: str = "@task.ray_batch"
    overwrite_rtif_after_execution: bool = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        for name in ("source", "destination"):
            kwargs.setdefault(name, SET_DURING_EXECUTION)
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def check_known(self, unknown: Collection[str]) -> None:
        """Check what the decorator was given; the function may return the rest."""
        absent = {name for name in ("source", "destination") if getattr(self, name) is SET_DURING_EXECUTION}
        super().check_known({*unknown, *absent})

    def execute(self, context: Context) -> Any:
        """Call the function, take its arguments, and go on as the operator does."""
        with self._leaving_no_job(context):
            returned = self.take_arguments(context)
        if self.deferrable:
            self._keep(context, returned)
        return RayBatchInferenceOperator.execute(self, context)

    def take_arguments(self, context: Context) -> Mapping[str, Any]:
        """Call the function, and take what it returns as the task's arguments.

        :raises RayBatchFailException: it returned something else.
        """
        context_merge(context, self.op_kwargs)
        kwargs = determine_kwargs(self.python_callable, self.op_args, context)
        returned: Mapping[str, Any] = self.python_callable(*self.op_args, **kwargs)
        self._take(returned)
        return returned

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """As the operator's, with the arguments that the function returned before the task was deferred."""
        try:
            for argument, value in kept(context["task_state_store"]).items():
                if argument in _RETURNABLE:  # users write the store by REST
                    setattr(self, argument, value)
        except Exception as error:
            self.log.warning("Rendered fields lack what the function returned: %s", error)
        return super().resume_execution(next_method, next_kwargs, context)

    def _keep(self, context: Context, returned: Mapping[str, Any]) -> None:
        try:
            keep(context["task_state_store"], returned)
        except Exception as error:
            self.log.warning("After the deferral, rendered fields lack what the function returned: %s", error)

    def _take(self, returned: object) -> None:
        name = self.python_callable.__name__
        if not isinstance(returned, Mapping):
            raise RayBatchFailException(
                f"{name}: it returned {shown(returned)}; a @task.ray_batch function returns a dictionary of "
                "arguments.",
                FailureClass.USER_ERROR,
            )
        try:
            check_names(returned, _RETURNABLE)
        except SpecError as error:
            raise RayBatchFailException(
                f"{name}: it returned an argument that can't be used. {error}"
            ) from error
        # Values are final: what the function returns is not a template.
        for argument, value in returned.items():
            own = getattr(self, argument) if argument in GROUPS else None
            setattr(self, argument, listed(value) if own is None else over_default(argument, own, value))
        for argument in ("source", "destination"):
            if getattr(self, argument) is SET_DURING_EXECUTION:
                setattr(self, argument, None)


def ray_batch_task(
    python_callable: Callable[..., Any] | None = None, multiple_outputs: bool = False, **kwargs: Any
) -> TaskDecorator:
    """Make a batch inference of a function that returns the operator's arguments as a dictionary.

    The function runs on the Airflow worker, once per attempt, and must return the same each time; otherwise
    `on_stale_state` decides about the job of an earlier attempt. It may return the arguments from `source` to
    `runtime_env`, which win over those of the decorator, objects name by name. How the job is followed
    (`deferrable`, `timeout`, `deadline`, `ray_conn_id`, ...) is set in the decorator.

    :param python_callable: the function.
    :param multiple_outputs: push each item of the result as an XCom of its own, too.
    :param kwargs: arguments of ``RayBatchInferenceOperator``.
    """
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=multiple_outputs,
        decorated_operator_class=RayBatchDecoratedOperator,
        **kwargs,
    )
