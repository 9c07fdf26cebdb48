# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""What a site keeps of a run for itself."""

import json

import pytest

from cfl_flare.core.errors import FileError
from cfl_flare.results.history import HISTORY, Note, keep_notes, read_notes


def note(number: int, **more) -> Note:
    return Note(**{"round": number, "participant": "ward", "models": ["cluster-1"], "trained": True, "failed": None,
                   "metrics": {"served_accuracy": 0.5}, **more})  # fmt: skip


def test_what_is_kept_is_read_again(tmp_path):
    folder = tmp_path / "run" / "site-1"
    keep_notes(folder, 0, [note(0), note(0, participant="b", trained=False, failed="data", metrics={})], first=True)
    keep_notes(folder, 1, [note(1)], first=False)
    assert [(own.round, own.participant, own.failed) for own in read_notes(folder)] == [
        (0, "ward", None),
        (0, "b", "data"),
        (1, "ward", None),
    ]


def test_a_process_that_begins_again_replaces_its_rounds(tmp_path):
    for number in range(3):
        keep_notes(tmp_path, number, [note(number)], first=number == 0)
    keep_notes(tmp_path, 1, [note(1, models=["global"])], first=True)
    assert [(own.round, *own.models) for own in read_notes(tmp_path)] == [(0, "cluster-1"), (1, "global")]
    keep_notes(tmp_path, 0, [note(0)], first=True)  # another run of this name
    assert [own.round for own in read_notes(tmp_path)] == [0]


@pytest.mark.parametrize("change", [{"trained": 1}, {"metrics": {"x": "y"}}, {"models": "global"}, {"round": -1}])
def test_a_damaged_line_is_refused(tmp_path, change):
    line = {"round": 0, "participant": "a", "models": [], "trained": True, "failed": None, "metrics": {}}
    line |= {"last": False, **change}
    (tmp_path / HISTORY).write_text(json.dumps(line) + "\n")
    with pytest.raises(FileError, match=next(iter(change))):
        read_notes(tmp_path)
