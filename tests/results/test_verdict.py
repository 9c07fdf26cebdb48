# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a study says."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfl_flare.results.comparison import AtHospital, Measured
from cfl_flare.results.decision import Contest, decide
from cfl_flare.results.study import Entrant

ALONE, ONE = Entrant("local", "each hospital alone"), Entrant("fedavg", "one model for all")
TWO, THREE = Entrant("wecfl-k2", "wecfl (K=2)", 2), Entrant("wecfl-k3", "wecfl (K=3)", 3)
HOSPITALS = 12


def make_hospitals(value: float, tested: int = 100, **others: float) -> Measured:
    """Twelve hospitals with 1 to 12 samples that measure this value, on draws that all candidates share."""
    shared = 0.02 * np.random.default_rng(0).normal(size=200)
    values = {f"h{i}": others.get(f"h{i}", value) for i in range(HOSPITALS)}
    return {name: AtHospital(i + 1, tested, 3, v, v + shared) for i, (name, v) in enumerate(values.items())}


def all_over(**values: float) -> dict[str, Measured]:
    """The same of each candidate."""
    return {name.replace("_", "-"): make_hospitals(value) for name, value in values.items()}


def prefer(
    entrants: list[Entrant], validated: dict[str, Measured], mode: str = "max", found: int | None = None
) -> Entrant | None:
    return Contest({}, validated, entrants, mode, found).prefer(entrants)


def test_clusters_that_are_clearly_better_are_recommended_with_numbers():
    tested = {
        "local": make_hospitals(0.7, h3=0.95),
        "fedavg": make_hospitals(0.79, h7=0.88),
        "wecfl-k3": make_hospitals(0.84, h0=0.94, h1=0.8),
    }
    validated = all_over(local=0.7, fedavg=0.79, wecfl_k3=0.84)
    found = decide(tested, validated, [ALONE, ONE, THREE], 20, "auroc")
    assert found.cluster and found.chosen == THREE and found.best_other == ONE
    advice, basis, each, one, alone, gain, own = found.sentences()
    assert each == "Without any one of 12 hospitals the choice is the same."
    assert advice == "Cluster into 3: train wecfl (K=3)."
    assert basis == (
        "Chosen by 12 of 12 hospitals with 1200 validation samples; judged by 12 of 12 hospitals with 1200 test "
        "samples."
    )
    # h7 has 8 of 78 samples: 0.79 + 0.09 * 8 / 78 = 0.7992; with clusters 0.84 + (0.1 - 2 * 0.04) / 78 = 0.8403
    assert one.startswith("Against one model for all: auroc 0.840 against 0.799 (+0.041, 95 % interval ")
    assert one.endswith(", clear).") and alone.startswith("Against each hospital alone: auroc 0.840 against 0.713")
    assert gain == "11 of 12 hospitals gain over one model; h7 loses."
    assert own == "11 of 12 hospitals are better off than alone; h3 better off alone."


def test_test_samples_do_not_choose_among_candidates_with_clusters():
    tested = {"local": make_hospitals(0.5), "fedavg": make_hospitals(0.6), "wecfl-k2": make_hospitals(0.7)}
    tested["wecfl-k3"] = make_hospitals(0.9)
    validated = all_over(local=0.5, fedavg=0.6, wecfl_k2=0.81, wecfl_k3=0.8)
    assert decide(tested, validated, [ALONE, ONE, TWO, THREE], 20, "accuracy").chosen == TWO


