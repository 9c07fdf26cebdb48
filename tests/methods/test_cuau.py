# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
import numpy as np
import pytest
import torch
from torch import nn

from cfl_flare.core.errors import ConfigError
from cfl_flare.core.params import Layout, Params
from cfl_flare.data import DataConfig, Digits
from cfl_flare.engine.server import Server, ServerSettings
from cfl_flare.methods import (
    CAM,
    Download,
    FedAvg,
    FedBABU,
    FedCUAU,
    FedPer,
    FedProx,
    Method,
    Proximal,
    ServerState,
    Update,
    build_method,
)
from cfl_flare.models import CifarCNN, FashionCNN, LeafCNN, Logistic, MobileNetV2, ResNet18
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.served import load_model
from cfl_flare.training.ensemble import Served
from cfl_flare.training.learner import Learner
from cfl_flare.training.runtime import Split
from cfl_flare.training.settings import TrainSettings
from tests.helpers.loop import run_loop
from tests.helpers.play import list_answered_slots, play_rounds
from tests.helpers.tiny import make_learner

BASES = ["fedavg", "fedprox", "fedbabu", "fedper"]
SLOTS = ("cluster-0", "cluster-1", "cluster-2")


class Deep(nn.Module):
    """Logits h s f x: a shared weight f, and the cluster layers s and h = (a, b), the head."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(1, 1, bias=False)
        self.second = nn.Linear(1, 1, bias=False)
        self.head = nn.Linear(1, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.second(self.first(x)))


LAYOUT = Layout.of(Deep())
CLUSTER = LAYOUT.restricted(["second.weight", "head.weight"])
SHARED = LAYOUT.restricted(["first.weight"])


def deep(*weights: float) -> Params:
    return Params(LAYOUT, np.array(weights, np.float32))


def shared(f: float) -> Params:
    return deep(f, 0, 0, 0).take(SHARED)


def cluster(s: float, a: float, b: float) -> Params:
    return deep(0, s, a, b).take(CLUSTER)


def make_deep_head(a: float, b: float) -> Params:
    return deep(0, 0, a, b).take(LAYOUT.head)


def step_deep_weights(weights, still=(), mu: float = 0.0, anchor=None) -> np.ndarray:
    """One step with learning rate 1 on x = 1 of label 0; ``still`` are places that do not move."""
    f, s, a, b = weights
    g = 1 - 1 / (1 + np.exp((b - a) * s * f))
    inner = g * (b - a)
    gradient = np.array([s * inner, f * inner, -g * s * f, g * s * f])
    gradient += mu * (np.asarray(weights) - (weights if anchor is None else anchor))
    gradient[list(still)] = 0
    return np.asarray(weights) - gradient


def make_deep_learner(samples: int = 1, memory=None, number: int = 1, **more) -> Learner:
    settings = {"lr": 1.0, "momentum": 0.0, "local_steps": 1, "batch_size": 1, **more}
    split = Split.of(np.ones((samples, 1), np.float32), np.zeros(samples, np.int64))
    return make_learner(Deep, split, memory, number=number, **settings)


def make_deep_start(index: int) -> Params:
    return deep(1, 2, 3, 4)


def make_head_update(name: str, samples: int, a: float, b: float) -> Update:
    return Update(name, samples, {"au": make_deep_head(a, b)})


def clustered(method: FedCUAU) -> ServerState:
    """After a stage 1 that put a and b into cluster 0, c and d into the last one."""
    updates = [
        make_head_update("a", 3, 1, 0),
        make_head_update("b", 1, 1, 0),
        make_head_update("c", 2, 5, 0),
        make_head_update("d", 2, -5, 0),
    ]
    return method.aggregate(method.start(make_deep_start), updates, {})


def test_stage_one_sends_nothing_and_brings_back_the_head_s_update_of_one_epoch():
    method, work = FedCUAU(), make_deep_learner(samples=3, local_steps=7)
    state = method.start(make_deep_start)
    assert method.distribute(state, "p") == Download(returns=("au",))
    done = method.local_update(work, Download())
    start = work.initial(0).vector.astype(float)
    expected = step_deep_weights(step_deep_weights(step_deep_weights(start))) - start
    assert done.diffs.keys() == {"au"}
    np.testing.assert_allclose(done.diffs["au"].vector, expected[2:], rtol=1e-4, atol=1e-6)
    assert done.diffs["au"].layout == LAYOUT.head
    assert (work.memory, work.trained) == ({}, None)


def test_stage_one_can_have_a_learning_rate_of_its_own():
    """One step of half the length moves half as far; stage 2 goes on with the run's."""
    own, plain = FedCUAU(stage1_lr=0.5), FedCUAU()
    half, whole = (method.local_update(make_deep_learner(), Download()).diffs["au"].vector for method in (own, plain))
    np.testing.assert_allclose(half, whole / 2, rtol=1e-6)
    late = Download(("shared", "cluster-0", "cluster-1"), (shared(1), cluster(2, 3, 4), cluster(2, 3, 4)))
    one, other = (method.local_update(make_deep_learner(), late).diffs for method in (own, plain))
    assert all((one[slot].vector == other[slot].vector).all() for slot in other)


