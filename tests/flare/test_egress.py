# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What leaves a site: numbers that a filter withholds or rounds, draws of a test split, a script's arrays."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from nvflare.apis.dxo import DXO, DataKind, MetaKey, from_shareable
from nvflare.apis.dxo_filter import DXOFilter
from nvflare.apis.filter import FilterChainType, FilterContextKey
from nvflare.apis.fl_constant import FLContextKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import make_reply
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from cfl_flare.core.config import marked
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.data import SiteData
from cfl_flare.engine.observers import observers_of
from cfl_flare.engine.server import Equipment, Server, ServerSettings
from cfl_flare.engine.task import Result, Task
from cfl_flare.flare import wire
from cfl_flare.flare.client_api.private import EVALUATE, SUBMIT, TRAIN, PrivateArrays
from cfl_flare.flare.egress import EgressFilter, check_filters
from cfl_flare.flare.schema import decode_results
from cfl_flare.methods import FedAvg, Participant, Update
from cfl_flare.training.bootstrap import DRAWS, Replicates
from cfl_flare.training.membership import Counts
from cfl_flare.training.tasks import Classification
from tests.helpers.kits import JOB, SITE, answer, ask_check_in, context, make_executor, write_kit, write_kit_npz
from tests.helpers.tiny import LAYOUT, coin, initial, update

pytestmark = pytest.mark.usefixtures("state_root")

STEPS = MetaKey.NUM_STEPS_CURRENT_ROUND
METRICS = {"served_accuracy": 0.8734, "served_macro_f1": 0.5, "served_loss": 1.7, "trained_loss": 0.1}


def filter_answers(**settings):
    answers = [
        Result("a", update("a", 137, "global", 1, 2), {"metrics": METRICS}),
        Result("b", update("b", 3, "global", 3, 4), {"metrics": {}}),
    ]
    sent = EgressFilter(**settings).process(wire.encode_results(answers, {"round": 4}), FLContext())
    return from_shareable(sent)


def test_by_default_all_passes():
    found = filter_answers()
    said = wire.content_of(found.meta)["results"]
    assert said["a"]["metrics"] == METRICS
    assert said["a"]["samples"] == 137


def test_metrics_are_withheld_or_rounded_and_counts_are_coarse_wherever_they_stand():
    found = filter_answers(withhold=["loss"], round_to=0.05, samples_step=50)
    content = wire.content_of(found.meta)
    assert content["round"] == 4
    assert content["results"]["a"]["metrics"] == {"served_accuracy": 0.85, "served_macro_f1": 0.5}
    assert {name: said["samples"] for name, said in content["results"].items()} == {"a": 150, "b": 50}
    steps = {key: dxo.get_meta_prop(MetaKey.NUM_STEPS_CURRENT_ROUND) for key, dxo in found.data.items()}
    assert steps == {"a/global": 150, "b/global": 50}
    assert found.data["a/global"].data["head.weight"].tolist() == [[1], [2]]


def test_losses_by_which_a_method_clusters_are_treated_as_the_metric():
    arrays = {"loss": np.float32([1.23, 0.5]), "histogram": np.float32([0.123])}
    answers = [Result("a", Update("a", 3, arrays=arrays)), Result("b", Update("b", 3, arrays={"loss": arrays["loss"]}))]

    def left(**settings):
        sent = from_shareable(EgressFilter(**settings).process(wire.encode_results(answers, {}), FLContext()))
        return {key: {n: a.tolist() for n, a in dxo.data.items()} for key, dxo in sent.data.items()}

    assert left(round_to=0.25)["b/#arrays"] == {"loss": [1.25, 0.5]}
    assert left(round_to=0.25)["a/#arrays"]["histogram"] == [pytest.approx(0.123)]
    assert left(withhold=["loss"]) == left(withhold=["*"]) == {"a/#arrays": {"histogram": [pytest.approx(0.123)]}}


def test_what_all_models_reach_is_withheld_and_rounded_as_the_own_model_s():
    cross = {"cluster-0": {"accuracy": 0.8734, "loss": 1.7}, "cluster-1": {"accuracy": 0.11, "macro_f1": 0.2}}
    answers = [Result("a", None, {"metrics": METRICS, "cross": cross})]
    sent = EgressFilter(withhold=["loss"], round_to=0.05).process(wire.encode_results(answers, {}), FLContext())
    said = wire.content_of(from_shareable(sent).meta)["results"]["a"]["cross"]
    assert said == {"cluster-0": {"accuracy": 0.85}, "cluster-1": {"accuracy": 0.1, "macro_f1": 0.2}}


