# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A study, or several methods, as one job: the loop's numbers, what travels, hostile sites and servers, resuming."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from nvflare.apis.dxo import DataKind, from_shareable
from nvflare.apis.signal import Signal

from cfl_flare.cli import main
from cfl_flare.core.arrays import load_arrays
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.engine.study.candidates import StudySettings, first_candidates
from cfl_flare.engine.study.halving import Study
from cfl_flare.engine.study.in_process import InProcess
from cfl_flare.flare import wire
from cfl_flare.flare.allowed import CLASSES
from cfl_flare.flare.several import CANDIDATE, SeveralExecutor, candidates_of
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.study import load_study
from tests.helpers.kits import HOSTILE, SITES, Bench, fl_context, of_sites, plan_digits_run
from tests.helpers.resumed import assert_same_models, read_models

pytestmark = pytest.mark.usefixtures("state_root")

THEIRS = {"p2", "p3"}


def read_findings(results: Path) -> dict:
    """What a study found, but for how long it took."""
    study = load_study(results)
    rungs = [{key: value for key, value in rung.items() if key != "seconds"} for rung in study["rungs"]]
    return {"found": study["found"], "rungs": rungs, "verdict": study["verdict"], "titles": study["titles"]}


def assert_same_studies(one: Path, other: Path) -> None:
    assert read_findings(one) == read_findings(other)
    ours = read_models(one, "*/clusters/*.safetensors")
    theirs = read_models(other, "*/clusters/*.safetensors")
    assert_same_models(ours, theirs)


def content(answer) -> dict:
    return wire.content_of(from_shareable(answer).meta)


# ---- What it finds, and what travels ----


def test_a_job_finds_what_the_loop_finds_bit_by_bit(tmp_path):
    job = Bench(tmp_path / "job").play(rungs=2)
    assert not job.panics
    trainer = InProcess(plan_digits_run(), tmp_path / "loop")
    study = Study(trainer, first_candidates(trainer.module), StudySettings(rungs=2))
    study.run()
    loop, its = json.loads(json.dumps(study.journal.to_dict(4))), load_study(job.results)
    for key in ("found", "searched"):
        assert its[key] == loop[key]
    assert of_sites(its["verdict"]) == of_sites(loop["verdict"])
    assert loop["verdict"]["basis"]["test"]["rarer"] and its["verdict"]["basis"]["test"]["rarer"] is None
    for ours, theirs in zip(its["rungs"], loop["rungs"], strict=True):
        assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}
    for name in its["rungs"][0]["means"]:  # each a usual run folder
        run, other = load_run(job.results / name), load_run(tmp_path / "loop" / name)
        assert run.summary["intervals"].keys() == {"served_accuracy"}  # it is judged by no other measure
        assert run.assignments == other.assignments and run.summary["rounds"] == other.summary["rounds"]
        assert [r["served_accuracy"] for r in run.rounds] == [r["served_accuracy"] for r in other.rounds]
    assert not list((tmp_path / "state").rglob("server/checkpoints"))


def test_tasks_name_a_candidate_and_nothing_of_what_it_is(tmp_path):
    job = Bench(tmp_path / "job").play(rungs=1, num_rounds=2)
    own = {"schema", "tasks", "round", "index", "sites", "memory_of", "candidate", "split"}
    own |= {"together", "sampled", "averaged"}
    seen = []

    def attack(task, asked, answer):
        seen.append((task, set(asked)))
        return answer

    Bench(tmp_path / "other", attack).play(rungs=1, num_rounds=2, run_name="other")
    assert {keys == own for task, keys in seen if task == wire.TRAIN_TASK} == {True}
    tested = [name for _, site, name, split, _ in job.sent if split == "test" and site == HOSTILE]
    # Once each, after the candidate's comparison.
    assert tested == list(load_study(job.results)["rungs"][0]["means"])
    splits = [split for task, _, _, split, _ in job.sent if task == wire.TRAIN_TASK]
    assert splits.count("test") == 3 * len(tested)
    counts = {
        name: own
        for task, _, _, _, said in job.sent
        if task == wire.CHECK_TASK
        for name, own in content(said)["splits"].items()
    }
    assert {name: own["test"] for name, own in counts.items()} == {
        one["name"]: one["tested"] for one in load_study(job.results)["verdict"]["hospitals"]
    }


