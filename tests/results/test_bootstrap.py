# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Intervals of a run's final measures, and paired differences of two runs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from cfl_flare import paired_difference
from cfl_flare.core.arrays import save_arrays
from cfl_flare.core.errors import ConfigError, PayloadError
from cfl_flare.data import Digits
from cfl_flare.engine.settings import ServerSettings
from cfl_flare.methods import FedAvg, Local, Method, Participant
from cfl_flare.report.table import results_table
from cfl_flare.results.bootstrap import BOOTSTRAP, Draws, interval, read_draws, weighted
from cfl_flare.results.run_dir import SUMMARY, Run, load_run
from cfl_flare.training.bootstrap import Replicates, drawn_rows, replicates
from cfl_flare.training.settings import TrainSettings
from cfl_flare.training.tasks import Classification
from tests.loop import run_loop
from tests.play import DATA, MODEL

NAN = float("nan")
PEOPLE = {name: Participant(name, "site", samples) for name, samples in (("a", 3), ("b", 1), ("c", 4))}
# 101 draws, whose 2.5 and 97.5 percentiles are the values at 2.5 and 97.5.
RISING = tuple(i / 100 for i in range(101))
FALLING = RISING[::-1]


def drawn(**values: tuple[float | None, ...]) -> Replicates:
    return Replicates(7, {f"served_{name}": own for name, own in values.items()})


def test_an_interval_is_the_middle_of_what_is_there():
    assert interval(np.array(RISING)) == pytest.approx((0.025, 0.975))
    assert interval(np.array([*RISING, *[NAN] * 101])) == pytest.approx((0.025, 0.975))
    assert interval(np.array([*RISING, *[NAN] * 102])) is None
    assert interval(np.array([NAN])) is None


def test_means_are_made_draw_by_draw_with_unequal_weights():
    draws = Draws.of({"b": drawn(accuracy=FALLING), "a": drawn(accuracy=RISING)}, PEOPLE)
    assert draws.participants == ("a", "b") and draws.samples == (3, 1)
    assert draws.intervals("a", {"served_accuracy": 0.5}) == {"served_accuracy": pytest.approx((0.025, 0.975))}
    assert draws.intervals("a", {"served_accuracy": 0.6}) == {"served_accuracy": pytest.approx((0.125, 1))}  # a share
    assert draws.intervals("c", {}) == {}
    # (3 i + 1 (100 - i)) / 400 = 0.25 + i / 200
    found = draws.of_mean("served_accuracy", {"a": 0.5, "b": 0.5})
    assert found == pytest.approx((0.25 + 2.5 / 200, 0.25 + 97.5 / 200))
    assert draws.of_mean("served_accuracy", dict.fromkeys("abc", 0.5)) is None  # c is in the mean, and sent no draws
    assert draws.of_mean("served_loss", {"a": 1.0, "b": 1.0}) is None


def test_a_macro_f1_lies_in_its_own_interval():
    """100 hospitals with 3 samples of each of 8 classes: draws lack some, so that the mean is lower on most draws."""
    task, rng, drawn_of, points, people = Classification(), np.random.default_rng(1), {}, {}, {}
    labels = np.repeat(np.arange(8), 3)
    for name in (f"p{i}" for i in range(100)):
        outputs = torch.eye(8)[np.where(rng.random(24) < 0.3, labels, rng.integers(8, size=24))]
        targets = torch.from_numpy(labels)
        values = replicates(task, outputs, targets, ("macro_f1",), drawn_rows(0, name, "", 24, 40))
        drawn_of[name] = Replicates(7, {"served_macro_f1": values["macro_f1"]})
        points[name] = task.measured(outputs, targets)["macro_f1"]
        people[name] = Participant(name, name, 1)
    draws = Draws.of(drawn_of, people)
    low, high = draws.of_mean("served_macro_f1", points)
    assert low < np.mean([*points.values()]) < high
    assert interval(draws.values["served_macro_f1"].mean(axis=0))[1] < np.mean([*points.values()])


def test_draws_that_do_not_define_a_measure_are_replaced_by_the_participant_s_own():
    values = np.array([[0.0, NAN, 1.0, NAN], [1.0, 1.0, 0.0, 0.0]])
    assert weighted(values, np.array([1.0, 1.0])).tolist() == [0.5, 0.5, 0.5, 0.5]
    values[0, 2] = NAN
    assert weighted(values, np.array([1.0, 1.0])) is None
    one = {"a": drawn(auroc=(None, *RISING[1:])), "b": drawn(auroc=(*[None] * 51, *RISING[51:]))}
    draws = Draws.of(one, PEOPLE)
    assert draws.intervals("a", {}).keys() == {"served_auroc"} and draws.intervals("b", {}) == {}
    assert draws.of_mean("served_auroc", {"a": 0.5}) is not None
    assert draws.of_mean("served_auroc", {"a": 0.5, "b": 0.5}) is None


