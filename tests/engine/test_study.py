# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study: who trains how long, what is dropped, how it goes on, and what it costs."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from cfl_flare.core.errors import CFLError, ConfigError, RunFailedError
from cfl_flare.core.private import Division
from cfl_flare.data import DataSource, Digits, Samples
from cfl_flare.data.splits import split_by_class
from cfl_flare.engine.plan import RunPlan
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.engine.site import check_private
from cfl_flare.engine.study import in_process
from cfl_flare.engine.study.candidates import (
    PULLS,
    Candidate,
    StudySettings,
    clustered_candidates,
    first_candidates,
    named,
    private_layers,
    random_groups,
    search_candidate,
)
from cfl_flare.engine.study.halving import Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.engine.study.journal import Journal, Search
from cfl_flare.engine.study.judged import Judged
from cfl_flare.methods import IFCA, FedAvg, FedCUAU, Local, WeCFL
from cfl_flare.models import MLP, Logistic
from cfl_flare.results.comparison import AtHospital, Measured
from cfl_flare.results.decision import decide
from cfl_flare.results.metrics import Metric
from cfl_flare.results.run_dir import ROUNDS, load_run, read_lines
from cfl_flare.results.store import Store
from cfl_flare.results.study import SEARCH
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Binary, Survival
from tests.helpers.loop import run_loop
from tests.helpers.play import DATA, MODEL

SHARED = 0.02 * np.random.default_rng(0).normal(size=100)


def make_equal_hospitals(value: float) -> Measured:
    return {f"h{i}": AtHospital(10 + i, 50, 1, value, value + SHARED) for i in range(12)}


@dataclass
class Fake:
    """A trainer whose candidates measure what a table says, by split."""

    validation: dict[str, float]
    test: dict[str, float] = field(default_factory=dict)
    found: int = 3
    fails: str = ""
    layers: str | None = "bias"
    names: list[str] = field(default_factory=lambda: [f"h{i}" for i in range(12)])
    rounds: int = 8
    most_clusters: int = 12
    metric: Metric = field(default_factory=lambda: Metric("accuracy"))
    done: list[tuple[str, int]] = field(default_factory=list)
    seen: list[tuple[str, int, str]] = field(default_factory=list)

    def search(self) -> Search:
        self.done.append(("search", 4))
        by_k = {str(k): {"gap": k / 10, "deviations": 3.0, "stability": 0.8} for k in range(1, 5)}
        note = {"k": self.found, "by_k": by_k, "draws": {"2": 50, "4": 50}, "set": [2, 4], "unsteady": {}}
        return Search(note, {name: i % self.found for i, name in enumerate(self.names)}, 4)

    def private_layers(self, candidate: Candidate) -> str | None:
        return self.layers

    def train(self, candidate: Candidate, rounds: int) -> None:
        if candidate.name == self.fails:
            raise CFLError("no memory\nleft")
        self.done.append((candidate.name, rounds))

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        self.seen.append((candidate.name, rounds, split))
        table = self.validation if split == "validation" else self.test or self.validation
        return make_equal_hospitals(table[candidate.name])


VALUES = {"local": 0.5, "fedavg": 0.6, "wecfl-k2": 0.7, "wecfl-k3": 0.9, "wecfl-k4": 0.9}
VALUES |= {"random-k3": 0.55, "wecfl-k3-bias": 0.8}
TWO = [named(Local()), named(FedAvg())]
HELD = ["local-pull-0.01", "local-pull-0.1", "finetune-pull-0.1", "finetune-pull-1"]


def test_what_is_clearly_worse_stops_and_what_the_verdict_needs_does_not():
    fake = Fake(VALUES)
    study = Study(fake, TWO, StudySettings(rungs=2))
    verdict = study.run()
    assert verdict.chosen.name == "wecfl-k3" and verdict.cluster
    first, last = study.journal.rungs
    # Half of seven may be dropped: the worst that are no baselines.
    assert list(first.dropped) == ["random-k3", "wecfl-k2", "wecfl-k3-bias"] and first.rounds == 4
    assert first.dropped["wecfl-k2"].startswith("wecfl-k3 is better by 0.200, 95 % interval 0.200 to 0.200")
    assert set(last.means) == {"local", "fedavg", "wecfl-k3", "wecfl-k4"} and not last.dropped
    assert fake.done == [
        ("search", 4),
        *((name, 4) for name in VALUES),
        *((name, 8) for name in ("local", "fedavg", "wecfl-k3", "wecfl-k4")),
    ]
    assert study.journal.cost(8) | {"seconds": 0} == {
        "rounds": 4 + 3 * 4 + 4 * 8,
        "everything": 4 + 7 * 8,
        "seconds": 0,
    }


