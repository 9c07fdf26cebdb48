# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers whose tables are measured, one file each."""

from plans import blood, calibration, digits, family, fedac, fedcuau, feddsmic, hospitals, paired, private, shared_sets
from plans.plan import Plan

PLANS: dict[str, Plan] = {
    plan.name: plan
    for plan in (
        *(family.PLAN, family.CIFAR10, fedac.PLAN, fedcuau.PLAN, feddsmic.PLAN, feddsmic.BLOOD, blood.PLAN),
        *(paired.PLAN, digits.PLAN, shared_sets.PLAN, private.PLAN, calibration.BLOOD, calibration.PNEUMONIA),
        *(hospitals.STROKE, hospitals.HEART, hospitals.FLAMBY, hospitals.YEARS),
    )
}
