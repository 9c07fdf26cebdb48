# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The runs of the golden record: methods, penalties, wrappers and options, each as a command line of ``cfl-flare run``.

Every method is run in the loop with all participants, with a sample of them, stopped and resumed, and with newcomers;
through FLARE's simulator once with all participants, and some of them in the other ways.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

COMMON = ("--model", "mlp:hidden=[16]", "--participants", "12", "--rounds", "5", "--lr", "0.1")
COMMON += ("--seed", "1")
KEPT = ("--keep-momentum",)

CON, CKS, PROX = "contrastive", "knowledge_sharing", "proximal"
PAIRWISE = "knowledge_sharing:pairwise=True"
NESTED_CAM = "cam:base=({'method':'wecfl','k':3,'penalties':[{'penalty':'contrastive'}]}),warmup=1"
# One participant has no label.
GIVEN = "{" + ",".join(f"'p{i:02d}':'group {i % 2}'" for i in range(11)) + "}"
DEEPER = ("--model", "mlp:hidden=[16,12]")


@dataclass(frozen=True)
class Case:
    """One run.

    Attributes:
        name: ``part/method/variant``.
        words: what follows ``cfl-flare run``, beside what is common to all cases.
        resumed: the run is stopped half way and goes on from its last checkpoint.
        settings: of the server's schedule, those for which the command has no option.
        from_model: it starts from the model of another run.
    """

    name: str
    words: tuple[str, ...]
    resumed: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    from_model: bool = False

    @property
    def part(self) -> str:
        """``loop`` or ``flare``."""
        return self.name.partition("/")[0]

    @property
    def options(self) -> list[str]:
        """The command's options, without ``--loop`` and ``--out``."""
        steps = () if "--local-epochs" in self.words else ("--local-steps", "5")
        return [*COMMON, *steps, *self.words]

    @property
    def command(self) -> str:
        """All that says what is run, on one line."""
        more = [f"{key}={value}" for key, value in self.settings.items()]
        more += ["from-model"] * self.from_model + ["resumed"] * self.resumed
        return " ".join([*self.options, *(f"[{text}]" for text in more)])


def list_method_words(text: str, *penalties: str) -> tuple[str, ...]:
    """The options of a method with its penalties."""
    return ("--method", text, *(word for penalty in penalties for word in ("--penalty", penalty)))