def test_one_model_with_private_layers_learns_to_the_end_even_if_it_learns_late():
    """Clusters were recommended where it was dropped early, and would have been better at the end."""
    values = {**VALUES, "fedavg-bias": 0.1}
    study = Study(Fake(values), [*TWO, named(FedAvg(), "bias")], StudySettings(rungs=2))
    study.run()
    assert list(study.journal.rungs[0].dropped) == ["random-k3", "wecfl-k2", "wecfl-k3-bias"]
    assert "fedavg-bias" in study.journal.rungs[1].means


def test_each_candidate_is_judged_at_its_best_comparison():
    """Training alone overfits: its last models were held against clusters, and lost by far."""
    early = {"fedavg": 0.6, "local": 0.58}
    late = {"fedavg": 0.62, "local": 0.2}

    class Overfitting(Fake):
        def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
            self.seen.append((candidate.name, rounds, split))
            values = {**VALUES, **(early if rounds == 4 else late)}
            value = values[candidate.name]
            return make_equal_hospitals(value - 0.01 if split == "test" else value)

    fake = Overfitting(VALUES)
    study = Study(fake, TWO, StudySettings(rungs=2))
    verdict = study.run()
    assert [rung.means["local"] for rung in study.journal.rungs] == pytest.approx([0.58, 0.2])
    assert verdict.tested["local"] == pytest.approx(0.57) and verdict.tested["fedavg"] == pytest.approx(0.61)
    assert ("local", 8, "test") not in fake.seen and ("fedavg", 8, "test") in fake.seen
    assert named(Local()).entrant.after(4, 8).title == "each hospital alone for 4 rounds"


def test_validation_samples_choose_how_strongly_training_alone_is_held():
    """A straw man: no decay, and losing to it was called clear."""
    alone = [named(Local()), *(named(Local()).with_pull(strength) for strength in PULLS["local"])]
    validation = {**VALUES, "local": 0.3, "local-pull-0.01": 0.5, "local-pull-0.1": 0.4}
    test = {**validation, "local-pull-0.01": 0.45, "local-pull-0.1": 0.9}
    study = Study(Fake(validation, test), [*alone, named(FedAvg())], StudySettings(rungs=2))
    verdict = study.run()
    assert "local-pull-0.01" in study.journal.rungs[0].dropped  # which does not forget it
    assert verdict.tested["local"] == pytest.approx(0.45)
    assert not any("pull" in name for name in verdict.tested)
    assert study._choose_pulls(alone)["local"].entrant.title == "each hospital alone (pull 0.01)"


def test_test_samples_choose_nothing():
    fake = Fake(VALUES, {**VALUES, "wecfl-k3": 0.1})
    verdict = Study(fake, TWO, StudySettings(rungs=2)).run()
    assert verdict.chosen.name == "fedavg"  # the clusters that validation samples chose failed on test samples
    # Nothing was better in the second comparison, so that nothing was measured again.
    assert [seen for seen in fake.seen if seen[2] == "test"] == [(name, 4, "test") for name in VALUES]


def test_measurements_survive_in_the_file_of_a_study():
    hospital = AtHospital(12.0, 50, 3, 0.5, np.array([0.5, np.nan]), (30, 20))
    judged = Judged(4, {"a": hospital}, {"a": replace(hospital, value=0.25)})
    again = Judged.of(json.loads(json.dumps(judged.to_dict(), allow_nan=False)))
    assert again.rounds == 4 and again.tested["a"].value == 0.25 and again.validated["a"].classes == (30, 20)
    np.testing.assert_array_equal(again.validated["a"].draws, [0.5, np.nan])


def test_at_most_half_are_dropped_at_a_time_the_worst_ones_first():
    values = {**VALUES, "wecfl-k2": 0.1, "wecfl-k4": 0.2, "wecfl-k3-bias": 0.3, "ifca-k2": 0.4, "random-k3": 0.5}
    study = Study(Fake(values), [*TWO, named(IFCA(k=2))], StudySettings(rungs=3))
    study.run()
    assert [list(rung.dropped) for rung in study.journal.rungs] == [
        ["wecfl-k2", "wecfl-k4", "wecfl-k3-bias", "ifca-k2"],
        ["random-k3"],
        [],
    ]


