# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The card of each model: its figures by hand, counts that it must not show, hostile text, and missing pieces."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cfl_flare.cli import main
from cfl_flare.core.arrays import save_arrays
from cfl_flare.extensions.report.card import show_value
from cfl_flare.results.ancestry import Ancestor, Ancestry
from cfl_flare.results.bootstrap import BOOTSTRAP
from cfl_flare.results.run_dir import load_run
from tests.helpers import made

# Participants a and c are in cluster 0, b and d in cluster 1.
SAMPLES = {"a": 30, "b": 20, "c": 10, "d": 40}
ACCURACY = {"a": 0.8, "b": 0.9, "c": 0.6, "d": 0.4}
CLUSTERS = {"a": 0, "b": 1, "c": 0, "d": 1}
FINAL = {
    "served_accuracy": 0.64,  # (30 * .8 + 20 * .9 + 10 * .6 + 40 * .4) / 100
    "cluster-0/served_accuracy": 0.75,  # (30 * .8 + 10 * .6) / 40
    "cluster-1/served_accuracy": 0.34 / 0.6,  # (20 * .9 + 40 * .4) / 60
}


def make_run(folder: Path, slots: tuple[str, ...] = ("global", "cluster-0", "cluster-1"), **facts: Any) -> Path:
    """Write a run of two clusters whose figures are known."""
    people = [
        {"name": name, "site": f"site {name}", "samples": SAMPLES[name], "group": None, "cluster": CLUSTERS[name]}
        | {"served_accuracy": ACCURACY[name]}
        for name in SAMPLES
    ]
    made.write_run(folder, ["a", "b", "c", "d"])
    made.change(folder, **{"participants": people, "final": FINAL, **facts})
    for slot in slots:
        save_arrays(folder / "clusters" / f"{slot}.safetensors", {"weight": np.ones(3, np.float32)}, {"slot": slot})
    return folder


@pytest.fixture(autouse=True)
def make_clusters_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `made.write_run` make the folder of models also."""
    write = made.write_run

    def write_with_models(folder: Path, *arguments: Any, **more: Any) -> Path:
        write(folder, *arguments, **more)
        (folder / "clusters").mkdir()
        return folder

    monkeypatch.setattr(made, "write_run", write_with_models)


def read_card(run: Path, slot: str) -> tuple[dict[str, Any], str]:
    folder = run / "cards" / slot
    return json.loads((folder / "card.json").read_text()), (folder / "MODEL_CARD.md").read_text()


def row_of(text: str, first: str) -> list[str]:
    """The cells of the table row that begins with a cell."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


# ---- Figures ----


def test_each_model_has_its_own_figures(tmp_path):
    run = make_run(tmp_path / "wecfl-k2")
    assert main(["card", str(run)]) == 0
    expected = {"cluster-0": 0.75, "cluster-1": 0.34 / 0.6}
    for slot, mean in expected.items():
        facts, text = read_card(run, slot)
        assert facts["results"] == {"accuracy": {"mean": pytest.approx(mean), "interval": None}}
        assert row_of(text, "accuracy") == ["accuracy", f"{mean:.3f}"]
        assert "No interval was measured." in text
    facts, text = read_card(run, "global")
    assert facts["results"] == {} and "No participant predicts with this model" in text


def test_a_cluster_has_its_members_interval(tmp_path):
    run = make_run(tmp_path / "wecfl-k2", ("cluster-0",))
    resamples = np.array([[0.7, 0.9], [0.1, 0.2], [0.5, 0.7], [0.3, 0.1]])
    meta = {"participants": [*SAMPLES], "samples": [*SAMPLES.values()], "draws": [1, 1, 1, 1]}
    save_arrays(run / BOOTSTRAP, {"served_accuracy": resamples}, meta)
    assert main(["card", str(run)]) == 0
    facts, text = read_card(run, "cluster-0")
    # Means of the members: .75 * .7 + .25 * .5 = .65 and .75 * .9 + .25 * .7 = .85, of the point .75. Their standard
    # deviation is .2 / sqrt(2). The interval is symmetric in the log-odds.
    reach = 1.959964 * 0.2 / math.sqrt(2) / (0.75 * 0.25)
    ends = [1 / (1 + math.exp(-(math.log(3) + sign * reach))) for sign in (-1, 1)]
    assert facts["results"]["accuracy"]["interval"] == pytest.approx(ends)
    assert row_of(text, "accuracy")[1] == f"0.750 ({ends[0]:.3f} to {ends[1]:.3f})"