def test_the_answer_to_the_first_task_is_coarse_too():
    hosted = {"participants": [{"name": "a", "samples": 137, "group": None}]}
    found = EgressFilter(samples_step=100).process(wire.to_shareable({}, hosted), FLContext())
    assert wire.content_of(from_shareable(found).meta)["participants"][0]["samples"] == 100
    counts = {**hosted, "splits": {"a": {"validation": 160, "test": 0}, "b": {"validation": 3, "test": 220}}}
    found = EgressFilter(samples_step=100).process(wire.to_shareable({}, counts), FLContext())
    coarse = {"a": {"validation": 200, "test": 0}, "b": {"validation": 100, "test": 200}}
    assert wire.content_of(from_shareable(found).meta)["splits"] == coarse


@pytest.mark.parametrize("params", [{"w": np.ones(2)}, None])
def test_a_training_script_s_numbers_too(params):
    sent = FLModel(
        params=params, metrics={"accuracy": 0.8734, "val_loss": 1.7, "a/loss": 1.7, "note": "fine"}, meta={STEPS: 137}
    )
    policy = EgressFilter(withhold=["loss"], round_to=0.05, samples_step=50)
    found = FLModelUtils.from_shareable(policy.process(FLModelUtils.to_shareable(sent), FLContext()))
    assert found.metrics == {"accuracy": 0.85}  # what is no number has no multiple
    assert found.meta[STEPS] == 150


def test_what_is_no_answer_passes():
    reply = make_reply(ReturnCode.TASK_ABORTED)
    assert EgressFilter(samples_step=9).process(reply, FLContext()) is reply


class UnrelatedFilter(DXOFilter):
    """A filter of no concern."""

    def process_dxo(self, dxo, shareable, fl_ctx):
        return None


# As FLARE's own, which cannot be imported without tenseal.
Encryptor = type("HEModelEncryptor", (UnrelatedFilter,), {"__module__": "nvflare.app_opt.he.model_encryptor"})


@pytest.mark.parametrize("where", ["job", "site"])
def test_homomorphic_encryption_is_refused_with_the_reason(where):
    context, filters = FLContext(), [UnrelatedFilter([], []), Encryptor([], [])]
    runner = SimpleNamespace(task_result_filters={f"{wire.TRAIN_TASK}/out": filters if where == "job" else []})
    context.set_prop(FLContextKey.RUNNER, runner)
    context.set_prop(FLContextKey.SCOPE_OBJECT, SimpleNamespace(task_result_filters={"out": []}))
    if where == "site":
        context.get_prop(FLContextKey.SCOPE_OBJECT).task_result_filters["out"] = filters
    with pytest.raises(ConfigError, match=r"\['HEModelEncryptor'\] encrypts models before they leave: .* remove it"):
        check_filters(context)
    filters.pop()
    check_filters(context)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"withhold": ["a b"]}, r"withhold = \['a b'\] should be names of metrics: accuracy, macro_f1, loss, what"),
        ({"round_to": 0}, "round_to = 0 should be in"),
        ({"samples_step": 0}, "samples_step = 0 should be a whole number >= 1"),
    ],
)
def test_refusals(settings, message):
    with pytest.raises(ConfigError, match=message):
        EgressFilter(**settings)


def test_all_metrics_are_withheld_by_a_star_and_a_script_s_own_by_their_names():
    assert wire.content_of(filter_answers(withhold=["*"]).meta)["results"]["a"]["metrics"] == {}
    answer = FLModel(metrics={"val/dice": 0.5, "auc": 0.7})
    odd = {"dice": np.float32(0.7213), "nan": float("nan"), "array": np.array(0.7213)}
    sent = EgressFilter(round_to=0.05).process(FLModelUtils.to_shareable(FLModel(metrics=odd)), FLContext())
    assert FLModelUtils.from_shareable(sent).metrics == {"dice": 0.7}
    for withhold, left in ((["*"], {}), (["dice"], {"auc": 0.7})):
        sent = EgressFilter(withhold=withhold).process(FLModelUtils.to_shareable(answer), FLContext())
        assert FLModelUtils.from_shareable(sent).metrics == left


