# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Methods by their names: short names of combinations, and the way through a job file."""

import dataclasses
import json

import pytest

from cfl_flare.core.errors import ConfigError
from cfl_flare.methods import (
    CAM,
    COMBINATIONS,
    IFCA,
    METHODS,
    PENALTIES,
    AutoK,
    Contrastive,
    Ensemble,
    FedAvg,
    FedProx,
    FeSEM,
    KnowledgeSharing,
    Proximal,
    WeCFL,
    build_method,
    describe_method,
)

WEIGHTED = FeSEM(k=3, weighting="samples")


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        ({"method": "ifca-cam", "k": 3}, CAM(base=IFCA(k=3))),
        (
            {"method": "ifca-cam", "k": 3, "warmup": 5, "updates": "alternating", "step": "damped", "finetune": True},
            CAM(base=IFCA(k=3), warmup=5, updates="alternating", step="damped", finetune=True),
        ),
        (
            {"method": "ifca-cam", "k": 3, "assignment_samples": 9, "weighting": "uniform"},
            CAM(base=IFCA(k=3, assignment_samples=9, weighting="uniform")),
        ),
        ({"method": "fesem-cam", "k": 3, "lam": 0.1}, CAM(base=WEIGHTED, lam=0.1)),
        ({"method": "fesem-cam", "k": 3, "weighting": "uniform"}, CAM(base=FeSEM(k=3))),
        (
            {"method": "wecfl-cam", "k": 3, "cluster_on": "all", "starts": 2, "clustering_rounds": 4, "warmup": 0},
            CAM(base=WeCFL(k=3, cluster_on="all", starts=2, clustering_rounds=4), warmup=0),
        ),
        (
            {"method": "wecfl-cam", "k": 3, "penalties": [{"penalty": "contrastive", "mu": 2.0}]},
            CAM(base=WeCFL(k=3, penalties=(Contrastive(mu=2.0),))),
        ),
        ({"method": "fedavg+", "k": 2}, Ensemble(parts=(FedAvg(), FedAvg()))),
        ({"method": "fedavg+", "k": 1, "vote": "logits"}, Ensemble(parts=(FedAvg(),), vote="logits")),
        (
            {"method": "fedprox+", "k": 2, "mu": 0.5, "weighting": "uniform", "finetune": True},
            Ensemble(parts=(FedProx(mu=0.5, weighting="uniform"),) * 2, finetune=True),
        ),
        ({"method": "fedavg+ifca", "k": 3}, Ensemble(parts=(FedAvg(), IFCA(k=3)), vote="logits")),
        (
            {"method": "fedavg+ifca", "k": 3, "vote": "probabilities", "finetune": True, "assignment_samples": 9},
            Ensemble(
                parts=(FedAvg(), IFCA(k=3, assignment_samples=9)), vote="probabilities", finetune=True
            ),
        ),
        (
            {"method": "fedavg+fesem", "k": 3, "penalties": [{"penalty": "proximal"}]},
            Ensemble(parts=(FedAvg(penalties=(Proximal(),)), FeSEM(k=3, penalties=(Proximal(),))), vote="logits"),
        ),
    ],
)  # fmt: skip
def test_settings_reach_the_method_that_they_are_of(spec, method):
    assert build_method(spec) == method


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"method": "ifca-cam"}, "^method ifca-cam: setting 'k' is missing and has no default$"),
        ({"method": "fedavg+"}, r"^method fedavg\+: setting 'k' is missing and has no default$"),
        ({"method": "fedavg+ifca"}, r"^method fedavg\+ifca: setting 'k' is missing and has no default$"),
        ({"method": "fedavg+", "k": 0}, r"^method fedavg\+: k = 0 should be a whole number in .1, 1000.$"),
        ({"method": "fedavg+", "k": 2.0}, r"^method fedavg\+: k = 2.0 should be a whole number in .1, 1000.$"),
        ({"method": "fedavg+", "k": True}, r"^method fedavg\+: k = True should be a whole number in .1, 1000.$"),
        ({"method": "fedavg+", "k": 2, "mu": 1.0}, r"^method fedavg\+: unknown setting 'mu'; it has: k, .*vote$"),
        ({"method": "ifca-cam", "k": 2, "vote": "logits"}, "^method ifca-cam: unknown setting 'vote'; it has: .*lam"),
        ({"method": "ifca-cam", "k": 2, "base": IFCA(k=2)}, "^method ifca-cam: unknown setting 'base'"),
        ({"method": "ifca-cam", "k": 2, "starts": 3}, "^method ifca-cam: unknown setting 'starts'"),
        ({"method": "fedavg+ifca", "k": 2, "parts": []}, r"^method fedavg\+ifca: unknown setting 'parts'"),
        ({"method": "ifca-cam", "k": 2, "shared_backbone": True}, "^method cam: base = ifca has its models in parts"),
        ({"method": "fesem-cam", "k": 0}, "^method fesem: k = 0 should be in .1, 1000.$"),
        ({"method": "cam+", "k": 2}, "^method 'cam\\+' is unknown; there are .*cam, ensemble, .*ifca-cam"),
    ],
)
def test_refusals_name_the_setting_in_one_line(spec, message):
    with pytest.raises(ConfigError, match=message) as refused:
        build_method(spec)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", COMBINATIONS)