def test_methods_local_and_majority_are_compared(tmp_path):
    run = make_run(tmp_path / "wecfl-k2", majority=0.55)
    alone = make_run(tmp_path / "local", (), label="local", clusters=0, final={"served_accuracy": 0.5})
    # A run of other participants is not comparable.
    make_run(tmp_path / "other", (), final={"served_accuracy": 0.99})
    people = json.loads((tmp_path / "other" / "summary.json").read_text())["participants"]
    made.change(tmp_path / "other", participants=people[:3])
    assert main(["card", str(run)]) == 0
    facts, text = read_card(run, "cluster-0")
    means = {row["run"]: row["figures"]["accuracy"]["mean"] for row in facts["comparison"]}
    assert means == {"local": 0.5, "wecfl-k2": 0.64, None: 0.55}
    assert row_of(text, "the most frequent class") == ["the most frequent class", "-", "0.550"]
    assert "Local training was not compared" not in text
    assert main(["card", str(alone)]) == 2


def test_without_local_the_card_says_so(tmp_path):
    run = make_run(tmp_path / "wecfl-k2")
    assert main(["card", str(run)]) == 0
    assert "Local training was not compared" in read_card(run, "cluster-0")[1]


def test_a_real_run_has_all_facts(tmp_path, capfd):
    out = tmp_path / "runs"
    words = "run --loop --data heart --participants 4 --rounds 2 --task binary --bootstrap 50 --membership 2"
    methods = ["--method", "local", "--method", "fedavg", "--method", "wecfl:k=2"]
    assert main([*words.split(), *methods, "--out", str(out)]) == 0
    capfd.readouterr()
    assert main(["card", str(out)]) == 0
    said = capfd.readouterr().out.split()
    models = ["fedavg/cards/global", *(f"wecfl-k2/cards/{slot}" for slot in ("cluster-0", "cluster-1", "global"))]
    assert said == [str(out / model / "MODEL_CARD.md") for model in models]
    run, summary = out / "wecfl-k2", load_run(out / "wecfl-k2").summary
    facts, text = read_card(run, "cluster-0")
    assert [row["run"] for row in facts["comparison"]] == ["fedavg", "local", "wecfl-k2", None]
    for row in facts["comparison"][:-1]:
        other = load_run(out / row["run"]).summary
        assert row["figures"]["loss"]["mean"] == other["final"]["served_loss"]
        assert row["figures"]["loss"]["interval"] == pytest.approx(other["intervals"]["served_loss"])
    assert row_of(text, "trestbps") == ["trestbps", "number", "-", "50 to 260", "-", "yes"]
    assert (facts["label"], facts["positive"]) == ("num", "num above 0")
    members = [person for person in summary["participants"] if person["cluster"] == 0]
    counts = {row["model"]: (row["participants"], row["samples"]) for row in facts["clusters"]["rows"]}
    assert counts["cluster-0"] == (len(members), sum(person["samples"] for person in members))
    rate = summary["membership"]["models"]["cluster-0"]["attacks"]["loss"]["tpr"]
    assert facts["membership"]["attacks"]["loss"]["mean"] == rate
    assert row_of(text, "run.seed") == ["run.seed", "0"] and f"torch {summary['versions']['torch']}" in text
    for name, digest in facts["sha256"].items():
        assert digest == hashlib.sha256((run / name).read_bytes()).hexdigest()
    assert {"clusters/cluster-0.safetensors", "summary.json", "bootstrap.safetensors"} <= facts["sha256"].keys()
    for name in ("cleveland", "hungary", "switzerland", "long-beach"):
        assert name not in text and name not in json.dumps(facts)


def test_a_study_s_card_is_the_chosen_candidate_s(tmp_path):
    folder = made.write_study(tmp_path / "study", ["north", "south"])
    study = json.loads((folder / "study.json").read_text())
    study["verdict"] |= {
        "tested": {"c0": 0.7, "c1": 0.8},
        "compared": [{"one": "c1", "other": "c0", "found": {"gain": 0.1, "low": 0.02, "high": 0.18}}],
    }
    study["settings"] = {"majority": 0.6, "positive": "ill"}
    (folder / "study.json").write_text(json.dumps(study))
    make_run(folder / "c1", ("global",))
    make_run(folder / "c0", ("global",))
    assert main(["card", str(folder)]) == 0
    assert not (folder / "c0" / "cards").exists()
    facts, text = read_card(folder / "c1", "global")
    assert row_of(text, "groups against one for all")[-2:] == ["-", "0.100 (0.020 to 0.180)"]
    assert [row["run"] for row in facts["comparison"]] == ["c0", "c1", None, None]
    assert facts["positive"] == "ill" and facts["comparison"][-1]["figures"]["accuracy"]["mean"] == 0.6
    assert "north" not in text