def test_a_candidate_that_fails_is_dropped_and_a_baseline_ends_the_study():
    study = Study(Fake(VALUES, fails="wecfl-k4"), TWO, StudySettings(rungs=1))
    study.run()
    assert study.journal.rungs[0].dropped == {"wecfl-k4": "it failed: no memory left"}
    with pytest.raises(CFLError, match="no memory"):
        Study(Fake(VALUES, fails="fedavg"), TWO, StudySettings()).run()


def test_a_study_goes_on_where_it_was():
    whole = Study(Fake(VALUES), TWO, StudySettings(rungs=2))
    whole.run()
    kept: list[dict] = []
    broken = Study(Fake(VALUES), TWO, StudySettings(rungs=2), save=lambda j: kept.append(j.to_dict(8)))
    broken.run()
    assert [len(one["rungs"]) for one in kept] == [0, 1, 2, 2] and kept[-1]["verdict"]["chosen"]["name"] == "wecfl-k3"
    after = json.loads(json.dumps(kept[1]))
    fake = Fake(VALUES)
    again = Study(fake, TWO, StudySettings(rungs=2), Journal.of(after))
    assert again.run() == whole.journal.verdict
    assert fake.done == [(n, 8) for n in ("local", "fedavg", "wecfl-k3", "wecfl-k4")]
    assert {one.name for one in again.candidates} == VALUES.keys()


def test_minutes_end_a_study_between_comparisons_but_never_before_the_first():
    said: list[str] = []
    study = Study(Fake(VALUES), TWO, StudySettings(rungs=2, minutes=1e-9), say=said.append)
    verdict = study.run()
    assert verdict.rounds == 4 and len(study.journal.rungs) == 1
    assert said[0].startswith("after 4 rounds: about 3 clusters found (90 % set 2 to 4, with")
    assert study.journal.words == said[0].removeprefix("after 4 rounds: ")
    assert said[-1] == "1e-09 minutes are used up; the candidates have 4 rounds"
    more = Study(Fake(VALUES), TWO, StudySettings(rungs=2, minutes=60), study.journal)
    assert more.run().rounds == 8


def test_a_margin_of_half_a_share_is_refused_before_anything_trains():
    fake = Fake(VALUES)
    with pytest.raises(ConfigError, match=r"margin = 0.5 is half of all that accuracy can be.*such as 0.05"):
        Study(fake, TWO, StudySettings(margin=0.5))
    Study(Fake(VALUES, metric=Metric("loss", "min")), TWO, StudySettings(margin=0.5))


def test_two_groups_are_a_candidate_even_if_none_were_found():
    assert [one.name for one in clustered_candidates(1, 12)] == ["wecfl-k2"]
    assert [one.name for one in clustered_candidates(2, 12)] == ["wecfl-k2", "wecfl-k3"]
    assert [one.name for one in clustered_candidates(3, 3)] == ["wecfl-k2", "wecfl-k3"]
    assert [one.name for one in clustered_candidates(2, 12, [named(WeCFL(k=2))])] == ["wecfl-k3"]


def test_no_candidate_has_more_clusters_than_there_can_be():
    """Six sites with at least three in a cluster make two clusters: K = 3 would run as K = 2."""
    fake = Fake({**VALUES, "wecfl-k2": 0.9, "wecfl-k2-bias": 0.6, "ifca-k4": 0.6}, most_clusters=2)
    study = Study(fake, [*TWO, named(IFCA(k=4))], StudySettings(rungs=1))
    study.run()
    titles = {candidate.name: candidate.entrant.title for candidate in study.candidates}
    assert "wecfl-k2" in titles and "wecfl-k3" not in titles
    assert titles["ifca-k4"] == "ifca (K=4, at most 2 possible)"
    assert study.candidates[2].entrant.clusters == 2
    alone = Study(Fake(VALUES, most_clusters=1), TWO, StudySettings(rungs=1))
    advice = alone.run().sentences()[0]
    assert {candidate.name for candidate in alone.candidates} == {"local", "fedavg"}
    assert advice.startswith("Do not cluster") and advice.endswith("No candidate with clusters was left to compare.")


@pytest.mark.parametrize(("sites", "fewest", "most"), [(6, 3, 2), (6, 1, 6), (2, 3, 1)])
def test_in_this_process_clusters_have_as_many_sites_as_asked_for(tmp_path, sites, fewest, most):
    trainer = InProcess(replace(plan(min_sites_per_cluster=fewest), sites=sites), tmp_path)
    assert trainer.most_clusters == most