def test_among_candidates_that_are_alike_the_simplest_is_taken():
    """K=3 is better by 0.01 on average, which differs between hospitals more than that; K=2 is private and is not."""
    uneven = {f"h{i}": 0.81 + (0.1 if i % 2 else -0.1) for i in range(HOSPITALS)}
    own = Entrant("wecfl-k2-norm", "wecfl (K=2) with private norm layers", 2, True)
    validated = all_over(wecfl_k2=0.8, wecfl_k2_norm=0.8) | {"wecfl-k3": make_hospitals(0.0, **uneven)}
    assert prefer([THREE, own, TWO], validated) == TWO
    assert prefer([THREE, own], validated) == own
    assert prefer([THREE, TWO], validated | {"wecfl-k3": make_hospitals(0.81)}) == THREE  # everywhere by as much
    assert prefer([THREE, TWO], validated | {"wecfl-k3": make_hospitals(0.79)}, "min") == THREE
    assert prefer([own], validated) == own and prefer([], {}) is None
    assert prefer([TWO, THREE], validated, found=3) == THREE  # k=auto found three, and validation does not contradict
    assert prefer([TWO, THREE], validated | {"wecfl-k2": make_hospitals(0.9)}, found=3) == TWO


def test_each_hospital_alone_is_the_last_of_those_that_are_alike():
    """Alone is better by 0.01 on average, which differs between hospitals more than that."""
    uneven = {f"h{i}": 0.81 + (0.1 if i % 2 else -0.1) for i in range(HOSPITALS)}
    private = Entrant("fedavg-bias", "one model for all with private biases", 0, True)
    validated = all_over(fedavg=0.8, fedavg_bias=0.801) | {"local": make_hospitals(0.0, **uneven)}
    assert prefer([ALONE, ONE, private], validated) == private  # of the two ways to have one model, the better one
    assert prefer([ALONE, ONE, private], validated | {"fedavg": make_hospitals(0.802)}) == ONE
    assert prefer([ALONE, ONE, private], validated | {"fedavg-bias": make_hospitals(0.8)}) == ONE
    assert prefer([ALONE, ONE, private], validated | {"local": make_hospitals(0.9)}) == ALONE


def test_a_model_that_each_hospital_tunes_is_taken_if_one_model_is_clearly_worse():
    """Tuned it is better by 0.01 on average, which differs between hospitals more than that; then everywhere."""
    uneven = {f"h{i}": 0.81 + (0.1 if i % 2 else -0.1) for i in range(HOSPITALS)}
    tuned = Entrant("finetune", "one model, fine-tuned at each hospital", tuned=True)
    validated = all_over(fedavg=0.8, local=0.81) | {"finetune": make_hospitals(0.0, **uneven)}
    assert prefer([ONE, tuned], validated) == ONE
    assert prefer([ALONE, ONE, tuned], validated | {"finetune": make_hospitals(0.82)}) == tuned
    assert prefer([ALONE, tuned], validated | {"finetune": make_hospitals(0.81)}) == tuned  # alone is never simpler
    two = Entrant("wecfl-k2-finetune", "wecfl-finetune (K=2)", 2, tuned=True)
    assert prefer([two, THREE], all_over(wecfl_k2_finetune=0.8, wecfl_k3=0.8)) == THREE


RANDOM = Entrant("random-k3", "random groups (K=3)", 3, control=True)


def test_clusters_have_to_be_clearly_better_than_random_groups():
    values = all_over(local=0.5, fedavg=0.7, wecfl_k3=0.8, random_k3=0.6)
    verdict = decide(values, values, [ALONE, ONE, THREE, RANDOM], 20, "auroc")
    assert verdict.cluster and verdict.chosen == THREE
    against = next(sentence for sentence in verdict.sentences() if "random" in sentence)
    assert against.startswith("Against random groups of the same sizes: auroc 0.800 against 0.600 (+0.200, 95 % inter")
    alike = values | {"random-k3": make_hospitals(0.8)}
    verdict = decide(alike, alike, [ALONE, ONE, THREE, RANDOM], 20, "auroc")
    assert not verdict.cluster and verdict.chosen == ONE
    assert verdict.sentences()[0].startswith(
        "Do not cluster: train one model for all. wecfl (K=3) is not clearly better than random groups: auroc 0.800 aga"
    )