@pytest.mark.parametrize("base", BASES)
def test_stage_one_is_the_same_for_every_base_and_in_every_round(base):
    plain = FedCUAU().local_update(make_deep_learner(3, number=0), Download()).diffs["au"]
    late = make_deep_learner(3, number=9, lr_decay=0.5, momentum=0.9, keep_momentum=True)
    early = make_deep_learner(3, number=0, lr_decay=0.5, momentum=0.9, keep_momentum=True)
    newcomer = Download(("shared", "cluster-0"), (shared(9), cluster(9, 9, 9)))
    one, other = (
        FedCUAU(base=base).local_update(*args).diffs["au"] for args in ((late, newcomer), (early, Download()))
    )
    np.testing.assert_array_equal(one.vector, other.vector)
    same = FedCUAU(base=base).local_update(make_deep_learner(3, number=0), Download()).diffs["au"]
    np.testing.assert_array_equal(same.vector, plain.vector)
    assert late.memory == {}


def test_cuau_by_hand():
    """AU = (3*(1,0) + 1*(1,0) + 2*(5,0) + 2*(-5,0)) / 8 = (1/2, 0): the distances are 1/2, 1/2, 9/2 and 11/2."""
    method = FedCUAU()
    after = clustered(method)
    np.testing.assert_allclose(after.bank["au"].vector, [0.5, 0])
    assert after.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}
    assert after.extras["thresholds"] == [0.5]
    for slot, model in method.start(make_deep_start).bank.items():
        if slot != "au":
            np.testing.assert_array_equal(after.bank[slot].vector, model.vector)
    uniform = clustered(FedCUAU(base=FedAvg(weighting="uniform")))
    np.testing.assert_allclose(uniform.bank["au"].vector, [0.5, 0])  # (1 + 1 + 5 - 5) / 4
    assert clustered(FedCUAU(k=3)).assignment == {"a": 0, "b": 0, "c": 1, "d": 2}


def test_stage_one_s_order_does_not_matter_and_ties_go_by_name():
    method = FedCUAU()
    updates = [make_head_update(n, 2, a, 0) for n, a in zip("dbca", (1, -1, 1, -1))]
    one, other = (method.aggregate(method.start(make_deep_start), order, {}) for order in (updates, updates[::-1]))
    assert one.assignment == other.assignment == {"a": 0, "b": 0, "c": 1, "d": 1}


def test_a_newcomer_is_placed_by_round_zero_s_points_and_moves_nothing_else():
    method = FedCUAU(k=3)
    state = clustered(method)  # distances 0.5, 0.5, 4.5, 5.5: points 0.5 and 4.5
    assert method.distribute(state, "e") == Download(("shared", "cluster-0"), returns=("au",))
    updates = [
        make_head_update("e", 50, 0.5, 0.25),
        make_head_update("f", 50, 0.5, 4.5),
        make_head_update("g", 1, 9, 9),
    ]
    updates.append(Update("c", 2, {"shared": shared(4), "cluster-2": cluster(1, 0, 0), "cluster-1": cluster(0, 1, 0)}))
    assignment = method.assign(state, updates)
    assert assignment == {}
    after = method.aggregate(state, updates, assignment)
    assert [after.assignment[n] for n in "efg"] == [0, 1, 2]
    np.testing.assert_array_equal(after.bank["au"].vector, state.bank["au"].vector)
    np.testing.assert_array_equal(after.bank["shared"].vector, [5])
    assert after.extras == state.extras