@pytest.mark.parametrize("settings", [{"withhold": ["scores"]}, {"withhold": ["*"]}, {"withhold": ["auroc"]}])
def test_histograms_of_scores_are_withheld_by_their_name_and_with_any_metric(settings):
    scores = np.ones((2, 2, 10), np.int32)
    answers = [
        Result("a", update("a", 137, "global", 1, 2), {"metrics": METRICS, "scores": scores}),
        Result("b", answers={"scores": scores}),
    ]
    for more, left in ((settings, {"a/global"}), ({"round_to": 0.05}, {"a/global"})):
        sent = EgressFilter(**more).process(wire.encode_results(answers, {"round": 4}), FLContext())
        assert from_shareable(sent).data.keys() == left
    sent = EgressFilter(samples_step=50).process(wire.encode_results(answers, {"round": 4}), FLContext())
    assert from_shareable(sent).data.keys() == {"a/global", "a/#scores", "b/#scores"}
    withheld = EgressFilter(withhold=["scores"]).process(wire.encode_results(answers, {"round": 4}), FLContext())
    assert wire.content_of(from_shareable(withheld).meta)["results"]["a"]["metrics"] == METRICS


@pytest.mark.parametrize("settings", [{"withhold": ["loss"]}, {"round_to": 0.05}, {"samples_step": 50}, {}])
def test_an_answer_that_is_no_metric_passes_only_a_filter_that_changes_nothing(settings):
    answers = [Result("a", answers={"metrics": METRICS, "test_classes": [12, None, 0]})]
    sent = EgressFilter(**settings).process(wire.encode_results(answers, {"round": 4}), FLContext())
    result = wire.content_of(from_shareable(sent).meta)["results"]["a"]
    assert result.get("test_classes") == (None if settings else [12, None, 0])


@pytest.mark.parametrize("settings", [{"withhold": ["loss"]}, {"round_to": 0.05}, {"samples_step": 50}])
def test_a_filter_withholds_counts_of_attacks_and_not_that_the_site_objects(settings):
    counts = {"global": {"loss": [3, 20, 0, 40]}}
    for objects, left in ((False, None), (True, {"models": {}, "objects": True})):
        answers = [Result("a", answers={"metrics": METRICS, "membership": {"models": counts, "objects": objects}})]
        sent = EgressFilter(**settings).process(wire.encode_results(answers, {"round": 4}), FLContext())
        assert wire.content_of(from_shareable(sent).meta)["results"]["a"].get("membership") == left


@pytest.mark.parametrize(
    ("training", "bound", "tests", "reason"),
    [
        ({}, None, 20, None),
        ({}, 0.1, 40, "the job measures no attack; set membership = 16 there"),
        ({"membership": 16}, 0.1, 40, None),
        ({"membership": 2}, 0.1, 40, "min_membership = 16, and the job has membership = 2; raise it"),
        ({"membership": 16}, 0.1, 20, "20 test samples do not tell; have 30"),
        ({"dp": "epsilon=2"}, 0.1, 20, None),
        ({"dp": "epsilon=3"}, 0.1, 40, "dp with epsilon = 3 allows 0.201; lower epsilon"),
    ],
)
def test_a_site_with_a_bound_on_attacks_takes_part_where_it_can_be_checked(
    tmp_path, monkeypatch, caplog, training, bound, tests, reason
):
    policy = {} if bound is None else {"max_tpr_at_1pct_fpr": bound}
    folder, settings = write_kit(tmp_path / "kit", True, **policy), {"local_steps": 1, **training}
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz", tests=tests)))
    with caplog.at_level("INFO"):
        site = make_executor(SiteData(), training=marked(settings))
        said = answer(site, ask_check_in(job={**JOB, "training": settings}), folder)
    if reason is None:
        assert "participants" in said
    else:
        assert said["error"] == "floor" and reason in caplog.text


