# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Answers that once ended a job, decided it, or were stored and shown as they were sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.app_common.abstract.fl_model import FLModel

from cfl_flare.core.errors import FAILURES, PayloadError
from cfl_flare.flare import wire
from cfl_flare.flare.egress import EgressFilter
from cfl_flare.flare.schema import decode_check_in, decode_results
from cfl_flare.training.tasks import Classification
from tests.helpers import bench
from tests.helpers.bench import HOSTILE, PEOPLE, Run, play_job
from tests.hostile.test_generated import TRIED, check_forged_run, in_round

RANGES = Classification().ranges()

WECFL = TRIED["wecfl"]
OWN = set(PEOPLE[HOSTILE])
Change = Callable[[dict[str, Any]], Any]


def forge_meta(change: Change) -> Callable[[Shareable], Shareable]:
    """An answer whose content is changed."""

    def forge(answer: Shareable) -> Shareable:
        dxo = from_shareable(answer)
        change(dxo.meta[wire.META])
        return dxo.update_shareable(answer)

    return forge


def of_check_in(change: Change) -> Callable[[Shareable], Shareable]:
    """A check-in whose second participant is changed."""
    return forge_meta(lambda content: change(content["participants"][1]))


def of_result(change: Change) -> Callable[[Shareable], Shareable]:
    """Results of which p3's is changed."""
    return forge_meta(lambda content: change(content["results"]["p3"]))


HUGE = [{"name": f"x{i}", "samples": 1, "group": None, "tested": True} for i in range(20_000)]
CHECK_INS = {
    "another's name": (of_check_in(lambda p: p.update(name="p0")), "hosts no participant 'p0'"),
    "another site's name": (of_check_in(lambda p: p.update(name="site-1")), "hosts no participant 'site-1'"),
    "a list as name": (of_check_in(lambda p: p.update(name=["p3"])), r"hosts no participant \['p3'\]"),
    "a long name": (of_check_in(lambda p: p.update(name="p" * 300)), r"hosts no participant 'ppp+\.\.\.p+'"),
    "a name twice": (of_check_in(lambda p: p.update(name="p2")), "names it twice"),
    "no name": (of_check_in(lambda p: p.pop("name")), "a participant should have group, name, samples"),
    "NaN as group": (of_check_in(lambda p: p.update(group=float("nan"))), "group = nan should be"),
    "a huge group": (of_check_in(lambda p: p.update(group=10**12)), "group = 1000000000000 should be"),
    "no samples": (of_check_in(lambda p: p.update(samples=0)), "samples = 0 should be a whole number"),
    "negative samples": (of_check_in(lambda p: p.update(samples=-(10**15))), "samples = -10+ should be"),
    "10^12 samples": (of_check_in(lambda p: p.update(samples=10**12)), "samples = 10+ should be a whole number"),
    "half a sample": (of_check_in(lambda p: p.update(samples=20.5)), "samples = 20.5 should be"),
    "True as samples": (of_check_in(lambda p: p.update(samples=True)), "samples = True should be"),
    "a long label": (of_check_in(lambda p: p.update(label="g" * 201)), "label = 'ggg+.*' should be None or 1 to 200"),
    "a label of two lines": (of_check_in(lambda p: p.update(label="a\nb")), r"label = 'a\\nb' should be None or"),
    "a list as label": (of_check_in(lambda p: p.update(label=["g"])), r"label = \['g'\] should be None or"),
    "classes of its own": (
        forge_meta(lambda c: c.update(classes=["b", "a"])),
        r"it numbers its classes \[b, a\], and the run by no names; correct the names there, or set classes=",
    ),
    "a class with a long name": (forge_meta(lambda c: c.update(classes=["a" * 101])), "should have a name of 1 to 100"),
    "a class that moves the cursor": (
        forge_meta(lambda c: c.update(classes=["\x1b[2J"])),
        "should have a name of 1 to",
    ),
    "a class of two lines": (forge_meta(lambda c: c.update(classes=["a\nb"])), r"the class 'a\\nb' should have a name"),
    "a number as class": (forge_meta(lambda c: c.update(classes=[7])), "the class 7 should have a name"),
    "a class twice": (forge_meta(lambda c: c.update(classes=["a", "a"])), "two classes have one name"),
    "very many classes": (
        forge_meta(lambda c: c.update(classes=[f"c{i}" for i in range(10**5)])),
        "a list of at most 1000 names, not 100,000 names",
    ),
    "text as classes": (
        forge_meta(lambda c: c.update(classes="a" * 10**6)),
        "classes should be a list of at most 1000",
    ),
    "too many": (
        forge_meta(lambda c: c.update(participants=HUGE)),
        "20000 participants, of which the server takes 10000",
    ),
    "no list": (forge_meta(lambda c: c.update(participants={"p2": 1})), "should list its participants"),
    "text as error": (
        forge_meta(lambda c: c.update(error="\x1b[2J secret")),
        "^malformed: an error that is not one of",
    ),
    "nothing that FLARE reads": (lambda answer: Shareable(), "^malformed: FLARE cannot read it"),
    "a code that FLARE has not": (lambda answer: make_reply("\x1b[2J" * 1000), "^malformed: FLARE cannot read it"),
}