def test_random_groups_are_never_recommended_and_need_not_come_to_the_end():
    values = all_over(local=0.5, fedavg=0.6, wecfl_k3=0.7, random_k3=0.9)
    verdict = decide(values, values, [ALONE, ONE, THREE, RANDOM], 20, "auroc")
    assert verdict.chosen == ONE and verdict.best_clustered == THREE
    verdict = decide(values, values, [ALONE, ONE, THREE], 20, "auroc")  # they were dropped
    assert verdict.chosen == THREE and not any("random" in sentence for sentence in verdict.sentences())
    alone = decide(values, values, [ALONE, ONE, RANDOM], 20, "auroc")
    assert alone.best_clustered is None and not alone.cluster


def with_events(measured: Measured, events: int) -> Measured:
    """The same, with so many samples of class 1 at each hospital."""
    return {name: replace(own, classes=(own.tested - events, events)) for name, own in measured.items()}


def test_too_few_events_cannot_tell_and_local_is_not_recommended_by_them():
    tested = {
        name: with_events(make_hospitals(v), 4) for name, v in (("local", 0.9), ("fedavg", 0.8), ("wecfl-k2", 0.95))
    }
    found = decide(tested, tested, [ALONE, ONE, TWO], 20, "auroc", fewest=100, everyone=15)
    assert not found.cluster and found.chosen == ONE
    advice, basis, *_ = found.sentences()
    assert advice == (
        "Cannot tell whether to cluster: 96 validation and test samples that are not of the most frequent class are "
        "too few, 100 are needed (--fewest-events). Until then, train one model for all."
    )
    assert basis == (
        "Chosen by 12 of 15 hospitals with 1200 validation samples, 48 of them not of the most frequent class; judged "
        "by 12 of 15 hospitals with 1200 test samples, 48 of them not of the most frequent class."
    )
    assert decide(tested, tested, [ALONE, ONE, TWO], 20, "auroc", fewest=96).chosen == TWO
    unknown = {name: make_hospitals(own["h0"].value) for name, own in tested.items()}  # 1200 samples of no known class
    assert decide(unknown, unknown, [ALONE, ONE, TWO], 20, "auroc", fewest=2400).cluster
    assert decide(unknown, unknown, [ALONE, ONE, TWO], 20, "auroc", fewest=2401).unsure


def test_under_survival_events_are_counted_and_not_patients():
    """Each of twelve hospitals has 100 patients in each split, of whom 1 to 12 have an event: 78 in each."""
    hospitals = {
        name: {n: replace(own, events=int(own.samples)) for n, own in make_hospitals(value).items()}
        for name, value in (("local", 0.6), ("fedavg", 0.7), ("wecfl-k2", 0.8))
    }
    found = decide(hospitals, hospitals, [ALONE, ONE, TWO], 20, "c_index", fewest=157)
    assert found.unsure == (
        "156 validation and test samples with an event are too few, 157 are needed (--fewest-events)"
    )
    assert found.basis["test"].text("test") == "12 of 12 hospitals with 1200 test samples, 78 of them with an event"
    assert decide(hospitals, hospitals, [ALONE, ONE, TWO], 20, "c_index", fewest=156).cluster


def test_an_accuracy_that_naming_one_class_has_is_no_verdict():
    rare = {
        name: with_events(make_hospitals(v), 7) for name, v in (("local", 0.93), ("fedavg", 0.929), ("wecfl-k2", 0.93))
    }
    entrants = [ALONE, ONE, TWO]
    advice = decide(rare, rare, entrants, 20, "accuracy").sentences()[0]
    assert advice.startswith(
        "Cannot tell whether to cluster: accuracy 0.930 is no better than naming the most frequent class everywhere, "
        "0.930 (0.000, 95 % interval "
    )
    assert advice.endswith(
        "); judge by another key_metric, such as loss or auroc. Until then, train one model for all."
    )
    assert not decide(rare, rare, entrants, 20, "auroc").unsure
    good = rare | {
        "wecfl-k2": with_events(make_hospitals(0.99), 7)
    }  # it is enough that the best with clusters says more
    assert decide(good, good, entrants, 20, "accuracy").cluster