# ---- Counts below the minimum ----


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({}, True),
        ({"min_sites_per_cluster": 2, "min_samples_per_cluster": 40}, True),  # cluster-0 has 2 sites and 40 samples
        ({"min_sites_per_cluster": 2, "min_samples_per_cluster": 41}, False),
        ({"min_sites_per_cluster": 3}, False),
    ],
)
def test_no_count_below_the_minimum(tmp_path, settings, shown):
    run = make_run(tmp_path / "wecfl-k2", run=settings)
    assert main(["card", str(run)]) == 0
    facts, text = read_card(run, "cluster-1")
    rows = [
        {"model": "cluster-0", "participants": 2, "sites": 2, "samples": 40},
        {"model": "cluster-1", "participants": 2, "sites": 2, "samples": 60},
    ]
    assert facts["clusters"]["rows"] == (rows if shown else [])
    # The count of the large cluster is hidden also: with the total it gives the small one.
    assert ("so no count is shown" in text) is not shown and ("| 60 |" in text) is shown


def test_one_participant_without_cluster_hides_counts(tmp_path):
    run = make_run(tmp_path / "wecfl-k2", run={"min_sites_per_cluster": 1, "min_samples_per_cluster": 30})
    people = json.loads((run / "summary.json").read_text())["participants"]
    people[1]["cluster"] = None  # b, with 20 samples
    made.change(run, participants=people)
    assert main(["card", str(run)]) == 0
    assert read_card(run, "cluster-0")[0]["clusters"]["rows"] == []


# ---- Privacy ----


def test_epsilon_and_the_gate_are_shown(tmp_path):
    attack = {"tpr": 0.2, "interval": [0.1, 0.3], "members": 40, "non_members": 40}
    models = {"cluster-0": {"sites": 2, "unmeasured": 0, "attacks": {"loss": attack}}}
    shadows = {"shadow_models": 16, "fewest_shadow_models": 16}
    membership = {"bound": 0.25, **shadows, "models": models, "objections": ["cluster-1"], "single": []}
    run = make_run(tmp_path / "wecfl-k2", membership=membership)
    assert main(["card", str(run)]) == 0
    text = read_card(run, "cluster-0")[1]
    assert "the model stays with its members" in text and "above the bound of 0.25" in text
    assert "at 1 % false positives: 0.200 (0.100 to 0.300)" in text and "there is no epsilon" in text
    assert "one of its members objects" in read_card(run, "cluster-1")[1]
    ancestry = Ancestry((Ancestor(dp={"epsilon": 3, "delta": 1e-5}),)).to_list()
    private = make_run(tmp_path / "dp" / "wecfl-k2", ancestry=ancestry)
    assert main(["card", str(private)]) == 0
    assert "epsilon at most 3.000, delta 1.00e-05" in read_card(private, "cluster-0")[1]


# ---- Text from outside ----


def test_hostile_text_is_one_escaped_line(tmp_path):
    harmless = make_run(tmp_path / "a" / "run", majority=0.5, stopped="x", positive="x", versions={"x": "x"})
    evil = "".join(made.HOSTILE) + "\n# owned\n| x | [y](http://z) `c` *d* www.e.org" + "x" * 2000
    facts = {"majority": 0.5, "stopped": evil, "positive": evil[:900], "versions": {evil: evil}, "label": evil[:900]}
    run = make_run(tmp_path / "b" / "run", **facts, method={"method": "wecfl", "k": evil})
    for folder in (harmless, run):
        assert main(["card", str(folder)]) == 0
    text = read_card(run, "cluster-0")[1]
    assert len(text.splitlines()) == len(read_card(harmless, "cluster-0")[1].splitlines())
    _, front, body = text.split("---\n", 2)
    assert "<" not in text and "\x1b" not in text and "\u202e" not in text and "http://" not in body
    assert max(map(len, body.splitlines())) < 2000
    assert yaml.safe_load(front).keys() == {"library_name", "model_name", "tags", "metrics"}
    headings = [line for line in body.splitlines() if line.startswith("#")]
    assert len(headings) == len({*headings}) and not any("owned" in line for line in headings[1:])


def test_markdown_renders_hostile_text_as_text():
    markdown = pytest.importorskip("markdown")
    for text in (*made.HOSTILE, "a | b", "[x](http://y)", "*a* _b_ `c` **d**", "![i](j)", "# h", "\\<b>", "~~x~~"):
        cell = show_value(text)
        page = markdown.markdown(f"| name |\n| --- |\n| {cell} |\n", extensions=["tables"])
        for tag in ("<script", "<img", "<a ", "<em", "<strong", "<code", "<h1", "<b>"):
            assert tag not in page, (text, page)
        assert page.count("<td>") == 1, page