@pytest.mark.parametrize("case", CHECK_INS)
def test_a_check_in_that_is_not_true_leaves_out_that_site(case):
    forgery, reason = CHECK_INS[case]
    run = play_job(in_round(-1, forgery), WECFL)
    check_forged_run(run, "wecfl")
    assert set(run.left_out) == {HOSTILE}
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(run.left_out[HOSTILE])


def test_a_group_does_not_change_when_a_run_is_resumed():
    """p2 is in group 0 and p3 in group 1; a site that names none any more has left its group."""
    named = wire.from_shareable(bench.answer_check_in(HOSTILE, names_groups=True))
    labels = [p.label for p in decode_check_in(named, HOSTILE, OWN, 9, {"p2": "0", "p0": "1"})]
    assert labels == ["0", "1"]
    for said, label in ((named, "'1'"), (wire.from_shareable(bench.answer_check_in(HOSTILE)), "None")):
        refusal = f"p3: label = {label}, but the run that is resumed has it in group '0'; set CFL_GROUP"
        with pytest.raises(PayloadError, match=refusal):
            decode_check_in(said, HOSTILE, OWN, 9, {"p3": "0"})


def test_a_server_takes_no_more_participants_from_a_site_than_its_operator_allows():
    run = play_job(lambda task, number, answer: answer, WECFL, {"max_participants": 1})
    assert "2 participants, of which the server takes 1" in run.panics[0]


@pytest.mark.parametrize(
    ("training", "says"),
    [
        ({"lr_schedule": "cosine"}, "training: lr_schedule = 'cosine' needs lr_rounds"),
        ({"optimizer": "adam", "momentum": 0.9}, "training: momentum = 0.9 belongs to optimizer = 'sgd'"),
    ],
)
def test_wrong_settings_of_training_end_the_job_at_the_server_which_may_say_why(training, says):
    """All sites have the same, and would each be left out with a code."""
    (reason,) = play_job(lambda task, number, answer: answer, WECFL, training=training).panics
    assert says in reason


@pytest.mark.parametrize("code", FAILURES)
def test_a_site_s_failure_is_shown_in_the_server_s_words(code):
    run = play_job(in_round(-1, forge_meta(lambda content: content.update(error=code))), WECFL)
    assert run.left_out == {HOSTILE: f"{code}: {FAILURES[code]}; its own log says why"}


RESULTS = {
    "10^9 samples": (of_result(lambda r: r.update(samples=10**9)), "samples: p3 says that it has 1000000000"),
    "-1 samples": (of_result(lambda r: r.update(samples=-1)), "samples: p3: samples = -1 should be"),
    "a metric named round": (
        of_result(lambda r: r.update(metrics={"round": 7.0})),
        "metric: p3: it was not asked to measure 'round'",
    ),
    "a metric named trained": (
        of_result(lambda r: r.update(metrics={"trained": 1.0})),
        "not asked to measure 'trained'",
    ),
    "an accuracy of 10^6": (of_result(lambda r: r.update(metrics={"served_accuracy": 1e6})), r"in \[0, 1\]"),
    "a negative loss": (of_result(lambda r: r.update(metrics={"served_loss": -1e9})), "should be a number in"),
    "a huge number": (of_result(lambda r: r.update(metrics={"served_loss": 2**63})), "should be a number in"),
    "NaN": (of_result(lambda r: r.update(metrics={"served_accuracy": float("nan")})), "should be a number in"),
    "many metrics": (
        of_result(lambda r: r.update(metrics={f"m{i}": 1.0 for i in range(10**4)})),
        "metrics are more than",
    ),
    "a model not asked for": (of_result(lambda r: r.update(cross={"m": {"loss": 1.0}})), "not asked to measure"),
    "text as error": (of_result(lambda r: r.update(error="a\nERROR [red]b[/red]")), "malformed: an error that is not"),
    "a failure": (of_result(lambda r: r.update(error="training")), "p3 failed: training: training or measuring failed"),
    "nobody's field": (of_result(lambda r: r.update(weight=10**9)), "malformed: p3: its result should have"),
}
OF_VALUES = (r"in \[0, 1\]", "should be a number in")