def test_under_survival_the_last_layer_s_bias_is_no_candidate():
    """Cox's loss has no intercept: the same number added to all risks of a hospital changes nothing."""
    linear, deep = MLP([4], 1, hidden=[]), MLP([4], 1, hidden=[8])
    assert [one.name for one in first_candidates(linear, task=Survival())] == ["local", "fedavg", "finetune", *HELD]
    assert private_layers(linear, FedAvg(), Binary()) == private_layers(deep, FedAvg(), Survival()) == "bias"
    with pytest.raises(ConfigError, match=r"private = 'bias' is the last layer's bias alone.* survival only compares"):
        check_private(FedAvg(), Division.of(linear, "bias"), "bias", task=Survival())


def test_hospitals_keep_normalisation_or_else_biases_if_the_method_lets_them():
    plain, normed = MLP([1, 8, 8], 10, hidden=[8]), MLP([1, 8, 8], 10, hidden=[8])
    normed.bn = __import__("torch").nn.BatchNorm1d(4)
    assert private_layers(plain, FedAvg()) == "bias" and private_layers(normed, FedAvg()) == "norm"
    assert private_layers(plain, FedCUAU(k=2)) is None
    names = [candidate.name for candidate in first_candidates(plain, [IFCA(k=2)])]
    assert names == ["local", "fedavg", "fedavg-bias", "finetune", *HELD, "prevalence", "ifca-k2"]
    with pytest.raises(ConfigError, match="fedavg is a candidate already; leave it out"):
        first_candidates(plain, [FedAvg()])
    entrant = named(WeCFL(k=3), "norm").entrant
    assert (entrant.name, entrant.title) == ("wecfl-k3-norm", "wecfl (K=3) with private norm layers")


def test_random_groups_have_the_sizes_of_the_clusters_and_are_drawn_once():
    names = [f"h{i}" for i in range(10)]
    clusters = dict(zip(names, [0, 0, 0, 0, 0, 1, 1, 2]))  # two hospitals did not answer
    drawn = random_groups(clusters, names, 0)
    groups = Counter(drawn.method.groups.values())
    assert drawn.name == "random-k3" and drawn.control and not drawn.baseline and drawn.method.warmup == 1
    assert groups == {"0": 7, "1": 2, "2": 1}  # whoever did not answer is dealt as those that come first
    assert random_groups(clusters, names[::-1], 0) == drawn != random_groups(clusters, names, 1)
    halves = Counter(random_groups(dict.fromkeys(names[:8], 0), names, 0).method.groups.values())
    assert halves == {"0": 5, "1": 5}  # no clusters were found, and two are tried in any case
    assert drawn.entrant.title == "random groups (K=3)" and drawn.entrant.control


@pytest.mark.parametrize("seed", range(12))
def test_random_groups_are_not_the_clusters(seed):
    """Of four hospitals in pairs, every third draw would be the same pairs."""
    groups = random_groups({"a": 0, "b": 0, "c": 1, "d": 1}, "abcd", seed).method.groups
    assert groups["a"] != groups["b"] and groups["c"] != groups["d"]
    three = random_groups({"a": 0, "b": 1, "c": 2}, "abc", seed).method.groups  # clusters of one cannot differ
    assert sorted(three.values()) == ["0", "1", "2"]