def test_what_a_candidate_keeps_never_leaves_and_stays_apart_from_the_others(tmp_path, state_root):
    job = Bench(tmp_path / "job").play(rungs=1, num_rounds=2)
    sent = {}
    for _, _, name, _, answer in job.sent:
        for key, part in from_shareable(answer).data.items():
            if part.data_kind == DataKind.WEIGHT_DIFF:
                sent.setdefault(name, set()).update(part.data)
                assert not key.endswith("personal")
    assert "local" not in sent and "head.bias" in sent["fedavg"]
    private = [name for name in sent if name and name.endswith("-bias")]
    assert len(private) == 2
    for name in private:
        assert sent[name] and not [key for key in sent[name] if key.endswith("bias")]
    for site in SITES:
        kept = {
            p.parent.name: set(load_arrays(p)[0]) for p in (state_root / "study" / site).glob("*/round-*.safetensors")
        }
        assert kept.keys() == {"local", "local-pull-0.01", "local-pull-0.1", *private}
        served = {p.parents[1].name for p in (state_root / "study" / site).glob("*/served/*.safetensors")}
        assert served == set(load_study(job.results)["rungs"][0]["means"])
    at_server = list((state_root / "study" / "server").glob("*-bias/state/*.safetensors"))
    assert at_server and not [key for path in at_server for key in load_arrays(path)[0] if key.endswith("bias")]


# ---- Hostile servers ----


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"candidate": "ditto"}, "this job has no candidate 'ditto'"),
        ({"candidate": {"method": "cgpfl"}}, "this job has no candidate {'method': 'cgpfl'}"),
        ({"candidate": "../local"}, "this job has no candidate '../local'"),
        ({"candidate": None}, "this job has no candidate None"),
        ({"split": "train"}, "split = 'train' should be one of validation, test"),
        ({"split": ["test"]}, "split = ['test'] should be one of validation, test"),
        ({"split": "test"}, "a round that trains is measured on validation samples alone"),
    ],
)
def test_a_site_carries_out_no_task_that_the_job_does_not_have(tmp_path, change, why, caplog):
    job = Bench(tmp_path / "job").play(rungs=1, num_rounds=2)
    site, where = job.executors["site-1"], fl_context(tmp_path / "job" / "site-1", "site-1")
    task = {"slots": ["global"], "train": True, "evaluate": False, "scalars": {}, "choices": [], "joined": {}}
    asked = {
        "tasks": {"p0": {**task, "questions": {}, "models": []}},
        "round": 0,
        "memory_of": None,
        "index": 0,
        "sites": 3,
    }
    asked |= {"candidate": "fedavg", "split": "validation", **change}
    models = wire.encode_models({"global": site._site.runtime.initial(0)})
    folders = sorted(tmp_path.rglob("*"))
    answer = site.execute(wire.TRAIN_TASK, wire.to_shareable(models, asked), where, Signal())
    assert content(answer) == {"schema": wire.SCHEMA, "error": "payload"} and not from_shareable(answer).data
    assert why in caplog.text and sorted(tmp_path.rglob("*")) == folders
    honest = {**asked, "candidate": "fedavg", "split": "validation"}
    answer = site.execute(wire.TRAIN_TASK, wire.to_shareable(models, honest), where, Signal())
    assert list(content(answer)["results"]) == ["p0"]


# ---- Hostile sites ----


def forged(change, only=lambda asked: True):
    """An attack that changes what answers to training tasks say."""

    def attack(task, asked, answer):
        if task != wire.TRAIN_TASK or not only(asked):
            return answer
        dxo = from_shareable(answer)
        change(dxo.meta[wire.META], asked)
        return dxo.update_shareable(answer)

    return attack


def draws(said, asked):
    for own in said["results"].values():
        if "bootstrap" in own:
            own["bootstrap"]["draw"] = (own["bootstrap"]["draw"] + len(asked["candidate"])) % 2**16


def set_huge_bootstrap(said, asked):
    for own in said["results"].values():
        if "bootstrap" in own:
            own["bootstrap"]["values"] = {"served_accuracy": [1e300] * 50}


def none(said, asked):
    for own in said["results"].values():
        own.get("bootstrap", {}).update(values={})