@pytest.mark.parametrize("case", RESULTS)
@pytest.mark.parametrize("number", [0, 1])
def test_a_result_that_is_not_true_leaves_out_that_participant(case, number):
    forgery, reason = RESULTS[case]
    if number == 0 and reason in OF_VALUES:  # nobody is asked to measure a model before the first round
        reason = "it was not asked to measure 'served_"
    run = play_job(in_round(number, forgery), WECFL)
    check_forged_run(run, "wecfl")
    failed = run.records[number]["failed"]
    assert set(failed) == {"p3"}
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(failed["p3"])


def stolen(content: dict[str, Any]) -> None:
    """The site says that another's participants failed, in place of its own results."""
    content["results"] = {"p0": {"error": "training"}, "p4": {"error": "training"}}


WHOLE = {
    "for others": (forge_meta(stolen), "unknown_participant: "),
    "for too many": (
        forge_meta(lambda c: c["results"].update({f"x{i}": {} for i in range(8_000)})),
        "malformed: results",
    ),
    "of another round": (forge_meta(lambda c: c.update(round=7)), "round: the results are of round 7"),
    "of a round that is no number": (
        forge_meta(lambda c: c.update(round=True)),
        "round: the results are of round True",
    ),
    "a failure in other words": (forge_meta(lambda c: c.update(error="no\x1b")), "malformed: an error that is not one"),
    "a failure": (forge_meta(lambda c: c.update(error="data")), "site_failed: data: its data cannot be read"),
    "nothing that FLARE reads": (lambda answer: Shareable(), "malformed: FLARE cannot read it"),
    "FLARE's code": (lambda answer: make_reply(ReturnCode.EXECUTION_EXCEPTION), "EXECUTION_EXCEPTION"),
}


@pytest.mark.parametrize("case", WHOLE)
def test_results_that_are_refused_as_a_whole_have_a_reason(case):
    forgery, reason = WHOLE[case]
    run = play_job(in_round(1, forgery), WECFL)
    check_forged_run(run, "wecfl", reasons=case != "for others")
    failed = run.records[1]["failed"]
    assert set(failed) == OWN
    assert case == "for others" or all(text.startswith(reason) for text in failed.values())


def accuracies(values: dict[str, float], metric: str = "served_accuracy") -> Callable[[str, int, Shareable], Shareable]:
    """The hostile participants report these."""

    def attack(task: str, number: int, answer: Shareable) -> Shareable:
        if number < 1:
            return answer
        dxo = from_shareable(answer)
        for name, value in values.items():
            dxo.meta[wire.META]["results"][name]["metrics"][metric] = value
        return dxo.update_shareable(answer)

    return attack


def best_of(run: Run) -> Any:
    return run.controller.aggregator.running.progress.best


def test_no_site_stops_a_job_or_chooses_its_best_round_by_what_it_reports():
    """Honest accuracy is about 0.55, and every round's the same; the loss is 1."""
    stops = {"stop_cond": "accuracy >= 0.75", "num_rounds": 3}
    run = play_job(accuracies({"p2": 1.0, "p3": 1.0}), WECFL, **stops)
    assert len(run.records) == 3 and run.controller.aggregator.running.progress.stopped is None
    run = play_job(accuracies({"p2": 1e6, "p3": 1e6}), WECFL, **stops)
    assert len(run.records) == 3 and run.records[1]["failed"].keys() == OWN
    settings = {"key_metric": "loss", "key_metric_mode": "max", "num_rounds": 3}

    def late(task: str, number: int, answer: Shareable) -> Shareable:
        return accuracies({"p2": 1e8, "p3": 1e8}, "served_loss")(task, number, answer) if number == 2 else answer

    honest, attacked = (
        play_job(lambda task, number, answer: answer, WECFL, **settings),
        play_job(late, WECFL, **settings),
    )
    assert attacked.records[1]["served_loss"] > 1e6  # it is recorded as reported
    assert best_of(attacked) == best_of(honest) == {"round": 0, "value": 1.0}