def test_the_search_trains_and_is_read_from_its_records(tmp_path):
    trained, folder = [], tmp_path / SEARCH
    folder.mkdir()
    (folder / ROUNDS).write_text('{"round": 0}\n')
    with pytest.raises(RunFailedError, match="too few participants answered"):
        Search.made(lambda *order: trained.append(order), tmp_path, 4)
    assert trained == [(search_candidate(4), 2)]
    (folder / ROUNDS).write_text('{"round": 0}\n{"round": 1, "number_of_clusters": {"k": 2}}\n')
    lines = [{"round": r, "participant": f"h{i}", "cluster": c} for r in (0, 1) for i, c in enumerate((r, 0, None))]
    (folder / "assignments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert Search.made(lambda *order: None, tmp_path, 4) == Search({"k": 2}, {"h0": 1, "h1": 0}, 2)


class MissingHospitals(Fake):
    """At some of the hospitals, a candidate is not measured."""

    def __init__(self, gone: dict[str, set[str]], **more):
        super().__init__(VALUES, **more)
        self.gone = gone

    def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
        found = super().measured(candidate, rounds, split)
        return {name: one for name, one in found.items() if name not in self.gone.get(candidate.name, ())}


def test_means_are_ranked_over_the_hospitals_that_measured_all():
    """K = 2 is better than K = 3 wherever both are measured; at the hospital where K = 3 is not, all are bad."""

    class Hard(MissingHospitals):
        def measured(self, candidate: Candidate, rounds: int, split: str) -> Measured:
            found = dict(super().measured(candidate, rounds, split))
            return {n: replace(one, value=0.1, draws=SHARED + 0.1) if n == "h0" else one for n, one in found.items()}

    values = {**VALUES, "wecfl-k2": 0.95, "wecfl-k4": 0.3}
    fake = Hard({"wecfl-k3": {"h0"}, "wecfl-k2-bias": {"h0"}})
    fake.validation = {**values, "wecfl-k2-bias": 0.8}
    study = Study(fake, TWO, StudySettings(rungs=1))
    study.run()
    assert study.journal.rungs[0].means == pytest.approx({n: fake.validation[n] for n in study.journal.rungs[0].means})
    assert "wecfl-k2-bias" in study.journal.rungs[0].means  # of the best number, K = 2


def test_a_candidate_that_half_of_the_hospitals_measured_is_dropped_and_a_baseline_ends_the_study():
    names = list(Fake(VALUES).measured(TWO[0], 4, "validation"))
    half = set(names[: (len(names) + 1) // 2])
    study = Study(MissingHospitals({"wecfl-k4": half}), TWO, StudySettings(rungs=1))
    verdict = study.run()
    why = f"it failed: {len(names) - len(half)} of {len(names)} hospitals measured it"
    assert study.journal.rungs[0].dropped == {"wecfl-k4": why} and "wecfl-k4" not in verdict.tested
    with pytest.raises(RunFailedError, match="no hospital measured both local and fedavg"):
        Study(MissingHospitals({"local": half, "fedavg": {*names} - half}), TWO, StudySettings(rungs=1)).run()


# ---- In this process ----


def plan(**more) -> RunPlan:
    settings = {"num_rounds": 4, "validation": 0.25, "participants": 6, "partition": DATA.partition, **more}
    steps, model = settings.pop("local_steps", 3), settings.pop("model", MODEL)
    training = TrainSettings(lr=0.1, local_steps=steps, bootstrap=settings.pop("bootstrap", 50))
    data = settings.pop("data", Digits())
    return RunPlan.of(method="fedavg", model=model, data=data, training=training, min_clients=1, **settings)


def without_seconds(folder: Path) -> list[dict]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in read_lines(folder / ROUNDS)]


@pytest.mark.parametrize("private", [None, "bias"])
def test_a_run_that_was_ended_early_goes_on_as_if_it_had_not(tmp_path, private):
    settings = {
        "method": WeCFL(k=2),
        "model": MODEL,
        "source": Digits(),
        "data": DATA,
        "settings": ServerSettings(4),
        "training": TrainSettings(lr=0.1, local_steps=3, lr_schedule="cosine"),
        "private": private,
    }
    run_loop(**settings, folder=tmp_path / "whole")
    store = Store(tmp_path / "store")
    first = run_loop(**settings, folder=tmp_path / "parts", checkpoints=store, until=2)
    assert first.state.round == 2
    ended = load_run(tmp_path / "parts").summary
    assert (ended["rounds"], ended["stopped"]) == (2, "after 2 of 4 rounds, as asked")
    run_loop(**settings, folder=tmp_path / "parts", checkpoints=store, until=4)
    assert without_seconds(tmp_path / "parts") == without_seconds(tmp_path / "whole")
    one, other = (load_run(tmp_path / name).summary for name in ("parts", "whole"))
    assert one["participants"] == other["participants"] and one["stopped"] is None


def test_splits_are_disjoint_and_measured_on_the_same_models(tmp_path, monkeypatch):
    lines: list[str] = []
    trainer = InProcess(plan(), tmp_path, say=lines.append)
    candidate = named(WeCFL(k=2), "bias")
    trainer.train(candidate, 2)
    monkeypatch.setattr(in_process, "SECONDS", -1.0)
    found = {split: trainer.measured(candidate, 2, split) for split in ("validation", "test")}
    said = f"measuring {candidate.name} on test samples: 1 of {len(trainer.names)} hospitals so far"
    assert said in lines and len(lines) == 2 * len(trainer.names)
    run = load_run(tmp_path / candidate.name)
    for person in run.summary["participants"]:  # what the run itself measured
        assert found["validation"][person["name"]].value == pytest.approx(person["served_accuracy"])
    for name, own in found["test"].items():
        assert own.samples == found["validation"][name].samples and own.draw != found["validation"][name].draw
        assert own.draws.shape == (50,) and own.tested != found["validation"][name].tested
    # With test samples in place of validation samples, the same run measures the same models.
    apart = InProcess(plan(), tmp_path / "test")
    apart.plan = replace(apart.plan, data=replace(apart.plan.data, measured_on="test"))
    apart.train(candidate, 2)
    for person in load_run(tmp_path / "test" / candidate.name).summary["participants"]:
        assert found["test"][person["name"]].value == pytest.approx(person["served_accuracy"])
    with pytest.raises(RunFailedError, match="has 2 rounds, not 4"):
        trainer.measured(candidate, 4, "test")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"validation": 0.0}, "study: validation = 0.0 sets no samples aside"),
        ({"bootstrap": 0}, "study: bootstrap = 0 leaves differences without intervals"),
        ({"patience": 2}, "study: stop_cond and patience end candidates at different rounds"),
    ],
)
def test_what_a_study_needs_is_asked_for_before_it_starts(tmp_path, more, why):
    with pytest.raises(ConfigError, match=why):
        InProcess(plan(**more), tmp_path)
    assert not [*tmp_path.iterdir()]