def test_named_settings_are_those_that_are_built(name):
    """What `Combination.settings` says are the defaults, are: given or not, the method is the same."""
    combination = COMBINATIONS[name]
    settings = combination.settings()
    needed = {key: 3 for key, default in settings.items() if default is dataclasses.MISSING}
    assert set(needed) == {"k"}
    if name == "fedavg+fesem":
        assert settings.pop("weighting") == ("samples", "uniform")
    assert build_method({"method": name, **settings, **needed}) == build_method({"method": name, **needed})
    assert combination.summary.endswith(".")


NEEDED = {"cfl": {"eps1": 0.5, "eps2": 1.0}}


def settings_of(name: str) -> dict:
    """The settings without which a method cannot be built, and a number of clusters where there is one."""
    return NEEDED.get(name) or ({"k": 3} if "k" in {f.name for f in dataclasses.fields(METHODS[name])} else {})


EVERY = [
    *(build_method({"method": name, **settings_of(name)})
      for name, cls in METHODS.items() if cls not in (AutoK, CAM, Ensemble, FeSEM)),
    *(build_method({"method": name, "k": 3}) for name in COMBINATIONS),
    FeSEM(k=3, penalties=[Contrastive(scope="head"), KnowledgeSharing(lam=[0.1, 0.2, 0.3], scope="backbone")]),
    AutoK(base=WeCFL(k=4), warmup=2),
    CAM(base=WeCFL(k=2, cluster_on=["head.weight"], penalties=(KnowledgeSharing(pairwise=True),)), lam=0),
    Ensemble(parts=[FedAvg(weighting="uniform"), IFCA(k=2, penalties=(Proximal(mu=1.0),))]),
]  # fmt: skip


@pytest.mark.parametrize("method", EVERY, ids=lambda m: m.label)
def test_every_method_survives_the_way_through_a_job_file(method):
    assert build_method(json.loads(json.dumps(describe_method(method)))) == method


@pytest.mark.parametrize(
    ("spec", "label", "clusters"),
    [
        ({"method": "ifca-cam", "k": 3}, "ifca-cam", 3),
        ({"method": "fesem-cam", "k": 3}, "fesem-cam", 3),
        ({"method": "wecfl-cam", "k": 3, "finetune": True}, "wecfl-cam-finetune", 3),
        ({"method": "fedavg+", "k": 3}, "fedavg+", 0),
        ({"method": "fedprox+", "k": 3}, "fedprox+", 0),
        ({"method": "fedavg+ifca", "k": 3}, "fedavg+ifca", 3),
        ({"method": "fedavg+fesem", "k": 3}, "fedavg+fesem", 3),
    ],
)
def test_labels(spec, label, clusters):
    method = build_method(spec)
    assert (method.label, method.clusters) == (label, clusters)


def test_the_registries_know_their_classes_by_their_names():
    assert all(cls.name == name for name, cls in METHODS.items() if name != "hypcluster")
    assert all(cls.name == name for name, cls in PENALTIES.items())
    assert not METHODS.keys() & COMBINATIONS.keys()