@pytest.mark.parametrize("told", [0, 20])
def test_a_site_objects_above_its_own_bound_alone(tmp_path, monkeypatch, told):
    training, counts = {"local_steps": 1, "membership": 2}, Counts(told, 20, 0, 40)
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz", tests=40)))
    monkeypatch.setattr("cfl_flare.training.membership.counted", lambda members, others: counts)
    question = {"shadow_models": 2, "models": [["global", ["global"], "logits", []]]}
    task = Task(("global",), False, True, questions={"membership": question}, models=("global",))
    folder = write_kit(tmp_path / "kit", max_tpr_at_1pct_fpr=0.5, min_membership=2)
    site = make_executor(SiteData(), training=marked(training))
    assert "participants" in answer(site, ask_check_in(job={**JOB, "training": training}), folder)
    sent = site._site.carry_out(SITE, task, {"global": site._site.runtime.initial(0)}, 1).answers["membership"]
    of_each = {"loss": list(counts.numbers), "likelihood_ratio": list(counts.numbers)}
    assert sent == {"models": {"global": of_each}, "objects": told == 20}


@pytest.mark.parametrize(("real", "bins", "sends"), [(True, 10, False), (False, 10, True), (True, 0, False)])
def test_a_small_test_split_at_a_real_site_keeps_its_histograms(tmp_path, monkeypatch, caplog, real, bins, sends):
    """It has 20 samples, of which each is nearly readable in them."""
    folder, training = write_kit(tmp_path / "kit", real), {"local_steps": 1, "score_bins": bins}
    monkeypatch.setenv("CFL_DATA", str(write_kit_npz(tmp_path / "ward.npz")))
    site = make_executor(SiteData(), training=marked(training))
    with caplog.at_level("INFO"):
        assert "participants" in answer(site, ask_check_in(job={**JOB, "training": training}), folder)
    assert ("no histograms of scores are sent, of fewer than 30 test samples" in caplog.text) == (real and bins > 0)
    result = site._site.carry_out(SITE, Task(("global",), False, True), {"global": site._site.runtime.initial(0)}, 1)
    assert "served_accuracy" in result.metrics
    assert ("scores" in result.answers) == sends


class FilteredSite:
    """A job's two filters at a site."""

    def __init__(self, folder, private="head", run_name="ward", **more):
        self.fl_ctx = context(write_kit(folder))
        self.filters = {}
        for chain in (FilterChainType.TASK_DATA_CHAIN, FilterChainType.TASK_RESULT_CHAIN):
            self.filters[chain] = PrivateArrays(private, run_name, **more)
            self.filters[chain].set_prop(FilterContextKey.CHAIN_TYPE, chain)

    def through(self, chain, arrays, task, kind):
        self.fl_ctx.set_prop(FLContextKey.TASK_NAME, task)
        given = {
            name: np.full(2, value, np.float32) if isinstance(value, int) else value for name, value in arrays.items()
        }
        data = from_shareable(self.filters[chain].process(DXO(kind, given).to_shareable(), self.fl_ctx)).data
        return {name: array[0].item() for name, array in data.items()}

    def receives(self, task=TRAIN, kind=DataKind.WEIGHTS, **arrays):
        return self.through(FilterChainType.TASK_DATA_CHAIN, arrays, task, kind)

    def sends(self, task=TRAIN, kind=DataKind.WEIGHTS, **arrays):
        return self.through(FilterChainType.TASK_RESULT_CHAIN, arrays, task, kind)


def test_a_site_goes_on_with_the_arrays_that_it_trained_last(tmp_path):
    site = FilteredSite(tmp_path / "kit")
    assert site.receives(body=1, head=1) == {"body": 1, "head": 1}
    assert site.sends(body=2, head=5) == {"body": 2}
    assert site.receives(body=3, head=1) == {"body": 3, "head": 5}
    assert site.receives(body=3) == {"body": 3, "head": 5}  # a server that has lost what nobody sends
    assert site.sends(body=2, head=float("nan") * np.ones(2, np.float32)) == {"body": 2}
    assert site.receives(body=4, head=1) == {"body": 4, "head": 5}


def test_a_difference_is_added_to_what_was_put_in(tmp_path):
    site = FilteredSite(tmp_path / "kit")
    site.receives(body=1, head=4)
    assert site.sends(kind=DataKind.WEIGHT_DIFF, body=1, head=1) == {"body": 1}
    assert site.receives(body=1, head=4) == {"body": 1, "head": 5}


@pytest.mark.parametrize("task", [EVALUATE, SUBMIT])
def test_what_leaves_by_another_task_is_taken_out_and_not_kept(tmp_path, task):
    site = FilteredSite(tmp_path / "kit")
    site.receives(body=1, head=4)
    assert site.sends(task, body=1, head=9) == {"body": 1}
    assert site.receives(task, body=1, head=1)["head"] == 4