@dataclass(frozen=True)
class SmallHospitals(DataSource):
    """Forty hospitals of 8 to 20 patients, of whom a fifth die."""

    def load(self) -> tuple[Samples, Samples]:
        rng = np.random.default_rng(0)
        sizes = rng.integers(8, 21, size=40)
        x = rng.random((sizes.sum(), 4)).astype(np.float32)
        risk = x[:, 0] + 0.5 * rng.random(len(x))
        y = (risk > np.quantile(risk, 4 / 5)).astype(np.int64)
        return split_by_class(Samples(x, y, np.repeat(np.arange(40), sizes)), 0.3, 0)


def test_small_hospitals_with_few_deaths_cannot_tell_and_say_on_how_many_that_rests(tmp_path):
    """Whoever names one class everywhere is right in 4 of 5: accuracy says nothing, and a handful of deaths little."""
    more = {"data": SmallHospitals(), "participants": 40, "partition": "natural", "min_samples": 2, "num_rounds": 2}
    trainer = InProcess(plan(**more, model=Logistic([4], 2), key_metric="accuracy"), tmp_path)
    study = Study(trainer, first_candidates(trainer.module), StudySettings(rungs=1, fewest_events=10))
    accuracy = study.run()
    assert accuracy.sentences()[0].startswith("Use none of these models yet: ")
    assert accuracy.unsure.startswith("accuracy 0.")
    found = {split: trainer.measured(study.candidates[1], 2, split) for split in ("validation", "test")}
    for split, measured in found.items():
        counts = {data.name: np.bincount(data.test.y, minlength=2).tolist() for data in trainer.hosted(split)}
        assert {name: list(own.classes) for name, own in measured.items()} == {
            n: c for n, c in counts.items() if sum(c)
        }
        deaths = sum(counted[1] for counted in counts.values())
        basis = accuracy.basis[split]
        assert (basis.hospitals, basis.of, basis.rarer) == (len(measured), 40, deaths) and 10 <= deaths < 100
    tested = {one.name: trainer.measured(one, 2, "test") for one in study.candidates}
    validated = {one.name: trainer.measured(one, 2, "validation") for one in study.candidates}
    few = decide(tested, validated, [one.entrant for one in study.candidates], 2, "loss", "min", fewest=100)
    assert few.unsure.endswith("are too few, 100 are needed (--fewest-events)") and few.chosen.name != "local"


@pytest.mark.slow
def test_groups_that_number_the_classes_differently_are_found_and_worth_it(tmp_path):
    settings = {"participants": 12, "partition": "label_permutation:groups=3", "num_rounds": 8, "bootstrap": 100}
    settings |= {"local_steps": 10, "model": MLP([1, 8, 8], 10)}
    trainer = InProcess(plan(**settings), tmp_path)
    study = Study(trainer, first_candidates(trainer.module), StudySettings(rungs=2))
    verdict = study.run()
    assert study.journal.clusters == 3 and verdict.cluster and verdict.chosen.clusters in (3, 4)
    assert verdict.sentences()[0].startswith("Cluster into ")