def test_a_measure_that_one_participant_withheld():
    draws = Draws.of({"a": drawn(accuracy=RISING, loss=RISING), "b": drawn(accuracy=RISING)}, PEOPLE)
    assert np.isnan(draws.values["served_loss"][1]).all()
    assert draws.intervals("b", {}).keys() == {"served_accuracy"}
    assert draws.of_mean("served_loss", {"a": 0.5}) == pytest.approx((0.025, 0.975))  # the mean is over a, too


def run(folder: Path, draws: dict[str, Replicates], **points: float) -> Run:
    """A run with these draws, whose participants have these accuracies."""
    folder.mkdir()
    Draws.of(draws, PEOPLE).save(folder / BOOTSTRAP)
    return Run(folder, {"participants": [{"name": name, "served_accuracy": own} for name, own in points.items()]})


def test_a_difference_is_paired_draw_by_draw(tmp_path):
    level = tuple(0.1 + value / 2 for value in RISING)
    one = run(tmp_path / "one", {"a": drawn(accuracy=RISING), "b": drawn(accuracy=FALLING)}, a=0.5, b=0.75)
    two = run(tmp_path / "two", {"a": drawn(accuracy=level), "b": drawn(accuracy=FALLING)}, b=0.5, a=0.25)
    found = paired_difference(one, two, "accuracy")
    assert found.mean == 0.25  # (3 * 0.25 + 1 * 0.25) / 4
    ends = (0.025 / 2 - 0.1, 0.975 / 2 - 0.1)  # of a: i / 200 - 0.1; of b: always 0
    assert found.by_participant == {"a": pytest.approx((0.25, *ends)), "b": pytest.approx((0.25, 0.0, 0.0))}
    assert (found.low, found.high) == pytest.approx(tuple(0.75 * end for end in ends))
    back = paired_difference(two, one, "served_accuracy")
    assert (back.mean, back.low, back.high) == pytest.approx((-found.mean, -found.high, -found.low))


def test_runs_that_cannot_be_paired_say_why(tmp_path):
    own = {"a": drawn(accuracy=RISING), "b": drawn(accuracy=RISING)}
    first = run(tmp_path / "first", own, a=0.5, b=0.5)
    gone = {"a": own["a"], "b": drawn(accuracy=(*[None] * 60, *RISING[60:]))}
    others = {
        "their participants who report it differ": run(tmp_path / "1", {"a": own["a"]}, a=0.5),
        "their participants with draws differ": run(tmp_path / "2", {"a": own["a"]}, a=0.5, b=0.5),
        "their numbers of draws differ": run(
            tmp_path / "3", {name: drawn(accuracy=RISING[:50]) for name in own}, a=0.5, b=0.5
        ),
        "their draws differ": run(
            tmp_path / "4", {**own, "b": Replicates(8, {"served_accuracy": RISING})}, a=0.5, b=0.5
        ),
        "'accuracy' is not defined on half of some participant's draws": run(tmp_path / "5", gone, a=0.5, b=0.5),
    }
    for reason, other in others.items():
        with pytest.raises(ConfigError, match=f"first and .*{other.folder.name} cannot be paired: {reason}"):
            paired_difference(first, other, "accuracy")
    with pytest.raises(ConfigError, match=r"first has no draws of 'loss'; run it with training's bootstrap"):
        paired_difference(first, first, "loss")
    (tmp_path / "1" / BOOTSTRAP).unlink()
    with pytest.raises(ConfigError, match="1 has no draws of 'accuracy'"):
        paired_difference(first, others["their participants who report it differ"], "accuracy")


FACTS = {"participants": ["a", "b"], "samples": [3, 1], "draws": [1, 2]}