def test_tensors_stay_tensors(tmp_path):
    site = FilteredSite(tmp_path / "kit", private=["head"])
    site.receives(body=torch.ones(2), head=torch.ones(2))
    site.sends(body=torch.ones(2), head=7 * torch.ones(2))
    sent = DXO(DataKind.WEIGHTS, {"body": torch.ones(2)}).to_shareable()
    found = from_shareable(site.filters[FilterChainType.TASK_DATA_CHAIN].process(sent, site.fl_ctx)).data
    assert torch.equal(found["head"], 7 * torch.ones(2))


def test_a_job_begins_without_arrays_of_another_unless_it_resumes_that(tmp_path, state_root):
    first = FilteredSite(tmp_path / "first")
    first.receives(body=1, head=1)
    first.sends(body=1, head=5)
    assert (
        FilteredSite(tmp_path / "resumed", run_name="later", resume_from="ward").receives(body=1, head=1)["head"] == 5
    )
    assert FilteredSite(tmp_path / "again", resume_from="ward").receives(body=1, head=1)["head"] == 5
    assert FilteredSite(tmp_path / "fresh").receives(body=1, head=1)["head"] == 1
    assert (state_root / "ward" / "site-1" / "previous-private.safetensors").is_file()


def test_private_arrays_that_do_not_fit_are_refused(tmp_path):
    site = FilteredSite(tmp_path / "kit")
    with pytest.raises(ConfigError, match="private = 'head' matches none of body; name arrays"):
        site.receives(body=1)
    with pytest.raises(ConfigError, match="is not a regular expression"):
        PrivateArrays("(", "ward")
    site.receives(body=1, head=1)
    with pytest.raises(ConfigError, match=r"head has shape \(3,\), but this site keeps one of \(2,\)"):
        site.receives(body=1, head=np.ones(3))


def test_what_a_site_keeps_never_leaves_by_a_job_that_names_less(tmp_path):
    ward = FilteredSite(tmp_path / "one", private=["fc1", "fc2"], run_name="ward")
    ward.receives(body=1, fc1=1, fc2=1)
    ward.sends(body=1, fc1=7, fc2=8)
    for name in ("ward", "theft"):
        other = FilteredSite(tmp_path / name, private=["fc1"], run_name=name, resume_from="ward")
        with pytest.raises(ConfigError, match=r"has kept 'fc2' for itself, and private = .* would let it leave"):
            other.receives(body=1, fc1=0, fc2=0)
        with pytest.raises(ConfigError, match="has kept 'fc2' for itself"):
            other.sends(body=1, fc1=7, fc2=8)


def test_only_the_model_s_own_names_leave(tmp_path):
    site = FilteredSite(tmp_path / "kit", private=["head"], run_name="wrapped", travels=["body"])
    site.receives(body=1, head=1)
    assert site.sends(**{"body": 2, "module.head": 5, "_orig_mod.head": 5, "module.body": 2}) == {"body": 2}


def test_a_private_array_of_another_shape_or_in_bfloat16(tmp_path):
    site = FilteredSite(tmp_path / "kit", private="head", run_name="shapes")
    site.receives(body=1, head=1)
    site.sends(body=1, head=np.ones(3, np.float32))
    assert site.receives(body=1, head=0)["head"] == 1  # what was kept before stays
    site.sends(body=torch.ones(2).bfloat16(), head=torch.full((2,), 3.0).bfloat16())
    assert site.receives(body=1, head=0)["head"] == 3


# ---- Draws of a test split ----


RANGES = Classification().ranges()
TIMES = 50
DRAWN_METRICS = {"served_accuracy": 0.5, "served_loss": 1.0}
VALUES = {"served_accuracy": (0.5, None, *[0.25] * 48), "served_loss": (1.5,) * 50}
DRAWN = {"draw": 9, "values": {name: list(own) for name, own in VALUES.items()}}
HONEST = Result("a", None, {"metrics": DRAWN_METRICS, "bootstrap": DRAWN})
Change = Callable[[dict[str, Any]], Any]


