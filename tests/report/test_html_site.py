# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A site's own report: what it says, and that it is found."""

from cfl_flare.cli import main
from cfl_flare.report import vega
from cfl_flare.report.site import SiteHistory, failures, measures, models, result, site_report
from cfl_flare.report.write import REPORT
from cfl_flare.results.history import HISTORY, Note, keep_notes, read_notes
from tests.report import made


def kept(folder, names=("a", "b"), rounds=4):
    """Participants that are sent cluster-0, the last one cluster-1 from the second round on; it fails in the third."""
    for number in range(rounds):
        notes = [
            Note(number, name, [f"cluster-{int(name == names[-1] and number > 0)}"], number < rounds - 1,
                 "training" if (name, number) == (names[-1], 2) else None,
                 {"served_loss": 1.0, "served_accuracy": 0.5 + number / 10} if number else {})
            for name in names
        ]  # fmt: skip
        keep_notes(folder, number, notes, first=number == 0)
    return folder


def test_a_site_sees_what_was_measured_what_it_was_sent_and_what_failed(tmp_path):
    own = SiteHistory(read_notes(kept(tmp_path)))
    ((_, last),) = result(own).tables
    assert last.columns == ["participant", "rounds trained", "after round", "accuracy"]
    assert last.rows == [["a", "3", "3", "0.800"], ["b", "3", "3", "0.800"]]
    (accuracy,) = measures(own).plots
    assert accuracy.table.rows == [["1", "0.600", "0.600"], ["2", "0.700", "0.700"], ["3", "0.800", "0.800"]]
    (sent,) = models(own).plots
    assert sent.table.rows == [["a", "cluster-0", "4"], ["b", "cluster-0", "1"], ["b", "cluster-1", "3"]]
    assert failures(own).tables[0][1].rows == [["b", "training", "1"]]


def test_a_site_s_names_are_text(tmp_path):
    text = site_report(kept(tmp_path, made.HOSTILE)).replace(vega.script(), "")
    assert "<img" not in text and "</script><script>d" not in text and "do not allow this part" not in text


def test_the_command_finds_the_site_s_folder(tmp_path, capsys):
    kept(tmp_path / "run" / "site-1")
    assert main(["report", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "run" / "site-1" / REPORT)]
    kept(tmp_path / "run" / "site-2")
    assert main(["report", str(tmp_path / "run")]) == 2
    assert "the histories of 2 sites; name the folder of one" in capsys.readouterr().err
    (tmp_path / "run" / "site-2" / HISTORY).write_text("")
    assert main(["report", str(tmp_path / "run" / "site-2")]) == 2
    assert "has no line yet" in capsys.readouterr().err
