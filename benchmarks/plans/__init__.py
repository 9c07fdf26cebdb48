# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The papers whose tables are measured, one file each."""

from plans import blood, digits, family, fedac, fedcuau, feddsmic, hospitals
from plans.plan import Plan

PLANS: dict[str, Plan] = {
    plan.name: plan
    for plan in (
        *(family.PLAN, family.CIFAR10, fedac.PLAN, fedcuau.PLAN, feddsmic.PLAN, feddsmic.BLOOD, blood.PLAN),
        *(family.PAIRED, digits.PLAN, fedac.SHARED_SETS, blood.PRIVATE_LAYERS, blood.TEN, blood.PNEUMONIA),
        *(hospitals.STROKE, hospitals.HEART, hospitals.FLAMBY, hospitals.YEARS),
    )
}