def test_a_margin_that_is_wide_for_a_loss_is_remarked_on():
    tested = all_over(local=0.21, fedavg=0.2)
    found = decide(tested, tested, [ALONE, ONE], 5, "loss", "min")
    assert found.margin == pytest.approx(0.01) and not any("margin" in one for one in found.sentences())
    wide = decide(tested, tested, [ALONE, ONE], 5, "loss", "min", margin=0.05)
    assert wide.sentences()[-1] == (
        "The margin 0.05 is 25% of one model's loss, 0.200: hospitals within chance may differ by that much. Leave "
        "--margin out for a twentieth of it."
    )
    assert not any("margin" in one for one in decide(tested, tested, [ALONE, ONE], 5, "auroc", margin=0.05).sentences())


def test_without_a_clear_gain_on_test_samples_there_is_no_clustering():
    better = {f"h{i}": 0.79 + (0.02 if i % 2 else -0.02) for i in range(HOSPITALS)}
    tested = {"local": make_hospitals(0.5), "fedavg": make_hospitals(0.79), "wecfl-k2": make_hospitals(0.0, **better)}
    validated = all_over(local=0.5, fedavg=0.79, wecfl_k2=0.9)
    found = decide(tested, validated, [ALONE, ONE, TWO], 20, "accuracy")
    assert not found.cluster and found.chosen == ONE
    advice, _, _, alone, *_ = found.sentences()
    assert advice.startswith(
        "Do not cluster: train one model for all. wecfl (K=2) is no clear gain over it: accuracy 0.792 against 0.790"
    )
    assert advice.endswith(", within chance).")
    assert alone.startswith("Against each hospital alone: accuracy 0.790 against 0.500")


def test_clusters_that_are_clearly_worse_are_said_to_be_so():
    tested = all_over(local=0.9, fedavg=0.8, wecfl_k2=0.85)
    found = decide(tested, tested, [ALONE, ONE, TWO], 20, "accuracy")
    advice = "Do not cluster: let each hospital train alone. wecfl (K=2) is clearly worse: accuracy 0.850 against 0.900"
    assert found.sentences()[0].startswith(advice)


def test_where_alone_is_best_and_nothing_with_clusters_is_left():
    tested = {"local": make_hospitals(3.0), "fedavg": make_hospitals(4.0)}
    found = decide(tested, all_over(local=3.0, fedavg=4.0), [ALONE, ONE], 5, "mae", "min")
    advice, _, _, one, *_ = found.sentences()
    assert advice == ("Do not cluster: let each hospital train alone. No candidate with clusters was left to compare.")
    # The sign is the metric's: an error that is lower by one.
    assert one == "Against one model for all: mae 3.000 against 4.000 (-1.000, 95 % interval -1.000 to -1.000, clear)."


def test_small_hospitals_cannot_tell_and_few_of_them_say_little():
    small = {name: own for name, own in make_hospitals(0.9, tested=8).items() if name in ("h0", "h1", "h2")}
    other = {name: own for name, own in make_hospitals(0.8, tested=8).items() if name in small}
    found = decide({"local": other, "fedavg": small}, all_over(local=0.8, fedavg=0.9), [ALONE, ONE], 5, "accuracy")
    assert found.sentences()[-2:] == [
        "0 of 3 hospitals are better off than alone; 3 cannot tell (about 20 test samples each would do).",
        "With 3 hospitals, the intervals say little of other hospitals.",
    ]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(-0.1, 0.1), min_size=2, max_size=8),
    st.integers(0, 20),
    st.sampled_from([("auroc", "max"), ("loss", "min")]),
)
def test_whatever_the_numbers_a_sentence_says_what_its_interval_shows(gains, seed, metric):
    noise = np.random.default_rng(seed).normal(size=(len(gains), 50)) * 0.02
    two = {f"h{i}": AtHospital(1, 100, 1, 0.5 + v, 0.5 + v + noise[i]) for i, v in enumerate(gains)}
    none = {name: AtHospital(1, 100, 1, 0.5, np.full(50, 0.5)) for name in two}
    tested = {"local": none, "fedavg": none, "wecfl-k2": two}
    found = decide(tested, tested, [ALONE, ONE, TWO], 5, *metric)
    said = 0
    for sentence in found.sentences():
        for low, high, word in re.findall(r"95 % interval (\S+) to (\S+), (clear|within chance)\)", sentence):
            ends, said = (float(low), float(high)), said + 1
            assert ends[0] <= ends[1] and (word == "clear") == (not ends[0] <= 0 <= ends[1])
            if "clearly worse" in sentence or sentence.startswith("Against"):
                assert (word == "clear") or "clearly" not in sentence
    assert said >= 1 + (not found.unsure) and (not found.cluster or [*found.compared.values()][1].low > 0)
    assert found.unsure or not found.reversed_without


