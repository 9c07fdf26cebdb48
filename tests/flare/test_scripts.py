# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Rounds with training scripts: what they are sent, what they must report, what they choose. No FLARE process runs."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import nvflare.client as flare
import pytest
import torch
from nvflare.apis.dxo import MetaKey
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fedprox_utils import get_fedprox_mu

import cfl_flare.client
from cfl_flare.clustering.floor import Floor
from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout
from cfl_flare.data import Digits
from cfl_flare.engine.min_cluster_size import census_of
from cfl_flare.engine.plan import AssignSettings
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.flare.client_api.cfl_launcher import NOT_MEASURED
from cfl_flare.flare.client_api.controller import EVALUATE, TRAIN, Scripts
from cfl_flare.flare.client_api.results import usable
from cfl_flare.flare.client_api.rules import check_script, evaluates, fedprox_mu
from cfl_flare.methods import (
    CAM,
    CFL,
    FLHC,
    IFCA,
    CLoVE,
    Contrastive,
    FedAvg,
    FedGroup,
    FedProx,
    FeSEM,
    Finetune,
    Groups,
    KnowledgeSharing,
    Local,
    Method,
    Participant,
    Proximal,
    WeCFL,
)
from cfl_flare.models import MLP
from tests.helpers.play import exchanged
from tests.helpers.tiny import LAYOUT, Coin, initial

Script = Callable[[str, str, FLModel], FLModel]
GOALS = {"a": (4.0, 0.0), "b": (4.0, 0.0), "c": (0.0, 8.0)}