@pytest.mark.parametrize("finetune", [False, True])
def test_a_participant_is_sent_what_it_trains_and_what_it_predicts_with(finetune):
    method = FedCUAU(k=3, finetune=finetune)
    state = clustered(method)
    for name, own in (("a", 0), ("c", 1), ("d", 2)):
        sent = method.distribute(state, name)
        assert sent.slots == ("shared", SLOTS[own if finetune else 0])
        assert sent.to_train == SLOTS[own:]
        assert sent.list_expected(None) == (*SLOTS[own:], "shared")
    personal = FedCUAU(k=3, base="fedper").distribute(state, "d")
    assert personal.slots == ("shared", "cluster-2")


def test_local_step_trains_the_last_copy_jointly_and_then_the_others_under_what_it_became():
    """Own cluster 1 of 0..2: cluster 2 with f from the sent ones, then cluster 1 with the new f frozen."""
    work = make_deep_learner()
    slots = ("shared", "cluster-0", "cluster-1", "cluster-2")
    models = (shared(0.5), cluster(9, 9, 9), cluster(1, -1, 2), cluster(2, 1, -1))
    done = FedCUAU(k=3).local_update(work, Download(slots, models))
    joint = step_deep_weights([0.5, 2, 1, -1])
    own = step_deep_weights([joint[0], 1, -1, 2], still=[0])
    assert done.diffs.keys() == {"shared", "cluster-1", "cluster-2"}
    np.testing.assert_allclose(done.diffs["shared"].vector, joint[:1] - 0.5, rtol=1e-5)
    np.testing.assert_allclose(done.diffs["cluster-2"].vector, joint[1:] - [2, 1, -1], rtol=1e-5)
    np.testing.assert_allclose(done.diffs["cluster-1"].vector, own[1:] - [1, -1, 2], rtol=1e-5)
    np.testing.assert_allclose(work.trained.vector, own, rtol=1e-5)


def test_fedprox_pulls_each_copy_to_what_was_sent_of_it():
    mu = 0.4
    slots = ("shared", "cluster-0", "cluster-0", "cluster-1")
    models = (shared(0.5), cluster(1, -1, 2), cluster(1, -1, 2), cluster(2, 1, -1))
    work = make_deep_learner(local_steps=2)
    done = FedCUAU(base=FedProx(mu=mu)).local_update(work, Download(slots, models))
    start = [0.5, 2, 1, -1]
    joint = step_deep_weights(step_deep_weights(start), mu=mu, anchor=start)
    begin = [joint[0], 1, -1, 2]
    own = step_deep_weights(step_deep_weights(begin, still=[0]), still=[0], mu=mu, anchor=begin)
    np.testing.assert_allclose(done.diffs["cluster-1"].vector, joint[1:] - start[1:], rtol=1e-4)
    np.testing.assert_allclose(done.diffs["cluster-0"].vector, own[1:] - begin[1:], rtol=1e-4)