def test_a_verdict_is_json_and_names_are_shown_on_one_line():
    name = "h0\x1b[31m\n"
    worse = {name: make_hospitals(0.9)["h0"], **make_hospitals(0.2)}
    better = {name: make_hospitals(0.2)["h0"], **make_hospitals(0.9)}
    found = decide({"local": better, "fedavg": worse}, all_over(local=0.9, fedavg=0.2), [ALONE, ONE], 5, "accuracy")
    assert json.loads(json.dumps(found.to_dict()))["chosen"]["name"] == "local"
    assert not [s for s in found.sentences() if not s.isprintable()] and "\\x1b" in " ".join(found.sentences())


@pytest.mark.parametrize("mode", ["max", "min"])
def test_equal_candidates_never_cluster(mode):
    tested = {name: make_hospitals(0.8) for name in ("local", "fedavg", "wecfl-k2")}
    found = decide(tested, dict.fromkeys(tested, make_hospitals(0.8)), [ALONE, ONE, TWO], 5, "accuracy", mode)
    assert not found.cluster and not any(one.clear for one in found.compared.values())


def lied_about(values: dict[str, float], lies: dict[str, float], seed: int) -> dict[str, Measured]:
    """Eight hospitals with noise of their own; h7 says what it likes."""
    rng = np.random.default_rng(seed)
    shift, noise = rng.normal(size=8) * 0.03, rng.normal(size=(8, 200)) * 0.02
    said = {}
    for way, value in values.items():
        at = [value + shift[i] + rng.normal() * 0.01 for i in range(7)] + [lies.get(way, value + shift[7])]
        said[way] = {f"h{i}": AtHospital(100, 100, 1, v, v + (i < 7) * noise[i]) for i, v in enumerate(at)}
    return said


@pytest.mark.parametrize("seed", range(8))
def test_one_hospital_of_eight_does_not_turn_a_verdict_into_training_alone(seed):
    values = {"local": 0.75, "fedavg": 0.7, "wecfl-k2": 0.85}
    honest, lies = lied_about(values, {}, seed), {"local": 1.0, "fedavg": 0.0, "wecfl-k2": 0.0}
    assert decide(honest, honest, [ALONE, ONE, TWO], 5, "accuracy").cluster
    said = lied_about(values, lies, seed)
    found = decide(said, said, [ALONE, ONE, TWO], 5, "accuracy")
    assert found.chosen != ALONE and (found.cluster or "h7" in found.reversed_without)
    assert found.cluster or "one hospital reverses it" in found.sentences()[0]


@pytest.mark.parametrize("seed", range(8))
def test_one_hospital_s_loss_does_not_hide_that_clusters_win(seed):
    values = {"local": 0.6, "fedavg": 0.7, "wecfl-k2": 0.4}
    said = lied_about(values, {"local": 0.0, "fedavg": 0.0, "wecfl-k2": 1e9}, seed)
    found = decide(said, said, [ALONE, ONE, TWO], 5, "loss", "min")
    assert found.cluster and found.tested["wecfl-k2"] > 1e8  # a printed mean is the mean
    named = "A difference counts as less than was measured at h7: it is far outside the other hospitals'."
    assert named in found.sentences()