METHODS: dict[str, tuple[str, ...]] = {
    "fedavg": list_method_words("fedavg"),
    "fedavg-uniform": list_method_words("fedavg:weighting=uniform"),
    "fedprox": list_method_words("fedprox:mu=0.1"),
    "fedprox-finetune": list_method_words("fedprox:mu=0.1,finetune=True,finetune_epochs=2"),
    "finetune": list_method_words("finetune"),
    "local": list_method_words("local"),
    "fedper": list_method_words("fedper"),
    "fedbabu": list_method_words("fedbabu"),
    "ditto": list_method_words("ditto:lam=0.5"),
    "per-fedavg": list_method_words("per-fedavg:personal_steps=2"),
    "ifca": list_method_words("ifca:k=3"),
    "ifca-few-samples": list_method_words("ifca:k=3,assignment_samples=10"),
    "ifca-shared": list_method_words("ifca:k=3,shared_backbone=True"),
    "ifca-finetune": list_method_words("ifca:k=3,finetune=True"),
    "fesem": list_method_words("fesem:k=3"),
    "fesem-few-shot": list_method_words("fesem:k=3,clustering_rounds=2"),
    "wecfl": list_method_words("wecfl:k=3"),
    "wecfl-few-shot": list_method_words("wecfl:k=3,clustering_rounds=1"),
    "wecfl-head": list_method_words("wecfl:k=3,cluster_on=head,starts=3,seed=5"),
    "wecfl-finetune": list_method_words("wecfl:k=3,finetune=True"),
    "cgpfl": list_method_words("cgpfl:k=3"),
    "fedac": list_method_words("fedac:k=3,map_every=2"),
    "fedac-l2": list_method_words("fedac:k=3,similarity=l2,tuning=False"),
    "fedac-merges": list_method_words("fedac:k=4,low=0.5,high=0.9,cooldown=1,dimensions=3"),
    "fedds": list_method_words("fedds:k=3"),
    "feddsmic": list_method_words("feddsmic:k=3"),
    "fedcuau": list_method_words("fedcuau:k=3"),
    "fedcuau-fedprox": list_method_words("fedcuau:base=fedprox,finetune=True"),
    "fedcuau-fedbabu": (*list_method_words("fedcuau:base=fedbabu"), *DEEPER),
    "fedcuau-fedper": (*list_method_words("fedcuau:base=fedper"), *DEEPER),
    "cfl": list_method_words("cfl:eps1=9,eps2=0"),
    "fl-hc": list_method_words("fl-hc:k=3,rounds_before=1"),
    "fl-hc-threshold": list_method_words("fl-hc:threshold=0.5,rounds_before=2,metric=cosine,linkage=average"),
    "fedgroup": list_method_words("fedgroup:k=3"),
    "clove": list_method_words("clove:k=3"),
    "clove-silhouette": list_method_words("clove:k=4,silhouette=True,stable=None"),
    "cfl-gp": list_method_words("cfl-gp:k=3"),
    "groups": list_method_words(f"groups:groups={GIVEN}"),
    "groups-warmup": list_method_words(f"groups:groups={GIVEN},warmup=2,pull=0.1,finetune=True"),
    "ifca-cam": list_method_words("ifca-cam:k=3,warmup=2"),
    "ifca-cam-alternating": list_method_words("ifca-cam:k=3,warmup=1,updates=alternating"),
    "ifca-cam-damped": list_method_words("ifca-cam:k=3,warmup=1,step=damped"),
    "ifca-cam-finetune": list_method_words("ifca-cam:k=3,warmup=1,finetune=True"),
    "fesem-cam": list_method_words("fesem-cam:k=3,warmup=2"),
    "fesem-cam-alternating": list_method_words("fesem-cam:k=3,warmup=1,updates=alternating"),
    "wecfl-cam": list_method_words("wecfl-cam:k=3,warmup=2,lam=0.1,clustering_rounds=3"),
    "fedavg+": list_method_words("fedavg+:k=2"),
    "fedavg+finetune": list_method_words("fedavg+:k=2,finetune=True"),
    "fedprox+": list_method_words("fedprox+:k=2,mu=0.1"),
    "fedavg+ifca": list_method_words("fedavg+ifca:k=3"),
    "fedavg+fesem": list_method_words("fedavg+fesem:k=3"),
    "together": list_method_words("ensemble:parts=[{'method':'ditto'},{'method':'wecfl','k':3}],vote=logits"),
    "together-cuau": list_method_words("ensemble:parts=[{'method':'fedcuau'},{'method':'fedper'}]"),
    "fedavg-prox": list_method_words("fedavg", "proximal:mu=0.1,scope=backbone"),
    "ditto-prox": list_method_words("ditto", PROX),
    "cam-penalties": list_method_words(NESTED_CAM),
    **{
        f"{base}-{name}": list_method_words(f"{base}:k=3", *penalties)
        for base in ("wecfl", "ifca")
        for name, penalties in {
            "con": (CON,),
            "con-head": ("contrastive:scope=head,tau=0.1",),
            "con-rep": ("contrastive:on=representations,mu=2",),
            "cks": ("knowledge_sharing:lam=0.1",),
            "cks-pairwise": ("knowledge_sharing:pairwise=True,lam=[0.1,0.01,1]",),
            "prox": ("proximal:mu=0.1",),
            "con-cks": ("contrastive:scope=head", "knowledge_sharing:scope=backbone"),
        }.items()
    },
    "ifca-dp": (*list_method_words("ifca:k=3"), "--dp", "epsilon=20,max_loss=2"),
    "ditto-bias-dp": (*list_method_words("ditto", PROX), "--private", "bias", "--dp", "epsilon=20"),
    "clove-dp": (*list_method_words("clove:k=3"), "--dp", "epsilon=20,noise_multiplier=3"),
    "fesem-con-cks": list_method_words(
        "fesem:k=3,clustering_rounds=2", "contrastive:scope=head", f"{PAIRWISE},scope=backbone"
    ),
}

# With groups that can be told apart the first round finds them; without such, participants go on to change clusters.
SAMPLED = ("--sample", "6", "--partition", "dirichlet:alpha=0.5", "--min-samples", "4")
VARIANTS: dict[str, tuple[str, ...]] = {"full": KEPT, "sample": SAMPLED, "unseen": ("--unseen", "3")}