@pytest.mark.parametrize("base", ["fedbabu", "fedper"])
def test_the_head_is_not_trained_with_the_copies(base):
    """FedBABU's is the seed's; FedPer's is what the joint step made of it."""
    work = make_deep_learner(memory={"head": make_deep_head(1, -1)} if base == "fedper" else {})
    a, b = (1, -1) if base == "fedper" else work.initial(0).vector[2:]
    middle = [deep(0, s, 0, 0).take(LAYOUT.restricted(["second.weight"])) for s in (1, 2)]
    slots = ("shared", "cluster-0", "cluster-0", "cluster-1")
    done = FedCUAU(base=base).local_update(work, Download(slots, (shared(0.5), middle[0], middle[0], middle[1])))
    joint = step_deep_weights([0.5, 2, a, b], still=[] if base == "fedper" else [2, 3])
    own = step_deep_weights([joint[0], 1, *joint[2:]], still=[0, 2, 3])
    np.testing.assert_allclose(done.diffs["shared"].vector, joint[:1] - 0.5, rtol=1e-4)
    np.testing.assert_allclose(done.diffs["cluster-1"].vector, joint[1:2] - 2, rtol=1e-4)
    np.testing.assert_allclose(done.diffs["cluster-0"].vector, own[1:2] - 1, rtol=1e-4)
    if base == "fedper":
        np.testing.assert_allclose(work.memory["head"].vector, joint[2:], rtol=1e-5)
    np.testing.assert_allclose(work.trained.vector, own, rtol=1e-5)


def test_server_averages_each_copy_over_those_who_trained_it():
    method = FedCUAU(k=3)
    state = clustered(method)  # shared 1, copies (2, 3, 4); a and b in 0, c in 1, d in 2
    updates = [
        Update("a", 3, {"shared": shared(1), **{s: cluster(1, 0, 0) for s in SLOTS}}),
        Update("c", 2, {"shared": shared(5), **{s: cluster(0, 5, 0) for s in SLOTS[1:]}}),
        Update("d", 5, {"shared": shared(2), "cluster-2": cluster(0, 0, 10)}),
    ]
    assignment = method.assign(state, updates)
    assert assignment == {"a": 0, "c": 1, "d": 2}
    for order in (updates, updates[::-1]):
        after = method.aggregate(state, order, assignment)
        np.testing.assert_allclose(after.bank["shared"].vector, [1 + (3 * 1 + 2 * 5 + 5 * 2) / 10], rtol=1e-6)
        np.testing.assert_allclose(after.bank["cluster-0"].vector, [3, 3, 4])
        np.testing.assert_allclose(after.bank["cluster-1"].vector, [2 + 3 / 5, 3 + 10 / 5, 4])
        np.testing.assert_allclose(after.bank["cluster-2"].vector, [2.3, 4, 9])
    uniform = FedCUAU(k=3, base=FedAvg(weighting="uniform")).aggregate(state, updates, assignment)
    np.testing.assert_allclose(uniform.bank["cluster-1"].vector, [2.5, 5.5, 4])
    alone = method.aggregate(state, updates[2:], {"d": 2})  # no one trained the first two: they keep theirs
    np.testing.assert_array_equal(alone.bank["cluster-0"].vector, [2, 3, 4])


def test_serves_c1_s_model_or_the_own_cluster_s_fine_tuned():
    slots, models = ("shared", "cluster-0"), (shared(0.5), cluster(1, -1, 2))
    served = FedCUAU().build_predictor(make_deep_learner(), Download(slots, models))
    np.testing.assert_array_equal(served.vector, [0.5, 1, -1, 2])
    (tuned,) = Served.of(
        FedCUAU(finetune=True).build_predictor(make_deep_learner(samples=1), Download(slots, models))
    ).models
    expected = np.array([0.5, 1, -1, 2])
    for _ in range(5):
        expected = step_deep_weights(expected)
    np.testing.assert_allclose(tuned.vector, expected, rtol=1e-3)
    work = make_deep_learner()
    np.testing.assert_array_equal(FedCUAU().serve(work, Download()).vector, work.initial(0).vector)


def run_deep_loop(method: Method, rounds: int, make=None, folder=None, participants: int = 6, **more) -> Server:
    return run_loop(
        method=method,
        model=make or {"class_path": "cfl_flare.models.MLP", "args": {"input_shape": [1, 8, 8], "num_classes": 10,
                                                                      "hidden": [8, 8]}},
        source=Digits(),
        data=DataConfig(participants, {"partition": "dirichlet", "alpha": 0.5}),
        settings=ServerSettings(rounds, seed=3, **more),
        training=TrainSettings(lr=0.1, local_steps=3, keep_momentum=True, lr_decay=0.8, weight_decay=0.01),
        folder=folder,
    )  # fmt: skip