def at_the_end(ranges=RANGES) -> Server:
    """A server whose participants a and b were asked to measure the final models."""
    people = [Participant("a", "site-1", 1), Participant("b", "site-1", 3)]
    server = Server(
        FedAvg(),
        LAYOUT,
        people,
        ServerSettings(1),
        FedAvg().start(initial),
        Equipment(observers=observers_of(ranges, bootstrap=TIMES)),
    )
    assert all(task.train and not task.questions for task in server.tasks().values())
    for name, samples in (("a", 1), ("b", 3)):
        server.accept(Result(name, update(name, samples, "global", 1, 1)), "site-1")
    server.finish_round()
    questions = {"bootstrap": {"times": TIMES, "measures": []}, "test_classes": {}}
    assert server.tasks() == {name: Task(("global",), False, True, questions=questions) for name in "ab"}
    return server


def arrived(answer: Result, change: Change = lambda said: None) -> Result:
    """An answer as the server reads it, once its draws were changed.

    Raises:
        PayloadError: they are refused.
    """
    model = FLModelUtils.from_shareable(wire.encode_results([answer], {"round": 0}))
    change(model.meta[wire.META]["results"]["a"]["bootstrap"])
    (result,) = decode_results(model, {}, 0, "a")
    if isinstance(result, tuple):
        raise result[1]
    return result


def test_a_task_and_its_draws_arrive_as_they_were_sent():
    order = {
        "a": Task(
            ("global",),
            False,
            True,
            questions={"bootstrap": {"times": TIMES, "measures": ["loss"]}, "test_classes": {}},
        ),
        "b": Task(("global",), False, True),
    }
    said = wire.encode_tasks(order)
    assert said["a"]["questions"]["bootstrap"]["times"] == TIMES and not said["b"]["questions"]
    data = wire.message(wire.encode_models({"global": coin(1, 2)}), {"tasks": said, "round": 0}, 0, 0)
    shareable = DXO(DataKind.COLLECTION, data=data.params, meta=data.meta).to_shareable()
    assert wire.decode_task(shareable, LAYOUT)[0] == order
    assert arrived(HONEST) == HONEST
    plain = wire.encode_results([Result("a", None, {"metrics": DRAWN_METRICS})], {"round": 0})
    assert "bootstrap" not in from_shareable(plain).meta[wire.META]["results"]["a"]


def test_draws_are_kept_with_the_result():
    server = at_the_end()
    server.accept(arrived(HONEST), "site-1")
    server.accept(Result("b", None, {"metrics": DRAWN_METRICS}), "site-1")  # a site may keep its draws
    assert server.finish_round().record["served_accuracy"] == 0.5
    assert server.round.results["a"].answers["bootstrap"] == Replicates(9, VALUES)


def set_values(**own: Any) -> Change:
    return lambda said: said["values"].update({f"served_{name}": value for name, value in own.items()})


FORGED: dict[str, tuple[Change, str]] = {
    "one too many": (
        set_values(loss=[1.0] * 51),
        "draws of served_loss should be a list of 50, as the job asks with bootstrap, not 51",
    ),
    "one too few": (
        set_values(loss=[1.0] * 49),
        "should be a list of 50, as the job asks with bootstrap, not 49 values",
    ),
    "none": (set_values(loss=[]), "draws of served_loss should be a list of 50, .*, not 0 values"),
    "a million": (set_values(loss=[1.0] * 10**6), "should be a list of 50, .*, not 1000000 values"),
    "no list": (set_values(loss={"0": 1.0}), "should be a list of 50, .*, not {"),
    "NaN": (
        set_values(loss=[float("nan")] * 50),
        r"a draw of served_loss is nan, and should be a number in \[0, 1e\+09\]",
    ),
    "infinity": (set_values(loss=[float("inf")] * 50), "is inf, and should be"),
    "out of range": (
        set_values(accuracy=[1.5] * 50),
        r"a draw of served_accuracy is 1\.5, and should be a number in \[0, 1\]",
    ),
    "text": (set_values(accuracy=["\x1b[2J"] * 50), "a draw of served_accuracy is"),
    "True": (set_values(accuracy=[True] * 50), "a draw of served_accuracy is True"),
    "lists": (set_values(accuracy=[[[[]]]] * 50), "a draw of served_accuracy is"),
    "nobody's measure": (set_values(wealth=[1.0] * 50), "draws of 'served_wealth', which it does not report"),
    "a measure without its value": (
        set_values(macro_f1=[1.0] * 50),
        "a: it has draws of 'served_macro_f1', which it does not",
    ),
    "of training": (
        lambda said: said["values"].update(trained_loss=[1.0] * 50),
        "draws of 'trained_loss', which it does not report",
    ),
    "a number as name": (lambda said: said["values"].update({7: [1.0] * 50}), "draws of 7, which it does not report"),
    "no values": (lambda said: said.pop("values"), "should be its draw, and values by measure"),
    "values in a list": (lambda said: said.update(values=[1.0] * 50), "should be its draw, and values by measure"),
    "one more field": (lambda said: said.update(rows=[0] * 50), "should be its draw, and values by measure"),
    "a large draw": (lambda said: said.update(draw=DRAWS), f"draw = {DRAWS} should be a whole number below"),
    "a negative draw": (lambda said: said.update(draw=-1), "draw = -1 should be"),
    "a draw that is none": (lambda said: said.update(draw=None), "draw = None should be"),
}