class Counted(dict):
    """A dictionary that counts how often it is walked through."""

    walks = 0

    def items(self):
        Counted.walks += 1
        return super().items()

    def __iter__(self):
        Counted.walks += 1
        return super().__iter__()


def test_reading_walks_through_the_models_once_however_many_there_are():
    results = {f"p{i}": {"metrics": {}} for i in range(8_000)}
    content = {"schema": wire.SCHEMA, "round": 0, "results": results}
    model = FLModel(params={}, params_type="FULL", meta={wire.META: content})
    model.params = Counted({f"p{i}/global": None for i in range(8_000)})
    found = list(decode_results(model, {}, 0, set(results)))
    assert len(found) == 8_000 and Counted.walks == 1


def test_what_is_logged_of_many_refusals_is_short():
    def broken(content: dict[str, Any]) -> None:
        for said in content["results"].values():
            said["metrics"] = {"x" * 10**5: "y" * 10**5}

    run = play_job(in_round(1, forge_meta(broken)), WECFL)
    check_forged_run(run, "wecfl")
    assert sum(map(len, run.log)) < 5_000


def fill_counts(samples: tuple[int, int, int, int] = (1, 1, 1, 1), said: tuple[int, int, int, int] = (5, 5, 5, 5)):
    """So many samples in each of ten bins, and decisions, without the first class, with it, and so of the second."""
    rows = np.repeat(np.array(samples, np.int32).reshape(2, 2, 1), 10, axis=2)
    return np.concatenate((rows, np.array(said, np.int32).reshape(2, 2, 1)), axis=2)


SCORES = {
    "negative": np.where(np.arange(44).reshape(2, 2, 11) % 11 == 3, -1, 1),
    "NaN": np.full((2, 2, 11), np.nan),
    "floats": np.ones((2, 2, 11), np.float32),
    "huge": np.full((2, 2, 11), 2**63, np.uint64),
    "10^10 samples": np.full((2, 2, 11), 10**9),
    "no samples": np.zeros((2, 2, 11), np.int32),
    "a class more": np.ones((3, 2, 11), np.int32),
    "a flat array": np.ones(44, np.int32),
    "other bins": np.ones((2, 2, 12), np.int32),
    "no decisions": np.ones((2, 2, 10), np.int32),
    "nothing at all": np.zeros((2, 2, 0), np.int32),
    "text": np.full((2, 2, 11), "a"),
    "True": np.ones((2, 2, 11), bool),
    "classes of different splits": fill_counts((1, 1, 2, 2)),
    "a decision more than samples": fill_counts(said=(4, 11, 0, 5)),
    "a decision less than none": fill_counts(said=(-1, 10, 6, 5)),
    "a decision more than one of each": fill_counts(said=(5, 5, 5, 6)),
    "a label more than one of each": fill_counts((1, 2, 1, 2), (5, 10, 5, 10)),
}
ASKED = {"score_bins": 10}


def scores(change: Callable[[DXO], Any], name: str = "p3") -> Callable[[Shareable], Shareable]:
    """Results in which one participant's histograms are others."""

    def forge(answer: Shareable) -> Shareable:
        dxo = from_shareable(answer)
        dxo.data.setdefault(f"{name}/#scores", DXO(DataKind.STATISTICS, data={"counts": fill_counts()}))
        change(dxo.data[f"{name}/#scores"])
        return dxo.update_shareable(answer)

    return forge


def list_pooled_aurocs(run: Run) -> list[float | None]:
    return [record.get("pooled_auroc") for record in run.records]


def test_honest_histograms_are_added_up():
    run = play_job(lambda task, number, answer: answer, WECFL, training=ASKED)
    check_forged_run(run, "wecfl")
    # Of 33 samples without the class 3 share a bin with 12 of the 60 that have it.
    assert list_pooled_aurocs(run) == [pytest.approx(1 - 0.5 * 3 / 33 * 12 / 60)] * 2
    # 30 are predicted to have the first class, all rightly, and 63 the second, 60 of them rightly.
    assert [record["pooled_macro_f1"] for record in run.records] == [pytest.approx((60 / 63 + 120 / 123) / 2)] * 2
    assert all("defined" not in record for record in run.records)