def join_parts(state: ServerState, slot: str, layout: Layout) -> np.ndarray:
    whole = {**state.bank["shared"].arrays(), **state.bank[slot].arrays()}
    return layout.restricted(whole.keys()).pack(whole).vector


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("base", BASES)
def test_the_shared_and_the_last_cluster_s_layers_are_exactly_the_base_s(base, k):
    plain = run_deep_loop(build_method({"method": base, "finetune": False}), 3)
    server = run_deep_loop(FedCUAU(base=base, k=k), 4)
    (slot,) = [s for s in ("global", "backbone") if s in plain.state.bank]
    np.testing.assert_array_equal(
        join_parts(server.state, f"cluster-{k - 1}", server.layout), plain.state.bank[slot].vector
    )
    for j in range(k - 1):
        assert not np.array_equal(
            server.state.bank[f"cluster-{j}"].vector, server.state.bank[f"cluster-{k - 1}"].vector
        )


@pytest.mark.parametrize("base", ["fedavg", "fedper"])
def test_so_they_are_with_batch_norm_and_when_a_part_of_the_participants_is_there(base):
    """Everyone does stage 1; then the rounds' participants are those of the base's rounds."""
    make = {"class_path": "cfl_flare.models.FashionCNN", "args": {"input_shape": [1, 8, 8], "num_classes": 10}}
    plain = run_deep_loop(build_method({"method": base}), 3, make, participants=5, sample=3)
    server = run_deep_loop(FedCUAU(base=base), 4, make, participants=5, sample=3)
    (slot,) = [s for s in ("global", "backbone") if s in plain.state.bank]
    np.testing.assert_array_equal(join_parts(server.state, "cluster-1", server.layout), plain.state.bank[slot].vector)
    assert any(e.name.endswith("running_mean") for e in server.state.bank["cluster-0"].layout.entries)


def test_traffic_and_flow_of_whole_rounds():
    """Stage 1: no bytes down, heads up. Then each trains its own cluster's copy and all above it."""
    rounds = play_rounds(FedCUAU(k=3), 3)
    head_bytes, rest = 4 * (8 * 10 + 10), 4 * (64 * 8 + 8)
    assert list_answered_slots(rounds[0]) == {("au",)}
    assert (rounds[0].record["bytes_down"], rounds[0].record["bytes_up"]) == (0, 6 * head_bytes)
    clusters = rounds[0].after.assignment
    assert sorted(clusters.values()) == [0, 0, 1, 1, 2, 2]
    for one in rounds[1:3]:
        assert one.after.assignment == clusters
        for name, answer in one.answers.items():
            assert answer.update.diffs.keys() == {"shared", *SLOTS[clusters[name] :]}
        assert one.record["bytes_up"] == 6 * rest + 2 * (3 + 2 + 1) * head_bytes
    assert rounds[1].record["bytes_down"] == rest + 3 * head_bytes  # after round 0's record: measured with round 1
    assert rounds[1].record["objective"] is not None


def test_those_who_come_later_do_stage_one_first():
    rounds = play_rounds(FedCUAU(), 6, sample=3)
    seen: set[str] = set()
    for one in rounds[:6]:
        for name, answer in one.answers.items():
            if answer.update is not None:
                assert (answer.update.diffs.keys() == {"au"}) == (name not in seen)
                seen.add(name)
        assert one.after.assignment.keys() == seen
    assert len(seen) > 3


@pytest.mark.parametrize("base", BASES)
def test_what_a_run_leaves_can_be_loaded(tmp_path, base):
    server = run_deep_loop(FedCUAU(base=base, finetune=True), 2, folder=tmp_path)
    if base == "fedper":  # whose participants have heads of their own
        with pytest.raises(ConfigError, match="are untrained, as each participant has trained its own"):
            load_model(tmp_path, "cluster-0")
        assert load_model(tmp_path, participant="p0")(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
        return
    for slot in ("cluster-0", "cluster-1"):
        model = load_model(tmp_path, slot)
        assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 10)
        np.testing.assert_array_equal(
            model.body[3].weight.detach().numpy(), server.state.bank[slot].arrays()["body.3.weight"]
        )
    assert load_run(tmp_path).summary["label"] == f"{base}-cuau-finetune"