@pytest.mark.parametrize("case", FORGED)
def test_draws_that_were_not_asked_for_cost_that_participant_its_result(case):
    change, reason = FORGED[case]
    server = at_the_end()
    with pytest.raises(PayloadError, match=reason) as refused:
        server.accept(arrived(HONEST, change), "site-1")
    assert refused.value.code == "metric"
    server.accept(Result("b", None, {"metrics": DRAWN_METRICS}), "site-1")
    assert "a" not in server.round.results and "b" in server.round.results


@pytest.mark.parametrize(
    ("drawn", "reason"),
    [
        (
            {"draw": 9, "values": {"served_loss": (float("nan"),) * 50}},
            r"a draw of served_loss is nan, and should be a number in \[-1e\+12, 1e\+12\] or None",
        ),
        ({"draw": -1, "values": VALUES}, "draw = -1 should be"),
        (
            {"draw": 9, "values": {"trained_loss": (1.0,) * 50}},
            "a: it has draws of 'trained_loss', which it does not report",
        ),
    ],
)
def test_what_another_way_than_flare_brings_is_checked_as_well(drawn, reason):
    with pytest.raises(PayloadError, match=reason):
        at_the_end(None).accept(Result("a", None, {"metrics": DRAWN_METRICS, "bootstrap": drawn}), "site-1")


def test_draws_in_a_round_that_did_not_ask_for_them():
    people = [Participant("a", "site-1", 1)]
    server = Server(
        FedAvg(),
        LAYOUT,
        people,
        ServerSettings(1),
        FedAvg().start(initial),
        Equipment(observers=observers_of(bootstrap=TIMES)),
    )
    server.tasks()
    early = Result("a", update("a", 1, "global", 1, 1), {"bootstrap": {"draw": 9, "values": {}}})
    with pytest.raises(PayloadError, match="a: it was not asked to measure draws of its test split"):
        server.accept(early, "site-1")


def filtered_draws(**policy: Any) -> dict[str, Any]:
    """What a site's policy lets out of an honest answer."""
    sent = EgressFilter(**policy).process(wire.encode_results([HONEST], {"round": 0}), FLContext())
    return wire.content_of(from_shareable(sent).meta)["results"]["a"]


def test_a_filter_treats_draws_as_what_they_are_of():
    assert filtered_draws()["bootstrap"] == {"draw": 9, "values": {name: list(own) for name, own in VALUES.items()}}
    assert filtered_draws(withhold=["loss"])["bootstrap"]["values"].keys() == {"served_accuracy"}
    assert "bootstrap" not in filtered_draws(round_to=0.4)  # their mean would be finer than a step
    for nothing in (["*"], ["accuracy", "loss"]):
        assert filtered_draws(withhold=nothing) == {"metrics": {}, "error": None}


def test_a_filter_keeps_the_draws_alone():
    assert filtered_draws(withhold=["bootstrap"]) == {"metrics": DRAWN_METRICS, "error": None}


def test_what_a_filter_lets_out_is_taken():
    for policy in ({"withhold": ["loss"]}, {"round_to": 0.3}, {"withhold": ["bootstrap"]}):
        sent = EgressFilter(**policy).process(wire.encode_results([HONEST], {"round": 0}), FLContext())
        (result,) = decode_results(FLModelUtils.from_shareable(sent), {}, 0, "a")
        at_the_end().accept(result, "site-1")