@pytest.mark.parametrize("case", SCORES)
@pytest.mark.parametrize("number", [1, 2])
def test_histograms_that_are_no_counts_cost_their_participant_the_round(case, number):
    """In round 2, the last, nobody trains, and models are measured alone."""
    forged = scores(lambda dxo: dxo.data.update(counts=SCORES[case]))
    run = play_job(in_round(number, forged), WECFL, training=ASKED)
    check_forged_run(run, "wecfl")
    if number < 2:
        assert run.records[number]["failed"].keys() == {"p3"}
        assert run.records[number]["failed"]["p3"].startswith("scores: p3: its histograms")
    assert run.controller.aggregator.running.rejected == {"scores": 1}
    assert 0.9 < list_pooled_aurocs(run)[number - 1] < 1  # of the others


FORMS = {
    "no array": lambda dxo: dxo.data.update(counts=[[[1]]]),
    "another name": lambda dxo: dxo.data.update(more=np.ones(3)),
    "none": lambda dxo: dxo.data.clear(),
    "a model": lambda dxo: setattr(dxo, "data_kind", DataKind.WEIGHT_DIFF),
}


@pytest.mark.parametrize("case", FORMS)
def test_histograms_of_another_form_cost_their_participant_the_round(case):
    run = play_job(in_round(1, scores(FORMS[case])), WECFL, training=ASKED)
    check_forged_run(run, "wecfl")
    reason = "scores: p3: its histograms of scores should be one array of counts"
    assert run.records[1]["failed"] == {"p3": reason}


@pytest.mark.parametrize(("number", "training"), [(0, ASKED), (1, {}), (0, {})])
def test_histograms_that_nobody_asked_for_are_refused(number, training):
    """In round 0 nothing is measured."""
    run = play_job(in_round(number, scores(lambda dxo: None)), WECFL, training=training)
    check_forged_run(run, "wecfl")
    assert run.records[number]["failed"] == {"p3": "scores: p3: it was not asked for histograms of scores"}


def test_histograms_of_one_who_was_not_asked_anything_end_nothing():
    run = play_job(in_round(1, scores(lambda dxo: None, "p0")), WECFL, training=ASKED)
    check_forged_run(run, "wecfl")
    assert run.records[1]["failed"].keys() == OWN  # the whole answer of their site


def test_the_pooled_value_goes_on_without_those_that_withhold_theirs():
    def withheld(answer: Shareable) -> Shareable:
        return EgressFilter(withhold=["scores"]).process(answer, FLContext())

    run = play_job(lambda task, number, answer: withheld(answer) if number > 0 else answer, WECFL, training=ASKED)
    check_forged_run(run, "wecfl")
    assert [record["failed"] for record in run.records] == [{}, {}]
    assert [record["defined"] for record in run.records] == [{"pooled_auroc": 4, "pooled_macro_f1": 4}] * 2
    assert None not in list_pooled_aurocs(run)


def test_a_site_that_claims_10_to_the_9_samples_does_not_choose_the_best_round():
    def liar(good: bool) -> Callable[[DXO], None]:
        claimed = np.zeros((2, 2, 11), np.int64)
        claimed[:, 0, 0 if good else 9] = claimed[:, 1, 9 if good else 0] = claimed[:, int(good), 10] = 5 * 10**8
        return lambda dxo: dxo.data.update(counts=claimed)

    settings = {"key_metric": "pooled_auroc", "max_weight_share": 1 / 3, "training": ASKED, "num_rounds": 3}
    run = play_job(in_round(2, scores(liar(False))), WECFL, **settings)
    assert min(run.records[1][name] for name in ("pooled_auroc", "pooled_macro_f1")) > 0.3  # a third of it is its own
    steady = play_job(in_round(2, scores(liar(False))), WECFL, stop_cond="pooled_auroc < 0.3", **settings)
    other = {**settings, "key_metric": "pooled_macro_f1", "stop_cond": "pooled_macro_f1 < 0.3"}
    assert steady.controller.aggregator.running.progress.stopped is None and len(steady.records) == 3
    steady = play_job(in_round(2, scores(liar(False))), WECFL, **other)
    assert steady.controller.aggregator.running.progress.stopped is None and len(steady.records) == 3