def test_default_cluster_layers_are_the_paper_s():
    def parts(model: nn.Module, **more) -> set[str]:
        _, own = FedCUAU(**more).parts(Layout.of(model))
        return {".".join(e.name.split(".")[:2]).removesuffix(".weight").removesuffix(".bias") for e in own.entries}

    assert parts(ResNet18((3, 32, 32), 10)) == {"body.layer4", "head"}
    assert parts(ResNet18((3, 32, 32), 10), base="fedbabu") == {"body.layer4"}
    assert parts(LeafCNN((1, 28, 28), 62)) == {"body.3", "body.7", "head"}
    assert parts(LeafCNN((1, 28, 28), 62), base="fedper") == {"body.3", "body.7"}
    assert parts(FashionCNN((1, 8, 8), 10)) == {"body.4", "body.5", "head"}
    assert parts(CifarCNN((3, 32, 32), 10), cluster_layers=["head"]) == {"head"}
    _, own = FedCUAU().parts(Layout.of(MobileNetV2((3, 32, 32), 10)))
    assert {e.name.split(".")[2] if "." in e.name[5:] else "" for e in own.entries} == {"18", ""}
    assert parts(Deep()) == {"second", "head"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"k": 1}, "k = 1 should be >= 2"),
        ({"k": 2.5}, "k = 2.5 should be int"),
        ({"base": "local"}, "base = 'local' should be one of fedavg, fedprox, fedbabu, fedper"),
        ({"base": {"method": "ifca", "k": 2}}, "should be one of fedavg"),
        ({"base": {"method": "finetune"}}, "should be one of fedavg"),
        ({"base": FedBABU()}, "finetune belongs to the whole; set base's finetune = False"),
        ({"base": 3}, "base = 3 should be one of"),
        ({"weighting": "uniform"}, "weighting belongs to its base"),
        ({"penalties": [Proximal()]}, "belong to its base; give them there"),
        ({"stage1_lr": 0.0}, "stage1_lr = 0.0 should be > 0 or None"),
        ({"finetune_epochs": 0}, "finetune_epochs = 0 should be in .1, 1000. or None"),
        ({"cluster_layers": []}, r"cluster_layers = \[\] should be a list of names, or None"),
        ({"cluster_layers": "head"}, "cluster_layers = 'head' should be a list of names"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        build_method({"method": "fedcuau", **settings})


def test_without_a_base_it_is_fedavgs():
    assert FedCUAU() == FedCUAU(base=FedAvg()) != FedCUAU(base="fedper")


class Headless(nn.Module):
    """No fully connected layer."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1)


@pytest.mark.parametrize(
    ("method", "model", "message"),
    [
        (FedCUAU(), Headless(), "stage 1 sends the head; take a model with a torch.nn.Linear layer"),
        (FedCUAU(), Logistic((1, 8, 8), 10), "leave no shared layers of head; set cluster_layers, or take a model"),
        (FedCUAU(base="fedper"), Logistic((1, 8, 8), 10), "method fedper: only the backbone travels"),
        (FedCUAU(cluster_layers=["third"]), Deep(), r"no \['third'\] travels; there: first, second, head"),
        (FedCUAU(base=FedPer(), cluster_layers=["second", "head"]), Deep(), r"no \['head'\] travels; there: first"),
        (FedCUAU(cluster_layers=["first", "second", "head"]), Deep(), "leave no shared layers"),
    ],
)
def test_models_that_do_not_fit_are_refused(method, model, message):
    with pytest.raises(ConfigError, match=message):
        method.check(Layout.of(model))


def test_runs_that_do_not_fit_are_refused():
    with pytest.raises(ConfigError, match="stage 1 takes the first of 1 rounds"):
        FedCUAU().check(LAYOUT, 1)
    with pytest.raises(ConfigError, match="k = 7 clusters need as many participants in the first round"):
        play_rounds(FedCUAU(k=7), 2, sample=2)
    with pytest.raises(ConfigError, match="base = fedavg-cuau has no fixed number of centres that all"):
        CAM(base=FedCUAU())