ATTACKS = {
    "another candidate's": (lambda said, asked: said.update(candidate="local"), "fedavg"),
    "another split's": (lambda said, asked: said.update(split="test" if said["split"] == "validation" else 0), "local"),
    "no candidate's": (lambda said, asked: said.pop("candidate"), "local"),
    "other draws": (draws, "fedavg"),
    "huge values": (set_huge_bootstrap, "local"),
    "no draws": (none, "local"),
    "a list": (lambda said, asked: said.update(results=[1]), "local"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_lying_site_is_out_of_what_it_lies_about_and_the_study_goes_on(tmp_path, attack):
    change, liar_of = ATTACKS[attack]
    job = Bench(tmp_path / "job", forged(change)).play(rungs=1, num_rounds=2)
    assert not job.panics
    verdict = load_study(job.results)["verdict"]
    assert {one["name"] for one in verdict["hospitals"]} | THEIRS == {f"p{i}" for i in range(6)}
    pairs = {(one["one"], one["other"]): one["found"]["hospitals"] for one in verdict["compared"]}
    assert pairs and all(hospitals == 4 for (one, other), hospitals in pairs.items() if liar_of in (one, other))
    assert np.isfinite(list(verdict["tested"].values())).all()


@pytest.mark.parametrize(
    "own",
    [None, 1, {}, {"validation": 1}, *({"validation": count, "test": 9} for count in (-1, 10**12, True, "9", 1.5))],
)
def test_a_check_in_without_true_counts_leaves_the_site_out(tmp_path, own):
    def attack(task, asked, answer):
        if task != wire.CHECK_TASK:
            return answer
        dxo = from_shareable(answer)
        said = dxo.meta[wire.META]
        said["splits"] = own and {**said["splits"], "p2": own}
        return dxo.update_shareable(answer)

    job = Bench(tmp_path / "job", attack).play(rungs=1, num_rounds=2)
    assert not job.panics and set(job.controller.left_out) == {HOSTILE}
    assert {one["name"] for one in load_study(job.results)["verdict"]["hospitals"]} == {"p0", "p1", "p4", "p5"}


def test_all_figures_are_over_hospitals_that_measured_all(tmp_path):
    """A site with two of six hospitals fails for one candidate: the table and each comparison leave the two out."""

    def attack(task, asked, answer):
        failed = asked.get("candidate") == "fedavg-bias"
        return wire.to_shareable({}, {"error": "memory"}) if failed else answer

    job = Bench(tmp_path / "job", attack).play(rungs=1, num_rounds=2)
    whole = Bench(tmp_path / "whole").play(rungs=1, num_rounds=2, run_name="whole")
    assert not job.panics
    ours, theirs = (load_study(one.results) for one in (job, whole))
    assert ours["verdict"]["tested"]["fedavg"] != theirs["verdict"]["tested"]["fedavg"]
    assert {one["found"]["hospitals"] for one in ours["verdict"]["compared"]} == {4}
    assert {one["name"] for one in ours["verdict"]["hospitals"]} == {f"p{i}" for i in range(6)} - THEIRS
    # Means that are ranked are over the hospitals that measured all.
    means = ours["rungs"][0]["means"]
    assert means["fedavg"] != theirs["rungs"][0]["means"]["fedavg"]


def test_a_candidate_that_nobody_can_train_is_dropped(tmp_path, monkeypatch):
    usual = Bench._send

    def without(self, task, fl_ctx, targets, *more):
        if task.data["DXO"]["meta"]["cfl"].get("candidate") != "wecfl-k2":
            usual(self, task, fl_ctx, targets, *more)

    monkeypatch.setattr(Bench, "_send", without)
    job = Bench(tmp_path / "job").play(rungs=1, num_rounds=2)
    assert not job.panics
    assert "it failed: 2 rounds in a row had fewer than" in load_study(job.results)["rungs"][0]["dropped"]["wecfl-k2"]


def test_a_site_that_connects_late_takes_part_from_the_next_round_on(tmp_path):
    own = {"participants": None, "partition": None}  # each site is one hospital
    job = Bench(tmp_path / "job", late="site-3").play(rungs=1, num_rounds=3, **own)
    assert not job.panics
    run = load_run(job.results / "local")
    assert [sorted(one["trained"]) for one in run.rounds] == [["site-1", "site-2"]] * 2 + [list(SITES)]
    assert [len(one["trained"]) for one in load_run(job.results / "fedavg").rounds] == [3, 3, 3]
    verdict = load_study(job.results)["verdict"]
    assert [one["name"] for one in verdict["hospitals"]] == list(SITES)


# ---- Real sites ----


def test_each_candidate_has_the_floors_of_real_sites(tmp_path):
    job = Bench(tmp_path / "job", real=True).play(rungs=1, num_rounds=2)
    assert not job.panics
    asked = {}
    for name in load_study(job.results)["rungs"][0]["means"]:
        run = load_run(job.results / name)
        asked[name] = [run.summary["run"][key] for key in ("min_sites_per_cluster", "merge_small_clusters")]
        assert run.summary["run"]["max_weight_share"] == 1 / 3
        clusters: dict[int, set[str]] = {}
        for person in run.summary["participants"]:
            clusters.setdefault(person["cluster"], set()).add(person["site"])
        held = {person for line in run.rounds for person in line.get("held_back", ())}
        small = {k for k, sites in clusters.items() if len(sites) < 3}
        given = name.startswith("random")  # groups that are given are not filled up, but held back
        assert not small or given
        assert all(p["name"] in held for p in run.summary["participants"] if p["cluster"] in small)
    assert set(map(tuple, asked.values())) == {(3, True)}


def test_no_site_decides_a_study_by_the_samples_that_it_claims(tmp_path):
    def attack(task, asked, answer):
        dxo = from_shareable(answer)
        said = dxo.meta[wire.META]
        for one in (*said.get("participants", []), *said.get("results", {}).values()):
            one.update({"samples": 10**9} if "samples" in one else {})
        for own in said.get("results", {}).values():
            own["metrics"].update({"served_accuracy": 1.0} if "served_accuracy" in own["metrics"] else {})
        return dxo.update_shareable(answer)

    job = Bench(tmp_path / "job", attack, real=True).play(rungs=1, num_rounds=2)
    assert not job.panics
    assert max(load_study(job.results)["rungs"][0]["means"].values()) < 0.7  # a third of it is a lie


# ---- Resuming ----


@pytest.mark.parametrize("name", ["study", "again"])
def test_a_resumed_study_ends_as_if_it_had_not_stopped(tmp_path, name):
    whole = Bench(tmp_path / "whole").play(rungs=2, run_name="whole")
    first = Bench(tmp_path / "first").play(rungs=2, minutes=1e-9)
    assert load_study(first.results)["verdict"]["rounds"] == 2
    later = Bench(tmp_path / "later").play(rungs=2, run_name=name, resume_from="study")
    assert not later.panics
    assert_same_studies(later.results, whole.results)
    rounds = {content(said)["round"] for task, _, _, _, said in later.sent if task == wire.TRAIN_TASK}
    assert rounds == {2, 3, 4} and "number-of-clusters" not in {one[2] for one in later.sent}
    done = Bench(tmp_path / "done").play(rungs=2, run_name=name, resume_from=name)
    assert not done.sent and not done.panics  # nothing is left to do
    assert_same_studies(done.results, whole.results)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.95])
