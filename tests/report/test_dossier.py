# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The file that goes with a model: what it says, what it must not say, and what hostile text becomes in it."""

from __future__ import annotations

import json
import re
import shutil
from html import escape as html_escape
from pathlib import Path

import pytest
import torch
from packaging.utils import canonicalize_name

from cfl_flare.cli import main
from cfl_flare.cli.predict import portable_of
from cfl_flare.methods import METHODS
from cfl_flare.report.dossier_view import ANNEX_IV, LEAVES, NOWHERE, Dossier, other_formats
from cfl_flare.results.bootstrap import read_draws
from cfl_flare.results.pseudonyms import hidden, pseudonyms, rounded
from cfl_flare.results.run_dir import load_run
from cfl_flare.results.sbom import bill_of_materials, installed

ROOT = Path(__file__).parents[2]
NAMES = ("cleveland", "hungary", "switzerland", "long-beach")
EVIL = "<script>alert('x')</script>\x1b[31m"


@pytest.fixture(scope="module")
def heart(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("dossier") / "runs"
    words = "run --loop --data heart --method wecfl:k=2 --participants 4 --rounds 3 --task binary --bootstrap 50"
    assert main([*words.split(), "--score-bins", "50", "--cross-site-evaluation", "--out", str(out)]) == 0
    return out / "wecfl-k2"


def written(run: Path, out: Path, *words: str, slot: str = "cluster-0") -> str:
    assert main(["dossier", str(run), "--out", str(out), "--model", slot, *words]) == 0
    return (out / slot / "dossier.html").read_text()


def titles(html: str) -> list[str]:
    return re.findall(r'<h2 id="s\d+">(.*?)</h2>', html)


def test_each_model_that_leaves_has_a_folder_with_its_file_its_software_and_its_page(heart, tmp_path):
    assert main(["dossier", str(heart), "--out", str(tmp_path / "out")]) == 0
    there = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    slots = ("global", "cluster-0", "cluster-1")
    assert there == {
        f"{slot}/{name}" for slot in slots for name in (f"{slot}.safetensors", "sbom.json", "dossier.html")
    }
    for slot in slots:
        copy = tmp_path / "out" / slot / f"{slot}.safetensors"
        assert copy.read_bytes() == (heart / "clusters" / copy.name).read_bytes()
        html = (tmp_path / "out" / slot / "dossier.html").read_text()
        assert "do not allow this part" not in html
        assert len({*titles(html)}) == len(titles(html))
        assert not re.findall(r'(?:src|href)="(?!#)', re.sub(r"<script.*?</script>", "", html, flags=re.S))


def test_what_a_page_says_is_what_the_run_found(heart, tmp_path):
    html, summary = written(heart, tmp_path, "--names"), load_run(heart).summary
    members = [p for p in summary["participants"] if p["cluster"] == 0]
    assert f"cluster-0 is a model that {len(members)} of 4 hospitals trained." in html
    for person in members:
        low, high = person["intervals"]["served_loss"]
        assert f"{low:.3f} to {high:.3f}" in html and f"<td>{person['samples']}</td>" in html
        for count in summary["test_classes"][person["name"]]:
            assert f"<td>{'fewer than 10' if count is None else count}</td>" in html
    for words in ("50 to 260", "num above 0", "No differential privacy was used", "nothing of the run was changed"):
        assert words in html
    for slot in ("cluster-0", "cluster-1"):
        assert f'<th scope="col">{slot}</th>' in html  # the cross-site matrix
    assert {"Discrimination and calibration", "Every model everywhere", "Planned changes", "Licence"} <= {*titles(html)}


def test_a_cluster_s_mean_has_the_interval_of_its_hospitals_draws(heart, tmp_path):
    summary, draws = load_run(heart).summary, read_draws(heart)
    for k, words in ((0, ()), (1, ("--names",))):  # under pseudonyms too
        html = written(heart, tmp_path / str(k), *words, slot=f"cluster-{k}")
        losses = {p["name"]: p["served_loss"] for p in summary["participants"] if p["cluster"] == k}
        low, high = draws.of_mean("served_loss", losses)
        mean = summary["final"][f"cluster-{k}/served_loss"]
        assert f"<td>{mean:.3f}</td><td>{low:.3f} to {high:.3f}</td>" in re.sub(r"\s+<", "<", html)
    low, high = summary["intervals"]["served_loss"]
    assert f"{low:.3f} to {high:.3f}" in written(heart, tmp_path / "all", slot="global")


def test_decisions_by_class_are_those_of_the_model_s_hospitals(heart, tmp_path):
    curve = json.loads((heart / "curves.json").read_text())["curves"]["cluster-0"]
    (rates,) = curve["by_class"]
    html = written(heart, tmp_path)
    for share, low, high in (rates["sensitivity"], rates["specificity"]):
        assert f"<td>{share:.3f}</td><td>{low:.3f} to {high:.3f}</td>" in re.sub(r"\s+<", "<", html)


def test_who_left_a_cluster_in_the_last_rounds_is_named(heart, tmp_path):
    run = Path(shutil.copytree(heart, tmp_path / "run"))
    assert "All hospitals were in their cluster in each of the last 1 rounds" in written(heart, tmp_path / "a")
    lines = [json.loads(line) for line in (run / "assignments.jsonl").read_text().splitlines()]
    for line in lines:
        if line["participant"] == "hungary" and line["round"] == 2:
            line["cluster"] = 1 - line["cluster"]
    (run / "assignments.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = written(run, tmp_path / "b")
    assert f"All hospitals but {pseudonyms(load_run(run))['hungary']} were in their cluster" in html
    assert "<td>0%</td><td>67%</td>" in re.sub(r"\s+<", "<", html)


def test_a_withdrawal_is_told_of_each_model_without_names(heart, tmp_path):
    run = Path(shutil.copytree(heart, tmp_path / "run"))
    assert main(["withdraw", str(run), "--participant", "hungary"]) == 0
    report = json.loads((run / "withdrawal.json").read_text())
    html = written(run, tmp_path / "a", slot="global")
    assert f"{pseudonyms(load_run(run))['hungary']} withdrew after the run." in html and "hungary" not in html
    assert f"They are in this model from round {report['models']['global']} on." in html
    assert html.count("All clusters have to train again: ") == len(report["why_all"]) > 0
    assert "categories and ranges of the table&#39;s columns were read from all rows" in html
    assert f"<td>{len(report['files'])}</td>" in html and str(tmp_path) not in html
    assert "hungary withdrew after the run." in written(run, tmp_path / "b", "--names", slot="global")
    untouched = {**report, "models": {"cluster-1": 0}, "untouched": ["cluster-0"], "why_all": [], "job": "/else/where"}
    (run / "withdrawal.json").write_text(json.dumps(untouched))
    html = written(run, tmp_path / "c")
    assert "They never touched it." in html and "a job was written" in html and "/else/where" not in html
    (run / "withdrawal.json").write_text(json.dumps({**report, "withdrawn": EVIL}))
    assert main(["dossier", str(run), "--out", str(tmp_path / "d")]) == 2


def test_no_hospital_s_name_and_no_exact_number_of_its_patients_leaves(heart, tmp_path):
    html = written(heart, tmp_path / "hidden")
    for name in NAMES:
        assert name not in html
    sizes = {p["samples"] for p in load_run(heart).summary["participants"]}
    assert not {int(cell) for cell in re.findall(r"<td>(\d+)</td>", html)} & {n for n in sizes if rounded(n) != n}
    assert "rounded to 2 digits" in html and "hospital 1" in html
    for path in (tmp_path / "hidden" / "cluster-0").iterdir():
        assert not any(name.encode() in path.read_bytes() for name in NAMES), path
    shown = written(heart, tmp_path / "names", "--names", slot="global")
    assert all(name in shown for name in NAMES)
    means = [
        column["mean"] for column in json.loads((heart / "preparations.json").read_text())["columns"]["columns"][:1]
    ]
    assert f"{means[0]:.2f}" not in html  # sums over the hospitals' rows


def test_names_are_hidden_in_texts_and_numbers_lose_digits(heart):
    names = pseudonyms(load_run(heart))
    assert [*names.values()] == ["hospital 1", "hospital 2", "hospital 3", "hospital 4", "site 1"]
    assert hidden("long-beach loses; long-beacher does not", names).startswith(
        f"{names['long-beach']} loses; long-beacher"
    )
    assert [rounded(n) for n in (7, 92, 227, 12345, 1.5, None)] == [7, 92, 230, 12000, 1, None]


def test_hostile_text_is_escaped_and_cut(heart, tmp_path):
    run = Path(shutil.copytree(heart, tmp_path / "run"))
    summary = json.loads((run / "summary.json").read_text())
    summary["participants"][0]["name"] = summary["label"] = EVIL + "x" * 500
    summary["positive"] = summary["stopped"] = EVIL
    summary["versions"] = {EVIL: EVIL}
    (run / "summary.json").write_text(json.dumps(summary))
    plan = tmp_path / "plan.toml"
    plan.write_text(f"purpose = '''{EVIL[:-5]}'''\nlicence = '''{EVIL[:-5]}'''\nlimits = ['''{EVIL[:-5]}''']")
    for words in (["--names"], []):
        html = written(run, tmp_path / f"out{len(words)}", "--plan", str(plan), *words)
        assert "<script>alert" not in html and "\x1b" not in html and "x" * 200 not in html
        assert html.count("</script>") == html.count("<script")
        assert "changed since; do not rely on it" in html


def test_a_plan_of_changes_is_shown_as_it_is_written(heart, tmp_path):
    plan = tmp_path / "changes.toml"
    change = (
        'description = "re-train in May"\nprotocol = "as before"\ncriterion = "AUROC 0.85"\nimpact = "none known"\n'
    )
    plan.write_text(f'purpose = "Research."\nlicence = "CC-BY-4.0"\nlimits = ["Adults."]\n[[change]]\n{change}')
    html = written(heart, tmp_path / "a", "--plan", str(plan))
    for words in ("Research.", "CC-BY-4.0", "Adults.", "re-train in May", "as before", "AUROC 0.85", "none known"):
        assert words in html
    empty = written(heart, tmp_path / "b")
    assert "Which modification is foreseen" in empty and "No changes are planned in this file" in empty


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("purpos = 'x'", "unknown 'purpos'"),
        ("change = 3", "change = 3 is not tables [[change]]"),
        ("[[change]]\nwho = 'x'", "is not tables [[change]]"),
        ("licence = ", "--plan: "),
        (f"purpose = '{'x' * 3000}'", "is not text of at most 2000 characters"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_is_written(heart, tmp_path, capsys, text, words):
    (tmp_path / "plan.toml").write_text(text)
    assert main(["dossier", str(heart), "--out", str(tmp_path / "out"), "--plan", str(tmp_path / "plan.toml")]) == 2
    assert words in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_a_run_without_intervals_curves_or_clusters_says_what_is_not_known(tmp_path):
    words = "run --loop --method fedavg --participants 3 --rounds 1 --bootstrap 0 --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    html = written(tmp_path / "run", tmp_path / "out", slot="global")
    for text in ("does not say what columns mean", "not known: the run drew no intervals", "no cross_site_evaluation"):
        assert text in html
    for text in ("no score_bins", "The run has no clusters", "No interval was measured", "This run is of no study"):
        assert text in html
    agreed = {
        "columns": [
            {
                "column": "age",
                "range": [0, 120],
                "unit": EVIL[:8] + " years",
                "rows": 500,
                "mean": 53.4,
                "deviation": 9.5,
            }
        ]
    }
    (tmp_path / "columns.json").write_text(json.dumps(agreed))
    html = written(tmp_path / "run", tmp_path / "b", "--columns", str(tmp_path / "columns.json"), slot="global")
    assert "0 to 120" in html and "&lt;script&gt; years" in html and "53.4" not in html
    for text in ("no record of a withdrawal", "written in no other format", "Decisions by class are not known"):
        assert text in html


def test_wrong_words_are_refused(heart, tmp_path, capsys):
    for words, error in (
        (["--model", "cluster-7"], "there are cluster-0, cluster-1, global"),
        (["--verify", "--names"], "--verify writes nothing, so --names have no use"),
    ):
        assert main(["dossier", str(heart), *words]) == 2 and error in capsys.readouterr().err
    assert main(["dossier", str(tmp_path)]) == 2


def test_no_sentence_claims_conformity_and_each_question_is_answered_somewhere(heart, tmp_path):
    html = written(heart, tmp_path)
    known = {*titles(html), NOWHERE}
    assert {answer for _, _, answer in ANNEX_IV} <= known
    text = re.sub(r"<script.*?</script>|<style.*?</style>", "", html, flags=re.S).lower()
    for word in ("complies", "compliant", "conforms", "certified", "approved", "safe", "meets"):
        assert not re.search(rf"\b{word}\b", text), word


def test_what_leaves_a_site_is_what_the_page_on_it_says():
    page = (ROOT / "docs" / "egress.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| (.*?) \|", page.split("### Which models")[1], flags=re.MULTILINE)
    stated = {name: text for names, text in rows for name in re.findall(r"`([\w+-]+)`", names)}
    for name in {method.name for method in METHODS.values()}:
        assert name in LEAVES, f"{name} is in docs/egress.md's table, and not in LEAVES"
        assert LEAVES[name] == stated[name].replace("`", "")


def test_the_bill_of_materials_has_what_cyclonedx_asks_for():
    bill = bill_of_materials()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert bill["metadata"]["component"]["name"] == "cfl-flare"
    names = [component["name"] for component in bill["components"]]
    assert {"torch", "numpy", "nvflare", "safetensors", "cryptography"} <= {*names} and len({*names}) == len(names)
    for component in bill["components"]:
        assert component["type"] == "library" and component["name"] == canonicalize_name(component["name"])
        assert component["purl"] == f"pkg:pypi/{component['name']}@{component['version']}" == component["bom-ref"]
        assert all(entry.keys() == {"license"} for entry in component.get("licenses", []))
    assert "pytest" not in names  # required by an extra alone


def test_the_bill_of_materials_follows_the_extras_that_a_requirement_names(tmp_path, monkeypatch):
    """As PyTorch requires ``cuda-toolkit[cufile]``: without what the extra brings it cannot be imported."""
    requires = {"top": ["middle[Fast]"], "middle": ['leaf; extra == "fast"', 'other; extra == "slow"'], "leaf": ["top"]}
    for name in (*requires, "other"):
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        lines = [
            "Metadata-Version: 2.1",
            f"Name: {name}",
            "Version: 1.0",
            "Provides-Extra: fast",
            "Provides-Extra: slow",
        ]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires.get(name, ())]
        (tmp_path / f"{name}-1.0.dist-info" / "METADATA").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert {*installed("top")} == {"top", "middle", "leaf"}


def test_a_study_s_dossier_is_of_what_it_chose_and_names_the_others(heart, tmp_path):
    run = Path(shutil.copytree(heart, tmp_path / "study" / "wecfl-k2"))
    gain = {"gain": 0.02, "low": -0.01, "high": 0.05, "says": "within chance", "needed": None}
    hospital = {"name": "hungary", "tested": 74, "value": 0.8, "to_one": gain, "to_alone": None}
    chosen = {"name": "wecfl-k2", "title": "wecfl (K=2)", "clusters": 2, "private": False}
    verdict = {
        "metric": "loss",
        "cluster": True,
        "chosen": chosen,
        "rounds": 3,
        "tested": {"local": 0.5, "wecfl-k2": 0.4},
    }
    verdict |= {"hospitals": [hospital], "sentences": ["Cluster into 2. hungary loses."]}
    rung = {"rounds": 3, "means": {"local": 0.5}, "dropped": {"fedavg": "clearly worse"}, "seconds": 1.0}
    study = {
        "version": 1,
        "settings": {},
        "rounds": 3,
        "found": 2,
        "searched": 1,
        "search_seconds": 1.0,
        "rungs": [rung],
    }
    study |= {"titles": {"local": "each hospital alone", "fedavg": "one model for all", "wecfl-k2": "wecfl (K=2)"}}
    study |= {"cost": {"rounds": 3, "everything": 9, "seconds": 1.0}, "verdict": verdict}
    (tmp_path / "study" / "study.json").write_text(json.dumps(study))
    name = pseudonyms(load_run(run))["hungary"]
    html = written(tmp_path / "study", tmp_path / "out")
    for words in ("each hospital alone", "clearly worse", f"Cluster into 2. {name} loses.", "+0.020 (-0.010 to 0.050)"):
        assert words in html
    assert "hungary" not in html and "hungary loses" in written(tmp_path / "study", tmp_path / "names", "--names")


def test_of_a_training_script_nothing_is_said_that_is_not_known(heart, tmp_path):
    run = Path(shutil.copytree(heart, tmp_path / "run"))
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "train_script": "client.py"}))
    html = written(run, tmp_path / "out")
    assert "what it sent is not known here" in html and "Models that left a hospital" not in html


