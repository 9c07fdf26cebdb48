# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The recipes of jobs with several runs: a study, and ``cfl-flare run`` with more than one method in the simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvflare.job_config.base_fed_job import BaseFedJob
from torch import nn

from cfl_flare.core.config import as_spec, marked, require
from cfl_flare.core.settings import pick, settings_of, shows
from cfl_flare.data import DataSource
from cfl_flare.engine.indicator import samples_to_set_aside
from cfl_flare.engine.plan import CONCERNS, RunPlan
from cfl_flare.engine.study.candidates import (
    StudySettings,
    check_candidates,
    every_candidate,
    first_candidates,
    study_plan,
)
from cfl_flare.flare.job.environment import place_model
from cfl_flare.flare.job.recipe import ClusteredRecipe
from cfl_flare.flare.several import SeveralController, SeveralExecutor
from cfl_flare.flare.study.controller import StudyController
from cfl_flare.flare.study.executor import StudyExecutor
from cfl_flare.methods import Method, build_method, describe_method
from cfl_flare.training.settings import TrainSettings

NAME = "several"
OF_SCRIPTS = ("script", "assign")
OF_STUDY = (
    StudySettings,
    *(kind for place, kind in CONCERNS.items() if place not in OF_SCRIPTS),
)
# Settings of one run that candidates do not share, or that would give away what a study keeps back.
NOT_IN_STUDY = (
    *("private", "initial_ckpt", "exclude_vars", "site_sums"),
    *(
        "stop_cond",
        "patience",
        "cross_site_evaluation",
        "keep_features",
        "unseen",
        "train_groups",
        "measured_on",
    ),
    *settings_of(*(CONCERNS[place] for place in OF_SCRIPTS)),
)


class _RunsRecipe(ClusteredRecipe):
    """A job whose controller and executors have several runs."""

    _controller_class: type[SeveralController]

    def _of_server(self, job: BaseFedJob) -> dict[str, Any]:
        """The arguments that only this kind of controller has."""
        raise NotImplementedError

    def _add_server(
        self, job: BaseFedJob, shared: Mapping[str, Any]
    ) -> SeveralController:
        controller = self._controller_class(
            model=shared["model"],
            run_name=shared["run_name"],
            facts=self._describe_data(shared),
            made_by=shared["made_by"],
            **self._of_server(job),
            **asdict(self.plan.server),
            **asdict(self.plan.controller),
        )
        job.to_server(controller)
        return controller


class SeveralRecipe(_RunsRecipe):
    """A job that runs several methods one after the other at the sites of one start. Kits of real sites refuse it."""

    _controller_class, _executor = SeveralController, SeveralExecutor
    plans: dict[str, RunPlan]

    @classmethod
    def of_plans(cls, plans: Mapping[str, RunPlan]) -> SeveralRecipe:
        """The recipe of runs that have passed their preflight, by name; they differ in the method alone."""
        recipe = cls.__new__(cls)
        recipe.plans = dict(plans)
        plan = next(iter(plans.values()))
        recipe._assemble(replace(plan, job=replace(plan.job, name=NAME)))
        return recipe

    def _of_runs(self) -> dict[str, Any]:
        runs = [
            {
                "name": name,
                "method": describe_method(plan.method),
                "private": plan.job.private,
            }
            for name, plan in self.plans.items()
        ]
        return {"runs": marked(runs)}

    def _of_server(self, job: BaseFedJob) -> dict[str, Any]:
        return {
            **self._of_runs(),
            "initial_ckpt": place_model(self.plan, job, Path(self._carried.name)),
        }

    @property
    def _methods(self) -> list[Method]:
        return [plan.method for plan in self.plans.values()]

    @property
    def class_paths(self) -> list[str]:
        ours = [
            f"{cls.__module__}.{cls.__qualname__}"
            for cls in (SeveralController, SeveralExecutor)
        ]
        return [*super().class_paths, *ours]


class StudyRecipe(_RunsRecipe):
    """A federated job that finds out whether to cluster, into how many groups, and which hospitals gain.

    It trains each hospital alone, one model for all, and clusters, with private layers and without, one after the
    other. It drops what is clearly worse on validation samples, and measures test samples once. Sites need the same as
    for `ClusteredRecipe`. The recipe takes that one's settings without those of a single run: ``private``,
    ``patience``, ``stop_cond``, ``initial_ckpt``, a training script's and the like. A wrong setting raises a
    ConfigError.

    Args:
        model: the untrained module, or ``{"class_path": "package.Class", "args": {...}}``.
        data: what a site reads: a DataSource, or its ``{"class_path", "args"}``.
        training: TrainSettings or a dictionary of them; ``bootstrap`` is a number of draws.
        more: the user's own candidates: methods, their dictionaries, or ``"ifca:k=3"``.
    """

    _controller_class, _executor = StudyController, StudyExecutor

    @shows(*OF_STUDY)
    def __init__(
        self,
        *,
        model: nn.Module | Mapping[str, Any],
        data: DataSource | Mapping[str, Any],
        training: TrainSettings | Mapping[str, Any] | None = None,
        more: Sequence[Method | Mapping[str, Any] | str] = (),
        **settings: Any,
    ):
        unused = [name for name in NOT_IN_STUDY if name in settings]
        require(
            not unused,
            f"study: {', '.join(unused)} cannot be set for the candidates of a study; leave it out",
        )
        self.more = [
            m if isinstance(m, Method) else build_method(as_spec(m, "method"))
            for m in more
        ]
        self.study = pick(StudySettings, settings, "study")
        of_runs = {
            name: value
            for name, value in settings.items()
            if name not in settings_of(StudySettings)
        }
        if of_runs.get("participants") is not None:
            of_runs.setdefault("indicator_samples", samples_to_set_aside(self.more))
        of_runs.setdefault("name", "study")
        plan = study_plan(
            RunPlan.of(
                method="fedavg", model=model, data=data, training=training, **of_runs
            )
        )
        module = plan.make_model()
        every_candidate(
            module, plan.server.num_rounds, self.more
        )  # the server may name any of them
        task = (plan.training or TrainSettings()).built_task()
        check_candidates(plan, first_candidates(module, self.more, task))
        self._assemble(plan)

    def _of_runs(self) -> dict[str, Any]:
        more = marked([describe_method(method) for method in self.more])
        return {"more": more, "num_rounds": self.plan.server.num_rounds}

    def _of_server(self, job: BaseFedJob) -> dict[str, Any]:
        of_study = {
            "study": marked(asdict(self.study)),
            "resume_from": self.plan.job.resume_from,
        }
        return {"more": self._of_runs()["more"], **of_study}

    @property
    def _methods(self) -> list[Method]:
        return [self.plan.method, *self.more]


# For help(), as the signature: each setting with its line.
StudyRecipe.__doc__ = (StudyRecipe.__doc__ or "").rstrip() + "".join(
    f"\n        {known.name}: {known.help}."
    for known in settings_of(*OF_STUDY).values()
    if known.name not in NOT_IN_STUDY
)