CNN = ("--model", "fashion-cnn", "--participants", "4", "--rounds", "3", "--local-steps", "2")
OPTIONS: dict[str, Case] = {
    name: Case(name, words)
    for name, words in {
        "evaluate-every": (*METHODS["ditto"], "--evaluate-every", "2"),
        "evaluate-trained": (*METHODS["wecfl"], "--evaluate-trained"),
        "keep-features": (*METHODS["wecfl"], "--keep-features"),
        "keep-features-ifca-cam": (*METHODS["ifca-cam"], "--keep-features"),
        "few-answers": (*METHODS["fedavg"], "--sample", "0.5", "--min-answers", "0.9"),
        "epochs": (*METHODS["wecfl"], "--local-epochs", "1", "--momentum", "0", "--batch-size", "16"),
        "bfloat16": (*METHODS["fedavg"], "--precision", "bfloat16"),
        "logistic": (*METHODS["feddsmic"], "--model", "logistic"),
        "batch-norm-wecfl": (*METHODS["wecfl"], *CNN),
        "batch-norm-fedcuau": (*METHODS["fedcuau"], *CNN),
        "batch-norm-ifca-cam": (*METHODS["ifca-cam"], *CNN),
        "batch-norm-con-rep": (*METHODS["wecfl-con-rep"], *CNN),
        "batch-norm-fedavg": (*METHODS["fedavg"], *CNN),
        **{
            f"partition-{rule.partition(':')[0]}": (*METHODS["wecfl"], "--min-samples", "2", "--partition", rule)
            for rule in (
                "iid",
                "dirichlet:alpha=0.5",
                "n_class:n=3",
                "cluster_dirichlet:groups=3",
                "cluster_n_class:groups=3",
                "lda:alpha=0.5",
                "heterogeneity_tiers",
                "class_groups:groups=3,alpha=10",
                "quantity:rule=iid,lo=20,hi=100",
                "crossed:rule=label_permutation,groups=3",
                "scanner:groups=3",
            )
        },
    }.items()
}
# In the loop all participants are on one site, so that these say something through FLARE alone.
SITES: dict[str, tuple[str, ...]] = {
    **{f"site-sums-{name}": (*METHODS[name], "--site-sums") for name in ("fedavg", "ifca-cam", "fedavg+ifca")},
    **{
        f"merged-{name}": (*METHODS[name], "--min-sites-per-cluster", "2", "--merge-small-clusters")
        for name in ("wecfl", "ifca-cam", "fedds")
    },
}
SCHEDULES: dict[str, Case] = {
    "patience": Case("", METHODS["fedavg"], settings={"patience": 1, "key_metric_mode": "min"}),
    "stop-cond": Case("", METHODS["wecfl"], settings={"stop_cond": "accuracy >= 0.4"}),
    "best-loss": Case("", METHODS["ifca"], settings={"key_metric": "loss", "key_metric_mode": "min"}),
    "cross-site": Case("", METHODS["wecfl"], settings={"cross_site_evaluation": True}),
    "cross-site-ensemble": Case("", METHODS["fedavg+ifca"], settings={"cross_site_evaluation": True}),
    **{f"from-model-{name}": Case("", METHODS[name], from_model=True) for name in ("fedavg", "wecfl", "cfl", "fedac")},
}
BOTH_SCHEDULES = ("patience", "cross-site")

# Settings and penalties that change what a participant or the server computes, and nothing on the way between them.
LOOP_ONLY = ("fedavg-uniform", "fedprox-finetune", "ifca-few-samples", "fesem-few-shot", "wecfl-few-shot", "wecfl-head")
LOOP_ONLY += ("fedac-l2", "fedac-merges", "fedcuau-fedprox", "fedcuau-fedbabu", "fl-hc-threshold", "ifca-finetune")
LOOP_ONLY += ("ifca-cam-damped", "ifca-cam-alternating", "ifca-cam-finetune", "wecfl-cam", "fedavg+finetune")
LOOP_ONLY += ("clove-dp", "ditto-bias-dp", "together-cuau", "fedavg-prox", "ditto-prox", "fesem-con-cks")
LOOP_ONLY += tuple(f"ifca-{name}" for name in ("con", "con-head", "con-rep", "cks", "cks-pairwise", "prox"))
FLARE_VARIANTS = {"sample": ("fedac", "ifca", "ditto"), "unseen": ("wecfl", "ifca-cam", "fedper")}
RESUMED_IN_FLARE = ("wecfl", "ditto", "fedac", "fedcuau", "together")


def _list_loop_cases() -> list[Case]:
    cases = [
        Case(f"loop/{name}/{variant}", (*words, *more))
        for name, words in METHODS.items()
        for variant, more in VARIANTS.items()
    ]
    cases += [Case(f"loop/{name}/resumed", (*words, *KEPT), resumed=True) for name, words in METHODS.items()]
    cases += [Case(f"loop/{name}/option", case.words) for name, case in OPTIONS.items()]
    for name, case in SCHEDULES.items():
        cases.append(Case(f"loop/{name}/schedule", case.words, settings=case.settings, from_model=case.from_model))
    return cases


def _flare() -> list[Case]:
    cases = [Case(f"flare/{name}/full", (*words, *KEPT)) for name, words in METHODS.items() if name not in LOOP_ONLY]
    cases += [
        Case(f"flare/{name}/{variant}", (*METHODS[name], *VARIANTS[variant]))
        for variant, names in FLARE_VARIANTS.items()
        for name in names
    ]
    cases += [Case(f"flare/{name}/resumed", (*METHODS[name], *KEPT), resumed=True) for name in RESUMED_IN_FLARE]
    cases += [Case(f"flare/{name}/option", words) for name, words in SITES.items()]
    for name in BOTH_SCHEDULES:
        cases.append(Case(f"flare/{name}/schedule", SCHEDULES[name].words, settings=SCHEDULES[name].settings))
    return cases


CASES: dict[str, Case] = {case.name: case for case in (*_list_loop_cases(), *_flare())}