def test_a_private_run_s_page_says_what_was_spent(tmp_path):
    words = "run --loop --data heart --method fedavg --participants 4 --rounds 1 --task binary --dp epsilon=8 --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    html = written(tmp_path / "run" / "fedavg", tmp_path / "out", slot="global")
    assert "epsilon at most 8, with delta = 1e-05" in html and "No differential privacy" not in html


def test_a_table_s_description_says_what_is_missing_in_it(heart):
    described = portable_of(heart / "clusters" / "global.safetensors", "cleveland").description(torch.zeros(2, 2))
    (table,) = other_formats(Dossier(load_run(heart), "global", None, formats=described)).tables
    assert ("missing values", "NaN") in [tuple(row) for row in table[1].rows]


def test_another_format_is_beside_the_model_and_a_table_s_is_refused(heart, tmp_path, capfd):
    pytest.importorskip("onnxruntime")
    words = "run --loop --method fedavg --participants 3 --rounds 1 --out"
    assert main([*words.split(), str(tmp_path / "run")]) == 0
    html = written(tmp_path / "run", tmp_path / "out", "--formats", "onnx", slot="global")
    assert (tmp_path / "out" / "global" / "global.onnx").is_file() and "global.onnx" in html
    described = json.loads((tmp_path / "out" / "global" / "global.json").read_text())
    shape = ", ".join(map(str, described["input"]["shape"]))
    for words in (f"samples, float32, ({shape})", described["input"]["in_graph"], described["outputs"][0]["values"]):
        assert html_escape(words) in html
    assert main(["dossier", str(heart), "--out", str(tmp_path / "b"), "--formats", "onnx"]) == 2
    assert "whose table is it?" in capfd.readouterr().err