# ---- What is less simple has to be clearly better ----


def test_a_tie_with_training_alone_is_for_clusters():
    """Clusters are better than one model by 0.1, and training alone and fine-tuning are as good as clusters."""
    tuned = Entrant("finetune", "one model, fine-tuned at each hospital", tuned=True)
    values = all_over(local=0.81, fedavg=0.7, wecfl_k2=0.8) | {"finetune": make_hospitals(0.8)}
    noise = {f"h{i}": 0.81 + (0.1 if i % 2 else -0.1) for i in range(HOSPITALS)}
    values["local"] = make_hospitals(0.0, **noise)
    found = decide(values, values, [ALONE, ONE, TWO, tuned], 20, "accuracy")
    assert found.cluster and found.chosen == TWO and found.best_other == ONE
    better = values | {"local": make_hospitals(0.9)}
    found = decide(better, better, [ALONE, ONE, TWO, tuned], 20, "accuracy")
    assert not found.cluster and found.chosen == ALONE
    assert found.sentences()[0].startswith("Do not cluster: let each hospital train alone. wecfl (K=2) is clearly wor")


def test_clusters_that_may_be_better_by_what_matters_cannot_be_told():
    """Gains of 0.1 and -0.08 in turn, weighted: the interval reaches beyond 0.025, half of the margin."""
    uneven = {f"h{i}": 0.8 + (0.1 if i % 2 else -0.08) for i in range(HOSPITALS)}
    tested = {"local": make_hospitals(0.5), "fedavg": make_hospitals(0.8), "wecfl-k2": make_hospitals(0.0, **uneven)}
    validated = all_over(local=0.5, fedavg=0.8, wecfl_k2=0.85)
    found = decide(tested, validated, [ALONE, ONE, TWO], 20, "accuracy")
    gain = (sum(range(2, 13, 2)) * 0.1 - sum(range(1, 13, 2)) * 0.08) / 78
    apart = found.compared["wecfl-k2", "fedavg"]
    assert apart.gain == pytest.approx(gain) and not found.cluster
    half = apart.high - gain
    more = math.ceil(12 * (half / max(gain, 0.025 - gain)) ** 2)
    assert found.unsure == (
        f"wecfl (K=2) may be better than one model for all by up to {apart.high:.3f} of accuracy, and 0.025 matters; "
        f"about {more} hospitals such as these would tell"
    )


def make_six(gains: list[float], samples: list[int]) -> dict[str, Measured]:
    """Six hospitals whose clusters gain so much over one model."""
    rng = np.random.default_rng(0)
    noise = 0.02 * rng.normal(size=(6, 200))
    values = {"local": -0.1, "fedavg": 0.0, "wecfl-k2": 1.0}
    return {
        way: {
            f"h{i}": AtHospital(samples[i], 100, 1, 0.5 - factor * gain, 0.5 - factor * gain + noise[i])
            for i, gain in enumerate(gains)
        }
        for way, factor in values.items()
    }


def test_two_groups_of_three_hospitals_with_opposite_effects_are_found():
    """Each hospital gains. Without one of three, two thirds of its group's gain are left."""
    values = make_six([0.06, 0.05, 0.07, 0.02, 0.01, 0.03], [50, 60, 40, 70, 50, 30])
    found = decide(values, values, [ALONE, ONE, TWO], 20, "loss", "min")
    assert found.cluster and not found.unsure and found.left_out == 6