def test_given_groups_are_not_named(tmp_path):
    method = {"method": "cam", "base": {"method": "groups", "groups": {"north ward": "x"}, "warmup": 1}}
    run = make_run(tmp_path / "groups-k2", method=method, data={"owners": ["north ward"], "without": ["south ward"]})
    assert main(["card", str(run)]) == 0
    facts, text = read_card(run, "cluster-0")
    assert "ward" not in text and "ward" not in json.dumps(facts)
    assert row_of(text, "method.base.warmup") == ["method.base.warmup", "1"]


def test_a_number_that_json_lacks_is_null(tmp_path):
    run = make_run(tmp_path / "wecfl-k2", final={**FINAL, "cluster-0/served_accuracy": float("nan")})
    assert main(["card", str(run)]) == 0
    facts, text = read_card(run, "cluster-0")
    assert facts["results"]["accuracy"]["mean"] is None and row_of(text, "accuracy")[1] == "-"


# ---- Inputs ----


def test_agreed_columns_have_units_but_no_means(tmp_path):
    run = make_run(tmp_path / "wecfl-k2")
    column = {"column": "chol", "unit": "mg/dL", "range": [50, 700], "rows": 40, "mean": 247.5, "deviation": 51.5}
    columns = {"columns": [column], "label": "ill", "classes": ["no", "yes"]}
    (tmp_path / "columns.json").write_text(json.dumps(columns))
    assert main(["card", str(run), "--columns", str(tmp_path / "columns.json")]) == 0
    facts, text = read_card(run, "cluster-0")
    assert row_of(text, "chol") == ["chol", "number", "mg/dL", "50 to 700", "-", "no"]
    assert facts["classes"] == ["no", "yes"] and "247" not in text and "247" not in json.dumps(facts)


def test_without_columns_the_shape_is_shown(tmp_path):
    run = make_run(tmp_path / "wecfl-k2", model={"class_path": "x.Net", "args": {"input_shape": [3, 8, 8]}})
    assert main(["card", str(run)]) == 0
    assert "Shape of an input: 3, 8, 8." in read_card(run, "cluster-0")[1]


# ---- Missing and damaged pieces ----


def test_an_existing_card_is_kept(tmp_path, capsys):
    run = make_run(tmp_path / "wecfl-k2")
    assert main(["card", str(run)]) == 0
    card = run / "cards" / "global" / "MODEL_CARD.md"
    card.write_text("License: MIT")
    capsys.readouterr()
    assert main(["card", str(run)]) == 2
    assert "perhaps with your changes; move it away" in capsys.readouterr().err and card.read_text() == "License: MIT"


def damage_model(run: Path) -> None:
    path = run / "clusters" / "cluster-1.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")


def damage_training(run: Path) -> None:
    made.change(run, training=7)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (damage_model, "cluster-1.safetensors does not match its checksum; copy it again"),
        (damage_training, "no card can be made of these files"),
        (lambda run: (run / "summary.json").unlink(), "name the folder of a run that has ended"),
        (lambda run: (run / "summary.json").write_text("{"), "holds a damaged run"),
        (lambda run: (run / BOOTSTRAP).write_bytes(b"x"), "bootstrap.safetensors cannot be read"),
        (lambda run: [p.unlink() for p in run.glob("clusters/*")], "name a run of another method, such as fedavg"),
    ],
)
def test_a_damaged_run_has_one_error(tmp_path, capsys, harm, said):
    run = make_run(tmp_path / "wecfl-k2")
    harm(run)
    assert main(["card", str(run)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (run / "cards").exists()


def test_an_unfinished_study_has_one_error(tmp_path, capsys):
    folder = made.write_study(tmp_path / "study", ["north", "south"])
    made.change(folder, "study.json", verdict=None)
    assert main(["card", str(folder)]) == 2
    assert "start it again, and it goes on" in capsys.readouterr().err


def test_a_study_names_no_folder_outside(tmp_path, capsys):
    folder = made.write_study(tmp_path / "study", ["north", "south"])
    study = json.loads((folder / "study.json").read_text())
    study["verdict"]["chosen"]["name"] = "../other"
    (folder / "study.json").write_text(json.dumps(study))
    make_run(tmp_path / "other")
    assert main(["card", str(folder)]) == 2
    assert "'../other' should be letters" in capsys.readouterr().err and not (tmp_path / "other" / "cards").exists()