@pytest.mark.parametrize(
    ("values", "facts"),
    [
        (np.zeros((2, 5)), {}),
        (np.zeros((2, 5)), {**FACTS, "participants": ["a", "a"]}),
        (np.zeros((2, 5)), {**FACTS, "participants": {"a": 1, "b": 2}}),
        (np.zeros((2, 5)), {**FACTS, "samples": [3, 0]}),
        (np.zeros((2, 5)), {**FACTS, "draws": [1]}),
        (np.zeros((2, 5)), {**FACTS, "draws": [1, None]}),
        (np.zeros((3, 5)), FACTS),
        (np.zeros(2), FACTS),
        (np.zeros((2, 5), np.float32), FACTS),
        (np.full((2, 5), np.inf), FACTS),
    ],
)
def test_a_file_of_draws_is_checked(tmp_path, values, facts):
    assert read_draws(tmp_path) is None
    save_arrays(tmp_path / BOOTSTRAP, {"served_accuracy": values}, facts)
    with pytest.raises(PayloadError, match=r"bootstrap\.safetensors does not hold draws by participant; copy it again"):
        read_draws(tmp_path)


def trained(folder: Path, method: Method, times: int = 50, seed: int = 0) -> Run:
    run_loop(
        method=method,
        model=MODEL,
        source=Digits(),
        data=DATA,
        settings=ServerSettings(2, seed=seed),
        training=TrainSettings(lr=0.1, local_steps=3, bootstrap=times),
        folder=folder,
    )
    return load_run(folder)


def test_two_methods_on_digits(tmp_path):
    first, second = trained(tmp_path / "first", FedAvg()), trained(tmp_path / "second", Local())
    plain = trained(tmp_path / "plain", FedAvg(), times=0)
    for one in (first, second):
        final, draws = one.summary["final"], read_draws(one.folder)
        assert (
            draws.values.keys()
            == one.summary["intervals"].keys()
            == {"served_accuracy", "served_macro_f1", "served_loss"}
        )
        for key, (low, high) in one.summary["intervals"].items():
            assert low < final[key] < high and draws.values[key].shape == (6, 50)
        narrow, wide = one.summary["intervals"]["served_accuracy"], []
        for person in one.summary["participants"]:
            low, high = person["intervals"]["served_accuracy"]
            assert low <= person["served_accuracy"] <= high
            wide.append(high - low)
        assert narrow[1] - narrow[0] < np.mean(wide)
    assert read_draws(first.folder).draws == read_draws(second.folder).draws
    found = paired_difference(second, first, "accuracy")
    expected = second.summary["final"]["served_accuracy"] - first.summary["final"]["served_accuracy"]
    assert found.mean == pytest.approx(expected) and found.low <= found.mean <= found.high
    assert found.by_participant.keys() == {f"p{i}" for i in range(6)}
    # Without draws, nothing else changes, and nothing of them is written.
    same = {key: value for key, value in first.summary["final"].items() if key != "seconds"}
    assert {key: value for key, value in plain.summary["final"].items() if key != "seconds"} == same
    assert "intervals" not in plain.summary and "intervals" not in plain.summary["participants"][0]
    assert not (plain.folder / BOOTSTRAP).exists()
    # Another seed deals the data out in another way: a dash, and no difference.
    other = trained(tmp_path / "other", FedAvg(), seed=1)
    with pytest.raises(ConfigError, match="draws differ"):
        paired_difference(other, first, "accuracy")
    columns = {
        str(column.header): list(column.cells) for column in results_table([first, second, other, plain]).columns
    }
    assert columns["to the first"][0] == "-" and columns["to the first"][2:] == ["-", "-"]
    assert columns["to the first"][1] == (
        f"{'+' * (found.mean > 0)}{found.mean:.3f} [{found.low:.3f}, {found.high:.3f}]"
    )
    assert columns["accuracy"][3] == f"{plain.summary['final']['served_accuracy']:.3f}"


def test_a_new_run_in_the_folder_leaves_no_old_draws(tmp_path):
    trained(tmp_path, FedAvg())
    trained(tmp_path, FedAvg(), times=0)
    assert not (tmp_path / BOOTSTRAP).exists()


@pytest.mark.parametrize("wrong", [[1.0], [0.1, "x"], {"low": 1}, None])
@pytest.mark.parametrize("of_participant", [True, False])
def test_intervals_of_a_foreign_summary_are_checked(tmp_path, wrong, of_participant):
    summary = dict.fromkeys(("clusters", "rounds", "bytes_down", "bytes_up", "seconds"), 0)
    summary |= {"method": {}, "label": "fedavg", "final": {}, "participants": [{"name": "a", "group": None}]}
    path = tmp_path / SUMMARY
    path.write_text(json.dumps(summary))
    load_run(tmp_path)
    (summary["participants"][0] if of_participant else summary)["intervals"] = {"served_accuracy": wrong}
    path.write_text(json.dumps(summary))
    with pytest.raises(ConfigError, match="participants = " if of_participant else "intervals = "):
        load_run(tmp_path)