def test_one_of_six_hospitals_does_not_make_clusters_better():
    values = make_six([0.6, 0.0, 0.001, -0.001, 0.002, 0.0], [50, 60, 40, 70, 50, 30])
    assert not decide(values, values, [ALONE, ONE, TWO], 20, "loss", "min").cluster


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-0.05, 0.1), st.integers(1, 100)), min_size=5, max_size=12),
    st.floats(-1e6, 1e6),
)
def test_no_hospital_alone_makes_clusters_clearly_better(rows, lie):
    """The others' interval with a plain t: if it lies below 0, no number of one more hospital lifts the verdict."""
    gains_of = [gain for gain, _ in rows]
    samples = [size for _, size in rows]

    def measure(values: list[float], weights: list[int]) -> Measured:
        return {f"h{i}": AtHospital(weights[i], 100, 1, v, np.full(9, v)) for i, v in enumerate(values)}

    honest = {
        "local": measure([0.0] * len(rows), samples),
        "fedavg": measure([0.5] * len(rows), samples),
        "wecfl-k2": measure([0.5 + gain for gain in gains_of], samples),
    }
    without = decide(honest, honest, [ALONE, ONE, TWO], 5, "r2")
    typical = sum(samples) // len(samples)
    lying = {
        "local": measure([0.0] * (len(rows) + 1), [*samples, typical]),
        "fedavg": measure([0.5] * (len(rows) + 1), [*samples, typical]),
        "wecfl-k2": measure([*(0.5 + gain for gain in gains_of), 0.5 + lie], [*samples, typical]),
    }
    found = decide(lying, lying, [ALONE, ONE, TWO], 5, "r2")
    if without.compared["wecfl-k2", "fedavg"].gain <= 0:
        assert not found.cluster


def test_hospitals_without_which_nothing_can_be_compared_reverse_the_choice():
    """Any two candidates have one hospital in common, and no hospital measured all three."""
    values = all_over(local=0.5, fedavg=0.6, wecfl_k2=0.8)
    missing = {"local": "h2", "fedavg": "h0", "wecfl-k2": "h1"}
    some = {
        way: {name: measured[name] for name in ("h0", "h1", "h2") if name != missing[way]}
        for way, measured in values.items()
    }
    found = decide(some, values, [ALONE, ONE, TWO], 20, "auroc")
    assert found.reversed_without == dict.fromkeys(("h0", "h2"), "no choice")
    assert found.unsure.startswith("one hospital reverses it: with all it is 'cluster', and 'no choice' without h")


def test_a_hospital_without_which_less_is_clear_reverses_nothing():
    """Fine-tuning is better than one model everywhere by the same 0.019, and so clear without any hospital.

    Clusters gain 0.005 to 0.045. Without the last hospital their gain is not clear, and more than half of it is left.
    """
    gains_of = {"local": [-0.1] * 6, "fedavg": [0.0] * 6, "finetune": [0.019, 0.02, 0.018, 0.019, 0.02, 0.018]}
    gains_of["wecfl-k2"] = [0.005, 0.045, 0.012, 0.04, 0.005, 0.04]
    values = {
        way: {f"h{i}": AtHospital(50, 100, 1, 0.5 + gain, np.full(9, 0.5 + gain)) for i, gain in enumerate(gains)}
        for way, gains in gains_of.items()
    }
    tuned = Entrant("finetune", "one model, fine-tuned at each hospital", tuned=True)
    entrants = [ALONE, ONE, TWO, tuned]
    without = {way: {n: own for n, own in measured.items() if n != "h5"} for way, measured in values.items()}
    assert not decide(without, without, entrants, 20, "auroc").cluster
    found = decide(values, values, entrants, 20, "auroc")
    assert found.cluster and not found.unsure


def test_while_clusters_are_in_doubt_what_is_clearly_better_is_recommended():
    """Training alone is better than one model everywhere. Clusters are better by 0.2 or worse by 0.2 in turn."""
    uneven = {f"h{i}": 0.9 + (0.1 if i % 2 else -0.3) for i in range(HOSPITALS)}
    values = all_over(local=0.9, fedavg=0.8) | {"wecfl-k2": make_hospitals(0.0, **uneven)}
    found = decide(values, values, [ALONE, ONE, TWO], 20, "auroc")
    assert found.unsure.startswith("wecfl (K=2) may be better than each hospital alone") and found.chosen == ALONE
    assert found.sentences()[0].endswith("Until then, let each hospital train alone.")