def test_an_aborted_study_goes_on_where_it_was(tmp_path, share):
    whole = Bench(tmp_path / "whole").play(rungs=2, run_name="whole")
    first, stop = Bench(tmp_path / "first"), int(share * len(whole.sent))

    def attack(task, asked, answer):
        if len(first.sent) >= stop:
            first.signal.trigger("aborted")
        return answer

    first.attack = attack
    first.play(rungs=2)
    assert first.signal.triggered and len(first.sent) < stop + 6 and not first.panics
    later = Bench(tmp_path / "later").play(rungs=2, resume_from="study")
    assert not later.panics
    assert_same_studies(later.results, whole.results)


def test_a_study_is_resumed_with_its_own_classes(tmp_path, monkeypatch):
    def play_with(*names, **settings):
        monkeypatch.setattr("cfl_flare.flare.executor.names_to_state", lambda *of_site: names)
        return Bench(tmp_path / f"{names[0]}{len(settings)}").play(rungs=2, minutes=1e-9, **settings)

    assert not play_with("a", "b").panics
    (panic,) = play_with("b", "a", resume_from="study").panics
    both = "sites number their classes differently: [b, a] at site-1, site-2, site-3: none numbers them [a, b]"
    assert f"run: {both} as this run" in panic
    assert not play_with("a", "b", resume_from="study").panics