def obedient(site: str, task: str, model: FLModel) -> FLModel:
    """Goes straight to its goal; its loss is how far it is."""
    assert model.params is not None
    here = model.params["head.weight"]
    goal = np.array(GOALS[site], np.float32).reshape(2, 1)
    metrics = {"loss": float(np.square(here - goal).sum()), "accuracy": 0.5}
    if task == EVALUATE:
        return FLModel(metrics=metrics)
    return FLModel(ParamsType.FULL, {"head.weight": goal}, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": 2})


class Play:
    """A server and its scripts, in one process."""

    def __init__(
        self,
        method: Method,
        script: Script = obedient,
        assign: AssignSettings | None = None,
        names: Iterable[str] = tuple(GOALS),
        **settings,
    ):
        people = [Participant(name, name, 1) for name in names]
        run = ServerSettings(**{"num_rounds": 3, **settings})
        self.server = Server(method, LAYOUT, people, run, method.start(initial))
        self.script, self.warned, self.asked = script, [], []
        self.scripts = Scripts(self.server, assign or AssignSettings(), self.exchange, self.warned.append, {})

    def exchange(self, task: str, data: Mapping[str, FLModel], on_answer: Callable[[FLModel], bool]) -> bool:
        for site, model in data.items():
            self.asked.append((site, task))
            answer = self.script(site, task, model)
            answer.meta = {**(answer.meta or {}), "client_name": site}
            on_answer(answer)
        return True

    def round(self) -> dict:
        assert exchanged(self.scripts, self.server)
        self.server.finish_round()
        return self.server.progress.record or {}

    def bank(self, slot: str) -> list[float]:
        return self.server.state.bank[slot].vector.tolist()


def test_groups_are_found_from_what_scripts_send():
    play = Play(WeCFL(k=2))
    play.round()
    assert play.server.state.assignment == {"a": 0, "b": 0, "c": 1}
    assert (play.bank("cluster-0"), play.bank("cluster-1")) == ([4, 0], [0, 8])
    assert play.asked == [("a", TRAIN), ("b", TRAIN), ("c", TRAIN)]
    assert not play.warned


@pytest.mark.parametrize("kind", [ParamsType.FULL, ParamsType.DIFF])
def test_the_whole_model_or_its_difference(kind):
    def script(site: str, task: str, model: FLModel) -> FLModel:
        diff = np.array([[1.0], [2.0]], np.float32)
        sent = model.params["head.weight"]
        return FLModel(kind, {"head.weight": diff if kind == ParamsType.DIFF else sent + diff}, meta={"x": 1})

    play = Play(FedAvg(), script)
    play.round()
    play.round()
    assert play.bank("global") == [2, 4]


@pytest.mark.parametrize("unit", [1, 0.25, np.float32(128.5), 1e-3])
def test_steps_are_weights_whole_or_not(unit):
    """A script may count samples, steps or shares: what matters is their ratio."""
    steps = {"a": unit, "b": unit, "c": 6 * unit}

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        return FLModel(ParamsType.FULL, answer.params, meta={"NUM_STEPS_CURRENT_ROUND": steps[site]})

    play = Play(FedAvg(), script, min_sites_per_cluster=2, hold_small_clusters=True)
    assert "held_back" not in play.round()
    assert play.bank("global") == [1, 6]  # (4 + 4) / 8, 6 * 8 / 8
    assert play.server.participants["c"].samples == pytest.approx(6 * unit)
    play = Play(WeCFL(k=2), script, min_sites_per_cluster=1, hold_small_clusters=None)
    assert not play.round().get("small_clusters") and play.server.state.assignment == {"a": 0, "b": 0, "c": 1}
    assert census_of(play.server.participants.values(), Floor(1, 1)).clusters == 3


def stating(names: Mapping[str, list[str]]) -> Script:
    """A script that states names of classes at some sites."""

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.meta = {**(answer.meta or {}), **({"classes": names[site]} if site in names else {})}
        return answer

    return script


@pytest.mark.parametrize("other", [{}, {"c": ["b", "a"]}, {"c": ["a\n"]}])
def test_a_script_that_numbers_classes_differently_is_left_out(other):
    play = Play(FedAvg(), stating({"a": ["a", "b"], "b": ["a", "b"], **other}))
    play.round()
    play.round()
    if not other:  # who states nothing is not compared
        assert play.bank("global") == pytest.approx([8 / 3, 8 / 3])
        return
    assert play.bank("global") == [4, 0]
    assert play.server.progress.rejected.keys() <= {"classes", "malformed"}
    assert play.server.progress.rejected.total() == 2


def test_two_scripts_that_disagree_end_the_job():
    play = Play(FedAvg(), stating({"a": ["a", "b"], "c": ["b", "a"]}))
    with pytest.raises(ConfigError, match=r"differently: \[a, b\] at a; \[b, a\] at c"):
        play.round()


def test_what_a_script_leaves_out_is_said_once_and_has_a_meaning():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        weight = np.array(GOALS[site], np.float16).reshape(2, 1)
        return FLModel(ParamsType.FULL, {"head.weight": weight, "aux": np.zeros(3)}, metrics={"accuracy": "high"})

    play = Play(FedAvg(), script)
    play.round()
    play.round()
    assert play.bank("global") == pytest.approx([8 / 3, 8 / 3])
    said = [text for text in play.warned if text.startswith("a ")]
    assert said == [
        "a reports no number of steps: it counts as 1; add meta={'NUM_STEPS_CURRENT_ROUND': steps}",
        "a sends 'aux', which the job's model does not have: left out (1 in all)",
        "a sends float16: kept as float32, whole counts as int64",
        "a reports accuracy = 'high', which is not a finite number: left out",
    ]
    assert len(play.warned) == 3 * len(said)


def test_frozen_layers_that_stay_away_are_unchanged():
    layout = Layout.of(MLP((1, 2, 2), 2, hidden=()))
    weight, bias = (e.name for e in layout.entries)
    method = FedAvg()
    ones = layout.pack({e.name: np.ones(e.shape) for e in layout.entries})
    play = Play(method, lambda site, task, model: FLModel(ParamsType.FULL, {bias: model.params[bias] + 1}))
    state = method.start(lambda i: ones)
    play.server = Server(method, layout, [Participant("a", "a", 1)], ServerSettings(2), state)
    play.scripts = Scripts(play.server, AssignSettings(), play.exchange, play.warned.append, {})
    play.round()
    after = play.server.state.bank["global"].arrays()
    assert (after[bias] == 2).all() and (after[weight] == 1).all()
    assert f"a does not send {weight!r}: taken as unchanged (1 in all)" in play.warned


@pytest.mark.parametrize(
    "answer, code",
    [
        (FLModel(metrics={"accuracy": 1.0}), "no_update"),
        (FLModel(ParamsType.FULL, {"module.head.weight": np.zeros((2, 1))}), "names"),
        (FLModel(ParamsType.FULL, {"head.weight": np.zeros((1, 2))}), "shape"),
        (FLModel(ParamsType.FULL, {"head.weight": np.full((2, 1), np.nan)}), "non_finite"),
        (FLModel(ParamsType.FULL, {"head.weight": np.zeros((2, 1))}, meta={"NUM_STEPS_CURRENT_ROUND": 0.0}), "samples"),
        (FLModel(ParamsType.FULL, {"head.weight": np.zeros((2, 1))}, meta={"NUM_STEPS_CURRENT_ROUND": -1}), "samples"),
    ],
)
def test_a_bad_answer_is_left_out_and_the_others_count(answer, code):
    play = Play(FedAvg(), lambda site, task, model: answer if site == "c" else obedient(site, task, model))
    record = play.round()
    assert record["failed"]["c"].startswith(f"{code}: ")
    assert play.bank("global") == [4, 0]
    assert any("c: result refused" in text for text in play.warned)


def newton(site: str, task: str, model: FLModel) -> FLModel:
    return FLModel(ParamsType.FULL, {"gradient": np.zeros((2, 1)), "hessian": np.eye(2)})


@pytest.mark.parametrize("wrong", [("a", "b"), ("a", "b", "c")])
def test_scripts_that_send_no_model_end_the_job_after_a_round(wrong):
    play = Play(FedAvg(), lambda site, task, model: (newton if site in wrong else obedient)(site, task, model))
    says = rf"at {len(wrong)} of 3 sites: a: it sends 'gradient', 'hessian', .* it has 'head.weight'\. A script sends"
    with pytest.raises(ConfigError, match=says):
        exchanged(play.scripts, play.server)


def test_they_end_no_job_that_has_begun_well():
    play = Play(FedAvg())
    play.round()
    play.script = newton
    assert play.round()["trained"] == []


STEPS = "NUM_STEPS_CURRENT_ROUND"


@pytest.mark.parametrize(
    "changes, code",
    [
        ({"meta": {STEPS: 10**12}}, "samples"),
        ({"meta": {STEPS: "9"}}, "samples"),
        ({"meta": {STEPS: float("nan")}}, "samples"),
        ({"meta": {STEPS: [2]}}, "samples"),
        ({"meta": {STEPS: True}}, "samples"),
        ({"meta": {STEPS: 1e308}}, "samples"),
        ({"meta": {STEPS: 1e-300}}, "samples"),
        ({"meta": {STEPS: np.float64("inf")}}, "samples"),
        ({"params": {"head.weight": [[1.0], [2.0]]}}, "kind"),
        ({"params": {"head.weight": {"a": 1}}}, "kind"),
        ({"params": {"head.weight": np.array([["x"], ["y"]])}}, "dtype"),
        ({"params": {"head.weight": np.array([[1j], [2j]])}}, "dtype"),
        ({"params": {"head.weight": np.full((2, 1), 3e38)}}, "too_large"),
        ({"params": {5: np.zeros((2, 1))}}, "kind"),
        ({"params": {"\x1b[2J" * 1000: np.zeros((2, 1))}}, "names"),
    ],
)
def test_what_no_script_sends_costs_its_site_alone(changes, code):
    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        for name, value in changes.items() if site == "c" else ():
            setattr(answer, name, value)
        return answer

    play = Play(FedAvg(), script)
    record = play.round()
    assert set(record["failed"]) == {"c"} and record["failed"]["c"].startswith(f"{code}: ")
    assert play.bank("global") == [4, 0]
    assert all(len(text) < 700 and text.isprintable() for text in (*play.warned, record["failed"]["c"]))


def test_steps_may_vary_around_those_of_the_first_round():
    steps = iter([20, 200, 2, 201])

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.meta = {STEPS: next(steps)} if site == "c" else {STEPS: 20}
        return answer

    play = Play(FedAvg(), script, num_rounds=4)
    assert [play.round()["trained"] for _ in range(3)] == [["a", "b", "c"]] * 3
    assert play.server.participants["c"].samples == 2
    failed = play.round()["failed"]
    assert "c reports 201 steps, but 20 in its first round" in failed["c"]


def test_the_first_steps_that_count_are_those_of_a_good_answer():
    """One step beside a broken model, or none said, bars nobody who takes fifty."""
    said = iter([1, None, 50, 60])

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        if site == "c":
            steps = next(said)
            answer.meta = {} if steps is None else {STEPS: np.float32(steps)}
            answer.params = {"head.weight": np.full((2, 1), np.nan if steps == 1 else 8.0)}
        return answer

    play = Play(FedAvg(), script, num_rounds=4)
    assert [play.round()["trained"] for _ in range(4)] == [["a", "b"], *[["a", "b", "c"]] * 3]
    assert play.server.participants["c"].samples == 60


def test_who_no_longer_says_how_many_steps_it_took_is_refused():
    said = iter([50, None])

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        steps = next(said) if site == "c" else 2
        answer.meta = {} if steps is None else {STEPS: steps}
        return answer

    play = Play(FedAvg(), script)
    assert play.round()["failed"] == {}
    assert "c reports 1 steps, but 50 in its first round" in play.round()["failed"]["c"]


def test_one_of_three_sites_decides_neither_the_metric_nor_the_end():
    """The others report nothing."""

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.metrics = {"dice": 0.9 - 0.1 * model.current_round} if site == "c" else {}
        return answer

    play = Play(FedAvg(), script, num_rounds=6, key_metric="dice", patience=2)
    for _ in range(6):
        play.round()
    assert play.server.progress.stopped is None and play.server.progress.best is None
    assert play.server.progress.metric is None


def test_metrics_of_a_script_are_finite_numbers_with_short_names_that_a_run_does_not_use():
    names = [
        "val/acc_epoch",
        "accuracy",
        "cluster-0/accuracy",
        "ari",
        "worst_accuracy",
        "bottom_dice",
        "loss_unweighted",
        "cluster",
        "a b",
        "\x1b[31m",
        "x" * 99,
        7,
    ]

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.metrics = {**dict.fromkeys(names, 0.5), "huge": 1e300, "more": [1]} if site == "c" else {"accuracy": 0.5}
        return answer

    play = Play(FedAvg(), script)
    play.round()
    exchanged(play.scripts, play.server)
    measured = play.server.finish_round()
    assert measured.participants["c"] == {"served_val/acc_epoch": 0.5, "served_accuracy": 0.5}
    assert any("c reports 'cluster-0/accuracy', which is no name for a metric" in text for text in play.warned)
    assert measured.record["round"] == 0 and isinstance(measured.record["trained"], list)
    many = {f"m{i}": 1.0 for i in range(1000)}
    assert len(usable(many)) == 64
    assert (
        sum("more = [1]" in text for text in play.warned) == sum("huge = 1e+300" in text for text in play.warned) == 1
    )


def test_an_odd_metric_is_named_once_though_its_value_changes():
    values = iter(range(100))

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.metrics = {"accuracy": 0.5, "confusion": [next(values)], "note": f"{next(values)}"}
        return answer

    play = Play(FedAvg(), script)
    for _ in range(3):
        play.round()
    for name in ("confusion", "note"):
        assert sum(f"a reports {name} = " in text for text in play.warned) == 1


def test_tensors_of_one_value_are_numbers_and_a_trainer_s_own_notes_are_no_metrics():
    """As Hugging Face's ``trainer.evaluate()`` gives them, and scripts that forget ``.item()``."""
    reported: dict = {
        "accuracy": torch.tensor(0.5),
        "dice": torch.tensor([0.25], dtype=torch.bfloat16),
        "auc": np.float32(0.75),
        "eval_loss": np.array(1.5),
        "matrix": torch.ones(2, 2),
        "bad": torch.tensor(float("nan")),
        "complex": torch.tensor(1j),
    }
    notes = ("eval_runtime", "eval_samples_per_second", "eval_steps_per_second", "epoch", "num_tokens")
    metrics = {**reported, **dict.fromkeys(notes, 1.0)}
    assert usable(metrics) == {"accuracy": 0.5, "dice": 0.25, "auc": 0.75, "eval_loss": 1.5}

    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.metrics = metrics
        return answer

    play = Play(FedAvg(), script)
    play.round()
    exchanged(play.scripts, play.server)
    assert "served_eval_loss" in play.server.finish_round().participants["a"]
    assert not any(note in text for text in play.warned for note in notes)
    assert any("matrix" in text for text in play.warned)


def test_one_site_s_script_ends_no_job():
    """Of three, one trains when it is asked to evaluate, or seems to train in between."""

    def probed(site: str, task: str, model: FLModel) -> FLModel:
        return FLModel(ParamsType.FULL, {"head.weight": np.zeros((2, 1))}) if site == "c" else nudged(site, task, model)

    play = Play(IFCA(k=2), probed)
    assert play.scripts.probe()
    assert any("c, asked to evaluate: it trains when" in text for text in play.warned)
    asked: list[str] = []

    def silent_once(site: str, task: str, model: FLModel) -> FLModel:
        answer = nudged(site, task, model)
        if site == "c" and task == TRAIN:
            asked.append(site)
            answer.metrics = None if len(asked) == 1 else answer.metrics
        return answer

    play = Play(IFCA(k=2), silent_once)
    assert exchanged(play.scripts, play.server) and len(asked) == 2
    assert any("c seems to train on models that it should only evaluate" in text for text in play.warned)


def test_a_model_that_comes_back_as_it_was_is_remarked_on():
    play = Play(FedAvg(), lambda site, task, model: FLModel(ParamsType.FULL, dict(model.params or {})))
    play.round()
    assert "b sends the model back as it was: does the script train a copy of what it received?" in play.warned


def test_a_privacy_filter_on_whole_models_is_refused_and_one_that_leaves_names_out_is_not():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        answer.meta = {MetaKey.FILTER_HISTORY: {"a": ["ExcludeVars"], "b": ["SVTPrivacy"], "c": None}[site]}
        return answer

    record = Play(FedAvg(), script).round()
    assert record["trained"] == ["a", "c"]
    assert "filtered: the site's filter SVTPrivacy acts on differences" in record["failed"]["b"]


def test_a_model_that_a_site_s_filter_has_encrypted_is_refused():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        if site == "b":
            answer.params = {"head.weight": b"ciphertext"}
            answer.meta[MetaKey.PROCESSED_ALGORITHM] = "TENSEAL_CKKS"
        return answer

    record = Play(FedAvg(), script).round()
    assert record["trained"] == ["a", "c"]
    assert "encrypted: a filter of the site has changed its model by 'TENSEAL_CKKS'" in record["failed"]["b"]


def test_what_a_site_s_filter_took_away_counts_in_no_mean():
    layout = Layout.of(MLP((1, 2, 2), 2, hidden=()))
    weight, bias = (e.name for e in layout.entries)
    method = FedAvg()
    zeros = layout.pack({e.name: np.zeros(e.shape) for e in layout.entries})

    def script(site: str, task: str, model: FLModel) -> FLModel:
        moved = {name: array + 2 for name, array in (model.params or {}).items() if (site, name) != ("a", weight)}
        return FLModel(ParamsType.FULL, moved, meta={MetaKey.FILTER_HISTORY: ["ExcludeVars"]} if site == "a" else {})

    play = Play(method, script)
    people = [Participant(name, name, 1) for name in "ab"]
    play.server = Server(method, layout, people, ServerSettings(1), method.start(lambda i: zeros))
    play.scripts = Scripts(play.server, AssignSettings(), play.exchange, play.warned.append, {})
    play.round()
    after = play.server.state.bank["global"].arrays()
    assert (after[weight] == 2).all() and (after[bias] == 2).all()  # of b alone; of both


@pytest.mark.parametrize(
    "method",
    [
        FeSEM(k=2),
        WeCFL(k=2, clustering_rounds=1),
        CFL(eps1=9, eps2=5),
        FLHC(k=2, rounds_before=1),
        FedGroup(k=2),
    ],
    ids=lambda m: m.name,
)
def test_every_method_that_clusters_on_the_server(method):
    play = Play(method)
    check_script(__file__, method, {})
    records = [play.round() for _ in range(3)]
    assert not any(record["failed"] for record in records)
    clusters = play.server.state.assignment
    assert clusters["a"] == clusters["b"] != clusters["c"]
    assert (play.bank(f"cluster-{clusters['a']}"), play.bank(f"cluster-{clusters['c']}")) == ([4, 0], [0, 8])


def test_metrics_are_of_the_model_that_was_sent():
    play = Play(FedAvg(), assign=AssignSettings(evaluates=True), num_rounds=1)
    play.round()
    assert exchanged(play.scripts, play.server)
    measured = play.server.finish_round()
    assert measured is not None and measured.record["served_accuracy"] == 0.5
    assert play.asked[-3:] == [("a", EVALUATE), ("b", EVALUATE), ("c", EVALUATE)]


def test_a_script_that_is_not_seen_to_evaluate_is_not_asked_to():
    """It would train once more: with a sample of one, in each round; and after the last round."""
    play = Play(FedAvg(), num_rounds=3, sample=1)
    for _ in range(3):
        play.round()
    assert exchanged(play.scripts, play.server)
    measured = play.server.finish_round()
    assert [task for _, task in play.asked] == [TRAIN] * 3
    assert measured is not None and "served_accuracy" not in measured.record
    assert any("the last models are not measured at a, b, c (3 in all)" in text for text in play.warned)


def test_who_trains_when_it_is_asked_to_evaluate_is_not_asked_again():
    """Its source says that it evaluates, and b's does not: b is asked once, of three rounds in which others train."""

    def script(site: str, task: str, model: FLModel) -> FLModel:
        return obedient(site, TRAIN if site == "b" else task, model)

    play = Play(FedAvg(), script, AssignSettings(evaluates=True), num_rounds=8, sample=1)
    for _ in range(8):
        play.round()
    assert exchanged(play.scripts, play.server)
    measured = play.server.finish_round()
    assert play.asked.count(("b", EVALUATE)) == 1 and play.asked.count(("a", EVALUATE)) > 3
    assert measured is not None and set(measured.participants) == {"a", "c"}


def test_in_ifca_who_trained_in_the_probe_is_left_out_and_never_asked_to_evaluate_again():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        return nudged(site, TRAIN if site == "c" else task, model)

    play = Play(IFCA(k=2), script)
    assert play.scripts.probe()
    record = play.round()
    assert record["failed"] == {"c": "it trains when it is asked to evaluate"}
    assert [asked for asked in play.asked if asked[0] == "c"] == [("c", EVALUATE)]


@pytest.mark.parametrize(
    "text, found",
    [
        ("import nvflare.client as flare\nif flare.is_evaluate():\n    pass\n", True),
        ("from nvflare.client import is_evaluate\nonly = is_evaluate()\n", True),
        ("import nvflare.client.lightning as flare\nflare.patch(trainer)\ntrainer.validate(model)\n", True),
        ("import nvflare.client.lightning as flare\nflare.patch(trainer)\ntrainer.fit(model)\n", False),
        ("import nvflare.client.hf as flare\nflare.patch(trainer)\ntrainer.evaluate()\ntrainer.train()\n", True),
        ("import nvflare.client.hf as flare\nflare.patch(trainer)\ntrainer.train()\n", False),
        ("# is_evaluate() is for others\nimport nvflare.client as flare\nflare.send('is_evaluate()')\n", False),
        ("def broken(:\n", False),
    ],
)
def test_what_a_script_s_source_says_of_evaluation(text, found, tmp_path):
    script = client(tmp_path, text)
    assert evaluates(script) is found
    if not found:
        with pytest.raises(
            ConfigError, match=r"(?s)cross_site_evaluation: train_script = .* does not evaluate.*is_eval"
        ):
            check_script(script, FedAvg(), {}, measures_all=True)


def nudged(site: str, task: str, model: FLModel) -> FLModel:
    """As obedient, with a step of one."""
    answer = obedient(site, task, model)
    if task == TRAIN:
        answer.params = {"head.weight": model.params["head.weight"] + 1}
    return answer


def test_participants_choose_by_the_loss_that_their_script_reports():
    """Models (0, 0) and (1, -1): a and b are nearer to (4, 0) from (1, -1), c to (0, 8) from (0, 0)."""
    play = Play(IFCA(k=2), nudged)
    play.round()
    assert play.server.state.assignment == {"a": 1, "b": 1, "c": 0}
    assert (play.bank("cluster-0"), play.bank("cluster-1")) == ([1, 1], [2, 0])
    assert play.asked[:3] == [("a", EVALUATE), ("b", EVALUATE), ("c", EVALUATE)]
    assert play.asked[6:] == [("a", TRAIN), ("b", TRAIN), ("c", TRAIN)]


def test_the_largest_may_be_best_and_equals_go_to_the_first():
    play = Play(IFCA(k=2), nudged, AssignSettings("loss", "max"))
    play.round()
    assert play.server.state.assignment == {"a": 0, "b": 0, "c": 1}
    assert AssignSettings().best({"cluster-0": 1.0, "cluster-1": 1.0}) == "cluster-0"
    found = {"cluster-0": 1.0, "cluster-1": 2.0}  # the name says which end is best
    assert [AssignSettings(name).best(found)[-1] for name in ("accuracy", "val_loss")] == ["1", "0"]
    with pytest.raises(ConfigError, match="assign_metric = 'gap' does not say by its name which end is best"):
        AssignSettings("gap")
    assert AssignSettings("accuracy", "min").best(found) == "cluster-0"


def test_they_may_choose_every_few_rounds_only():
    play = Play(IFCA(k=2), nudged, AssignSettings(every=2))
    play.round()
    before = len(play.asked)
    play.round()
    assert [task for _, task in play.asked[before:]] == [TRAIN] * 3
    assert play.server.state.assignment == {"a": 1, "b": 1, "c": 0}


def test_after_the_last_round_the_choice_is_the_measurement():
    play = Play(IFCA(k=2), nudged, num_rounds=1)
    play.round()
    before = len(play.asked)
    assert exchanged(play.scripts, play.server)
    measured = play.server.finish_round()
    assert [task for _, task in play.asked[before:]] == [EVALUATE] * 6
    assert measured is not None and measured.record["served_accuracy"] == 0.5


def test_who_reports_no_loss_is_left_out_of_the_round():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = nudged(site, task, model)
        return FLModel(metrics={"accuracy": 1.0}) if site == "c" and task == EVALUATE else answer

    record = Play(IFCA(k=2), script).round()
    assert record["failed"] == {"c": "no 'loss' of cluster-0, cluster-1"}
    assert record["trained"] == ["a", "b"]


@pytest.mark.parametrize(
    "answer, problem",
    [
        (FLModel(ParamsType.FULL, {"head.weight": np.zeros((2, 1))}), "it trains when it is asked to evaluate"),
        (FLModel(metrics={"accuracy": 1.0}), "it reports no 'loss' when it is asked to evaluate, but 'accuracy'"),
        (FLModel(metrics={"loss": float("nan")}), "it reports no 'loss'"),
    ],
)
def test_the_probe_names_the_lines_to_add(answer, problem):
    play = Play(IFCA(k=2), lambda site, task, model: answer)
    with pytest.raises(
        ConfigError, match=f"(?s)at a {problem}.*Add to its loop.*if flare.is_evaluate.*trainer.validate"
    ):
        play.scripts.probe()


def test_a_warm_start_has_all_scripts_train_one_model_before_they_choose():
    play = Play(IFCA(k=2, warm_start=True))
    play.round()
    assert play.asked == [("a", TRAIN), ("b", TRAIN), ("c", TRAIN)]
    assert play.server.state.assignment == {"a": 0, "b": 0, "c": 1}
    assert (play.bank("cluster-0"), play.bank("cluster-1")) == ([4, 0], [0, 8])
    play.round()
    assert play.asked[3:] == 2 * [("a", EVALUATE), ("b", EVALUATE), ("c", EVALUATE)] + play.asked[:3]
    assert play.server.state.assignment == {"a": 0, "b": 0, "c": 1}


def test_the_probe_offers_to_choose_by_what_a_script_reports():
    play = Play(IFCA(k=2), lambda site, task, model: FLModel(metrics={"a": 1.0, "accuracy": 1.0}))
    with pytest.raises(ConfigError, match=r"assign_metric='accuracy', assign_mode='max'$"):
        play.scripts.probe()


def test_one_site_that_answers_the_probe_ends_no_job():
    play = Play(IFCA(k=2))
    whole = play.exchange
    play.scripts._send = lambda task, data, note: whole(task, {"c": data["c"]}, note)
    play.script = lambda site, task, model: FLModel(ParamsType.FULL, {"head.weight": np.zeros((2, 1))})
    assert play.scripts.probe()


def losing(site: str, task: str, model: FLModel) -> FLModel:
    """Of two groups of two participants; each step goes half of the way to the group's goal."""
    here, goal = (
        model.params["head.weight"],
        np.array({"a": (4.0, 0.0), "b": (0.0, -6.0)}[site[0]], np.float32)[:, None],
    )
    metrics = {"loss": float(np.square(here - goal).sum()), "closeness": -float(np.square(here - goal).sum())}
    if task == EVALUATE:
        return FLModel(metrics=metrics)
    steps = {"NUM_STEPS_CURRENT_ROUND": {"a1": 1, "a2": 3}.get(site, 2)}
    return FLModel(ParamsType.FULL, {"head.weight": (here + goal) / 2}, metrics=metrics, meta=steps)


@pytest.mark.parametrize("assign", [AssignSettings(), AssignSettings(metric="closeness", mode="max")])
def test_participants_are_clustered_by_the_losses_that_their_scripts_report(assign):
    """Models (0, 0) and (1, -1): losses are 16, 10 at a and 36, 26 at b. A's cluster takes the model nearer to it."""
    names = ("a1", "a2", "b1", "b2")
    play = Play(CLoVE(k=2), losing, assign, names, num_rounds=4)
    assert play.scripts.probe()
    play.asked.clear()
    play.round()
    assert (play.bank("cluster-0"), play.bank("cluster-1")) == ([0, 0], [1, -1])  # nobody trains
    assert play.asked == [(name, EVALUATE) for _ in range(2) for name in names]
    losses = {name: array.tolist() for name, array in play.server.state.arrays.items()}
    assert losses == {"a1": [16, 10], "a2": [16, 10], "b1": [36, 26], "b2": [36, 26]}
    clusters = play.server.state.assignment
    assert clusters["a1"] == clusters["a2"] != clusters["b1"] == clusters["b2"]
    before = {name: np.array(play.bank(f"cluster-{clusters[name]}")) for name in names}
    play.asked.clear()
    play.round()
    assert play.asked == [(name, TRAIN) for name in names]
    for name, goal in (("a1", (4, 0)), ("b1", (0, -6))):
        assert play.bank(f"cluster-{clusters[name]}") == pytest.approx(((before[name] + goal) / 2).tolist())
    assert exchanged(play.scripts, play.server)
    measured = play.server.finish_round()
    assert measured is not None and measured.participants.keys() == {*names}
    for name, goal in (("a1", (4, 0)), ("b1", (0, -6))):
        distance = np.array(play.bank(f"cluster-{clusters[name]}")) - goal  # it is its own cluster's that is served
        served = measured.participants[name]
        assert served["served_loss"] == pytest.approx(float(np.square(distance).sum())), served


def test_in_clove_a_script_that_does_not_report_the_loss_is_left_out_of_the_round():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        if site == "c" and abs(model.params["head.weight"]).sum():
            answer.metrics = {"accuracy": 0.5}
        return answer

    play = Play(CLoVE(k=2), script)
    assert play.round()["failed"] == {"c": "no 'loss' of cluster-1"}
    assert play.server.state.assignment.keys() == {"a", "b"}


def test_the_probe_passes_what_can_evaluate_and_asks_no_one_where_the_server_assigns():
    play = Play(IFCA(k=2))
    assert play.scripts.probe() and play.asked == [("a", EVALUATE), ("b", EVALUATE), ("c", EVALUATE)]
    play = Play(WeCFL(k=2))
    assert play.scripts.probe() and not play.asked


def client(folder: Path, text: str = "import nvflare.client as flare\n") -> str:
    (folder / "client.py").write_text(text)
    return str(folder / "client.py")


LINE = "import cfl_flare.client\nloss = loss + cfl_flare.client.penalty(model)\n"


@pytest.mark.parametrize(
    "method, message",
    [
        (CAM(base=IFCA(k=2), warmup=1), "method ifca-cam: a training script cannot do its local_update"),
        (Local(), "method local: a training script cannot do its local_update, serve"),
        (Finetune(), "method finetune: a training script cannot do its finetune"),
        (IFCA(k=2, shared_backbone=True), "method ifca: a training script cannot do"),
        (
            WeCFL(k=2, penalties=(Contrastive(on="representations"),)),
            "on = 'representations' needs the outputs of other models",
        ),
        (WeCFL(k=2, penalties=(Proximal(),)), "adds to the loss, but train_script"),
        (Groups(groups=["nl", "gr"]), "sites of a training script name no group; give each site's label"),
        (FedProx(), "add the line 'loss = loss \\+ cfl_flare.client.penalty\\(model\\)'"),
    ],
)
def test_methods_that_do_more_on_the_site_are_refused(method, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        check_script(client(tmp_path), method, {})


def test_methods_that_a_script_can_take_part_in(tmp_path):
    for method in (FedAvg(), WeCFL(k=2), FeSEM(k=2, clustering_rounds=1), IFCA(k=2), CLoVE(k=2)):
        check_script(client(tmp_path), method, {})
    for method in (FedProx(), IFCA(k=2, penalties=(Contrastive(),)), WeCFL(k=2, penalties=(KnowledgeSharing(),))):
        check_script(client(tmp_path, LINE), method, {})


def test_a_recipe_has_data_or_a_script(tmp_path):
    common = {"name": "x", "method": "fedavg", "model": MLP((1, 2, 2), 2), "num_rounds": 1, "min_clients": 1}
    with pytest.raises(ConfigError, match="neither data nor train_script is given"):
        ClusteredRecipe(**common)
    with pytest.raises(ConfigError, match=r"train_script = 'none\.py' is not a file"):
        ClusteredRecipe(**common, train_script="none.py")
    with pytest.raises(ConfigError, match="training: belongs to the script"):
        ClusteredRecipe(**common, train_script=client(tmp_path), training={"lr": 0.1})
    with pytest.raises(ConfigError, match="assign_mode = 'low' should be 'min' or 'max'"):
        ClusteredRecipe(**common, train_script=client(tmp_path), assign_mode="low")


CON_CKS = (Contrastive(mu=2, tau=0.5), KnowledgeSharing(lam=0.5, pairwise=True), Proximal(mu=3))


def receive_task(monkeypatch, play: Play, site: str) -> FLModel:
    """What a site's script has received when it trains in the coming round."""
    sent: dict[str, FLModel] = {}

    def script(name: str, task: str, model: FLModel) -> FLModel:
        if task == TRAIN:
            sent[name] = model
        return obedient(name, task, model)

    play.script = script
    play.round()
    monkeypatch.setattr(flare, "receive", lambda: sent[site])
    return sent[site]


@pytest.mark.parametrize("method", [WeCFL(k=2, penalties=CON_CKS), IFCA(k=2, penalties=CON_CKS)])
def test_the_penalty_of_a_script_is_the_method_s_own(method, monkeypatch):
    """At theta = (2, 1), in the second round; centres (4, 0) of a and b, (0, 8) of c (IFCA: the same by its picks)."""
    play = Play(method, assign=AssignSettings(penalties=True))
    play.round()
    model = receive_task(monkeypatch, play, "a")
    module = Coin()
    module.head.weight.data = torch.tensor([[2.0], [1.0]])
    value = cfl_flare.client.penalty(module)
    value.backward()
    cosines = np.array([2 / np.sqrt(5), 1 / np.sqrt(5)]) / 0.5
    contrast = -2 * (cosines[0] - np.log(np.exp(cosines).sum()))
    shared = 0.5 * 0.5 * (1 / 3) * ((2 - 0) ** 2 + (1 - 8) ** 2)
    near = 0.5 * 3 * ((2 - 4) ** 2 + (1 - 0) ** 2)
    if method.name == "wecfl":
        assert value.item() == pytest.approx(contrast + shared + near, rel=1e-5)
    assert module.head.weight.grad is not None and module.head.weight.grad.abs().sum() > 0
    assert set(model.meta["cfl_penalty"]["models"]) == ({"cluster-1"} if method.name == "wecfl" else {"cluster-0"})


def test_without_penalties_nothing_travels_and_the_term_is_zero(monkeypatch):
    play = Play(WeCFL(k=2))
    play.round()
    model = receive_task(monkeypatch, play, "a")
    assert not (model.meta or {}).get("cfl_penalty")
    assert cfl_flare.client.penalty(Coin()).item() == 0


def test_fedprox_alone_goes_as_flare_s_own_metadata(tmp_path, monkeypatch):
    """A script that looks for it there needs no line; one that has the line gets no second term."""
    flares = client(tmp_path, "import nvflare.client.lightning as flare\n")
    check_script(flares, FedProx(mu=0.5), {})
    assert fedprox_mu(flares, FedProx(mu=0.5)) == 0.5
    assert fedprox_mu(flares, WeCFL(k=2, penalties=(Proximal(mu=0.25),))) == 0.25
    for method in (FedAvg(), FedProx(penalties=(Proximal(),)), WeCFL(k=2, penalties=(Proximal(scope="head"),))):
        assert fedprox_mu(flares, method) is None
    assert fedprox_mu(client(tmp_path, LINE + "# fedprox"), FedProx()) is None
    model = receive_task(monkeypatch, Play(FedProx(mu=0.5), assign=AssignSettings(fedprox_mu=0.5)), "a")
    assert get_fedprox_mu(model) == 0.5


def test_the_file_that_makes_the_job_says_nothing_of_the_script(tmp_path):
    """It names the method fedprox; the script, and what it imports, do not."""
    (tmp_path / "job.py").write_text("recipe = ClusteredRecipe(method='fedprox', train_script='client.py')\n")
    script = client(tmp_path, "import nvflare.client as flare\nfrom helper import step\n")
    (tmp_path / "helper.py").write_text("def step():\n    pass\n")
    with pytest.raises(ConfigError, match="method fedprox adds to the loss, but train_script"):
        check_script(script, FedProx(), {})
    (tmp_path / "helper.py").write_text("from nvflare.app_common.utils.fedprox_utils import get_fedprox_mu\n")
    check_script(script, FedProx(), {})


def test_only_the_part_that_a_penalty_holds_travels(monkeypatch):
    play = Play(WeCFL(k=2, penalties=(KnowledgeSharing(lam=1),)), assign=AssignSettings(penalties=True))
    first = receive_task(monkeypatch, play, "a")
    assert first.meta["cfl_penalty"]["models"] == {}
    assert cfl_flare.client.penalty(Coin()).item() == 0  # there are no centres yet
    second = receive_task(monkeypatch, play, "a")
    assert set(second.meta["cfl_penalty"]["models"]) == {"global"}


def test_another_module_than_the_job_s_is_refused(monkeypatch):
    play = Play(FedProx(), assign=AssignSettings(penalties=True))
    receive_task(monkeypatch, play, "a")
    with pytest.raises(ConfigError, match="penalty: the module Sequential is not the job's model"):
        cfl_flare.client.penalty(torch.nn.Sequential(torch.nn.Linear(1, 2, bias=False)))


@pytest.mark.parametrize(
    "name, says",
    [
        ("client.test", "client.py has no 'test'; define it there, outside of other functions"),
        ("client.x", "client.py has no 'x'; define it"),
        ("test", "client.py has no 'test'"),
        ("other.measure", "no other.py is in the folder of 'client.py'"),
        ("os.path.exists", "should be 'client.evaluate'"),
        ("client.", "should be 'client.evaluate'"),
        ("a b", "should be 'client.evaluate'"),
    ],
)
def test_a_function_that_is_not_there_is_refused_before_the_job(tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    Path("client.py").write_text("from metrics import dice\ndef measure(received):\n    def test(): x = 1\n")
    common = {"model": MLP((1, 2, 2), 2), "num_rounds": 1, "min_clients": 1, "train_script": "client.py"}
    with pytest.raises(ConfigError, match=f"recipe: evaluate = {name!r}.*{says}"):
        ClusteredRecipe(method="fedavg", **common, evaluate=name)
    for name in ("client.measure", "measure", "client.dice"):
        ClusteredRecipe(method="ifca:k=2", **common, evaluate=name, cross_site_evaluation=True)
    with pytest.raises(ConfigError, match="measures the models of a train_script, and there is none"):
        ClusteredRecipe(method="fedavg", **{**common, "train_script": None}, data=Digits(), evaluate="measure")


def test_what_its_function_could_not_measure_is_said_once_and_misses_a_measurement_alone():
    def script(site: str, task: str, model: FLModel) -> FLModel:
        answer = obedient(site, task, model)
        if site == "c":
            answer.metrics, answer.meta = {}, {**(answer.meta or {}), NOT_MEASURED: "KeyError"}
        return answer

    play = Play(FedAvg(), script, AssignSettings(evaluates=True), num_rounds=1)
    assert play.round()["trained"] == ["a", "b", "c"]
    play.round()
    said = [text for text in play.warned if text.startswith("c")]
    assert said == ["c: KeyError in its evaluate function; its own log has the traceback"]
    play = Play(IFCA(k=2), script)
    assert play.scripts.probe()
    assert any("c, asked to evaluate: there is KeyError in its evaluate function" in text for text in play.warned)