def test_a_study_of_the_same_name_begins_anew_and_keeps_the_old_one(tmp_path, state_root):
    for folder in ("first", "second"):
        job = Bench(tmp_path / folder).play(rungs=1, num_rounds=2)
        assert not job.panics
    assert (state_root / "study" / "server" / "previous" / "study.json").is_file()
    assert_same_studies(tmp_path / "first" / "server" / "job" / "cfl", job.results)


def test_only_the_same_study_is_resumed(tmp_path, state_root):
    (panic,) = Bench(tmp_path / "none").play(resume_from="study").panics
    assert "holds no study: there is no study.json" in panic
    Bench(tmp_path / "first").play(rungs=2, minutes=1e-9)
    before = {path: path.read_bytes() for path in state_root.rglob("*") if path.is_file()}
    (panic,) = Bench(tmp_path / "other").play(rungs=2, resume_from="study", seed=1).panics
    assert "resume_from = 'study' is of a study with other settings (data, run); give the same ones" in panic
    (panic,) = Bench(tmp_path / "more").play(rungs=3, resume_from="study", run_name="new").panics
    assert "other settings (study)" in panic
    assert before == {path: path.read_bytes() for path in state_root.rglob("*") if path.is_file()}


# ---- Several methods ----


FEDAVG = {"method": "fedavg"}


@pytest.mark.parametrize("name", ["../local", "a/b", "", "/etc", 7, None])
def test_a_run_s_name_is_a_folder_s(name):
    with pytest.raises(ConfigError, match="the name of a run"):
        candidates_of([{"name": name, "method": FEDAVG}], None)


def test_two_runs_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two runs are called 'a'"):
        candidates_of([{"name": "a", "method": FEDAVG}, {"name": "a", "method": {"method": "local"}}], None)


@pytest.mark.parametrize("name", ["b", "../a", None, ["a"], {"a": 1}])
def test_a_site_trains_no_run_that_the_job_does_not_have(name):
    executor = SeveralExecutor(model={}, source={}, data={}, training={}, run_name="run")
    executor._known, executor._runs = candidates_of([{"name": "a", "method": FEDAVG}], None), {"a": "the run of a"}
    assert executor._run_of({CANDIDATE: "a"}, None, None) == ("the run of a", {CANDIDATE: "a"})
    with pytest.raises(PayloadError, match="this job has no candidate"):
        executor._run_of({CANDIDATE: name}, None, None)


def test_a_prepared_kit_does_not_allow_it():
    assert not [name for name in CLASSES if "several" in name]


@pytest.mark.slow
def test_methods_of_one_command_are_one_job_with_the_numbers_of_the_loop(tmp_path: Path) -> None:
    options = ["--method", "fedavg", "--method", "ditto", "--method", "wecfl:k=2", "--participants", "6"]
    options += ["--partition", "label_permutation:groups=2", "--rounds", "2", "--private", "bias"]
    assert main(["run", *options, "--out", str(tmp_path / "flare")]) == 0
    assert main(["run", "--loop", *options, "--out", str(tmp_path / "loop")]) == 0
    assert [path.name for path in (tmp_path / "flare" / "flare").iterdir() if path.name != "cfl_state"] == ["several"]
    for name in ("fedavg", "ditto", "wecfl-k2"):
        folder, alone = tmp_path / "flare" / name, tmp_path / "loop" / name
        through, inside = load_run(folder), load_run(alone)
        assert through.summary["final"].keys() == inside.summary["final"].keys()
        for kind in ("served_accuracy", "served_macro_f1", "served_loss"):
            assert through.summary["final"][kind] == inside.summary["final"][kind]
        assert (folder / "assignments.jsonl").read_text().count("\n") == 12
        lines = [[json.loads(x) for x in (f / "assignments.jsonl").read_text().splitlines()] for f in (folder, alone)]
        assert [x["cluster"] for x in lines[0]] == [x["cluster"] for x in lines[1]]
        assert sorted(p.name for p in (folder / "served").iterdir()) == sorted(
            p.name for p in (alone / "served").iterdir()
        )
