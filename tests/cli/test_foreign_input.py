# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""``predict``, ``show`` and ``onboard`` on files that are damaged, hostile or another program's: always one line."""

from __future__ import annotations

import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from cfl_flare.core.arrays import load_arrays, save_arrays
from cfl_flare.results.run_dir import load_run
from tests.helpers.needs import needs_extension
from tests.helpers.processes import bomb, odd_files, run_commands
from tests.helpers.served import write_digits_npz

Runs = Callable[[str], Path]
# Imported, this module would leave a file where it is; nothing may import it.
TRAP = "from pathlib import Path\nPath(__file__).with_name('sprung').touch()\nclass Model: ...\n"


def one_line_each(cases: dict[str, Sequence[str | Path]]) -> dict[str, str]:
    """What each command says: it fails, in one line."""
    said = {}
    wrong = {}
    for what, (status, _, errors) in zip(cases, run_commands(*cases.values())):
        said[what] = errors
        line = errors.count("\n") == 1 and errors.startswith("cfl-flare: ") and errors.strip().isprintable()
        if status not in (1, 2) or not line or len(errors) > 2000:
            wrong[what] = (status, errors[:500])
    assert not wrong
    return said


def png(width: int, height: int) -> bytes:
    """The head of an image of any size, and no pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )


@needs_extension("aftercare")
def test_data_of_predict(runs: Runs, tmp_path: Path) -> None:
    model = next((runs("wecfl") / "clusters").glob("cluster-0.safetensors"))
    good = np.zeros((2, 8, 8), np.uint8)
    arrays: dict[str, Any] = {
        "1e38": np.full((2, 8, 8), 1e38, np.float32),
        "1e300": np.full((2, 8, 8), 1e300),
        "nan": np.full((2, 8, 8), np.nan, np.float32),
        "infinity": np.full((2, 8, 8), -np.inf, np.float16),
        "int64": good.astype(np.int64),
        "complex": good.astype(np.complex64),
        "text": np.full((2, 8, 8), "a"),
        "bool": good.astype(bool),
        "pickled": np.array([[[{}]]], dtype=object),
        "record": np.zeros((2, 8, 8), [("a", "u1")]),
        "none": good[:0],
        "flat": good.reshape(-1),
        "number": np.uint8(3),
        "other": np.zeros((2, 5, 7), np.uint8),
        "five": np.zeros((1, 1, 1, 8, 8), np.uint8),
        "wide": np.zeros((0, 0, 0), np.uint8),
    }
    files = odd_files(tmp_path, ".npz")
    for what, array in arrays.items():
        files[what] = tmp_path / f"{what} array.npz"
        np.savez(files[what], images=array)
    files["bomb"] = bomb(tmp_path / "bomb.npz")
    files["long"] = tmp_path / ("n" * 300)
    whole = files["1e38"].read_bytes()
    for what, content in {
        "cut": whole[:-100],
        "empty": b"",
        "gzip": b"\x1f\x8b\x08junk",
        "markup": b"[bold]\x1b[2J",
    }.items():
        files[what] = tmp_path / f"{what} [red] file.npz"
        files[what].write_bytes(content)
    folders = {
        "image bomb": ("a.png", png(60_000, 60_000)),
        "large image": ("a.png", png(12_000, 12_000)),
        "no image": ("a.jpg", b"GIF89a" + bytes(100)),
        "postscript": ("a.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nquit\n"),
        "tiff": ("a.tif", b"II*\x00\xff\xff\xff\xff" + bytes(100)),
        "webp": ("a.webp", b"RIFF\xff\xff\xff\xffWEBPVP8 " + bytes(100)),
    }
    for what, (name, content) in folders.items():
        files[what] = tmp_path / what
        files[what].mkdir()
        (files[what] / name).write_bytes(content)
    files["pipe among images"] = tmp_path / "pipes"
    files["pipe among images"].mkdir()
    odd_files(files["pipe among images"], ".png")
    deep = tmp_path / "16 bits"
    deep.mkdir()
    Image.fromarray(np.zeros((8, 8), np.uint16)).save(deep / "a.png")
    files["16 bits"] = deep
    out = tmp_path / "out.csv"
    said = one_line_each({k: ["predict", model, "--data", path, "--out", out] for k, path in files.items()})
    assert not out.exists()
    for what, reason in {
        "pipe": "is not a file or folder",
        "bomb": "2,147,483,648 bytes, which no images in a file of this size have",
        "1e38": "sample 0 reaches 1e+38; scale the samples",
        "nan": "sample 0 holds NaN or infinity",
        "int64": "dtype int64; use uint8 or float32",
        "pickled": "without pickled objects",
        "none": "holds no images",
        "large image": "12000x12000 pixels",
        "image bomb": "cannot be read as an image (DecompressionBombError",
        "postscript": "cannot be read as an image",
        "pipe among images": "or remove it",
    }.items():
        assert reason in said[what], said[what]


@needs_extension("aftercare")
def test_models_of_predict(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    arrays, meta = load_arrays(runs("wecfl") / "clusters" / "cluster-0.safetensors")
    spec = meta["model"]
    files = odd_files(tmp_path, ".safetensors")

    def written(what: str, model: Any = spec, own: dict[str, np.ndarray] | None = None, **more: Any) -> None:
        files[what] = tmp_path / f"{what}.safetensors"
        save_arrays(files[what], arrays if own is None else own, {"model": model, **more})

    def args(**own: Any) -> dict[str, Any]:
        return {**spec, "args": {**spec["args"], **own}}

    written("sound")
    save_file({"w": np.zeros(3, np.float32)}, tmp_path / "foreign.safetensors")
    files["foreign"] = tmp_path / "foreign.safetensors"
    written("other", own={"layer": np.zeros(3, np.float32)})
    written("8 GB", args(hidden=[46_000, 46_000]))
    written("wider than memory", args(input_shape=[1, 10**9, 10**9]))
    written("many layers", args(hidden=[1] * 500_000))
    written("no arguments", args(input_shape="abc", num_classes={}))
    written("ensemble", ensemble={"parts": 10**9, "vote": "logits"})
    written("ensemble of nothing", ensemble=[])
    written("half", own={k: a for k, a in arrays.items() if "bias" in k})
    written("NaN", own={k: np.full_like(a, np.nan) for k, a in arrays.items()})
    written("huge", own={k: np.full_like(a, 1e38) for k, a in arrays.items()})
    written("whole numbers", own={k: a.astype(np.int64) for k, a in arrays.items()})
    written("text", "cfl_flare.models.MLP")
    written("list", {"class_path": ["a"], "args": {}})
    for path in (
        "trap.Model",
        "os.system",
        "cfl_flare.cli.__main__.main",
        "cfl_flare.models.nn.Module",
        "torch.nn.Linear",
    ):
        written(path, {"class_path": path, "args": {}})
    written("escape", {"class_path": "x\x1b[2J[bold]\n" * 9, "args": {}})
    content = files["sound"].read_bytes()
    for what, damaged in {"cut": content[:-40], "empty": b"", "head": (10**15).to_bytes(8, "little") + content}.items():
        files[what] = tmp_path / f"{what}.safetensors"
        files[what].write_bytes(damaged)
    sound, out = files.pop("sound"), tmp_path / "out.csv"
    np.savez(tmp_path / "new.npz", images=np.zeros((2, 8, 8), np.uint8))
    words = ["--data", tmp_path / "new.npz", "--out", out]
    said = one_line_each({what: ["predict", path, *words] for what, path in files.items()})
    assert not out.exists() and not (tmp_path / "sprung").exists()
    for what, reason in {
        "8 GB": "would have 2,1",
        "many layers": "arguments of its model are longer",
        "foreign": "does not say which model it holds",
        "trap.Model": "holds a trap.Model; import its module first, or build one and pass it",
        "cfl_flare.cli.__main__.main": "holds a cfl_flare.cli.__main__.main",
        "ensemble": "does not fit its",
        "NaN": "holds NaN or infinity; name the file of a sound model",
        "cut": "cannot be read",
    }.items():
        assert reason in said[what], said[what]
    ((status, *_),) = run_commands(["predict", sound, *words])
    assert status == 0 and out.exists()


def changed(run: Path, name: str, **values: Any) -> None:
    content = json.loads((run / name).read_text())
    (run / name).write_text(json.dumps({**content, **values}))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "another program's": lambda run: (run / "summary.json").write_text('{"mean": 3, "results": [1, 2]}'),
    "a list": lambda run: (run / "summary.json").write_text("[]"),
    "deep": lambda run: (run / "summary.json").write_text('{"a":' * 100_000),
    "not text": lambda run: (run / "summary.json").write_bytes(b"\xff\x00"),
    "sparse": lambda run: (run / "summary.json").open("r+b").truncate(2**41),
    "label": lambda run: changed(run, "summary.json", label=["a"]),
    "long label": lambda run: changed(run, "summary.json", label="x" * 10**6),
    "final": lambda run: changed(run, "summary.json", final={"served_accuracy": "0.9"}),
    "rounds": lambda run: changed(run, "summary.json", rounds=None),
    "huge": lambda run: changed(run, "summary.json", bytes_up=10**400),
    "people": lambda run: changed(run, "summary.json", participants=["a"]),
    "group": lambda run: changed(run, "summary.json", participants=[{"name": "a", "group": {}}]),
    "rounds.jsonl": lambda run: (run / "rounds.jsonl").write_text("[]\n"),
    "a round": lambda run: (run / "rounds.jsonl").write_text('{"round": "1", "cluster_sizes": [1]}\n'),
    "sizes": lambda run: (run / "rounds.jsonl").write_text('{"round": 1, "cluster_sizes": 7}\n'),
    "accuracy": lambda run: (run / "rounds.jsonl").write_text(
        '{"round": 1, "cluster_sizes": [], "served_accuracy": {}}\n'
    ),
    "a worst participant": lambda run: (run / "rounds.jsonl").write_text(
        '{"round": 1, "cluster_sizes": [], "served_dice": 0.5, "served_worst_dice": "0.5"}\n'
    ),
    "a metric": lambda run: changed(run, "summary.json", metric={"name": "dice", "mode": "best"}),
    "no lines": lambda run: (run / "rounds.jsonl").write_text("x\n"),
    "assignments": lambda run: (run / "assignments.jsonl").write_text('{"round": 1}\n'),
    "a cluster": lambda run: (run / "assignments.jsonl").write_text(
        '{"round": 1, "participant": "a", "cluster": "b"}\n'
    ),
    "lines sparse": lambda run: (run / "assignments.jsonl").open("r+b").truncate(2**41),
    "cross-site": lambda run: (run / "cross_site.csv").write_text("participant,cluster,model,accuracy\na,0,b,much\n"),
    "cross-site columns": lambda run: (run / "cross_site.csv").write_text("a,b\n1,2\n"),
    "cross-site sparse": lambda run: (run / "cross_site.csv").open("wb").truncate(2**41),
    "newcomers": lambda run: (run / "newcomers.json").write_text("[" * 100_000),
}


@needs_extension("aftercare")
def test_runs_of_show_and_onboard(runs: Runs, tmp_path: Path) -> None:
    cases: dict[str, Sequence[str | Path]] = {}
    data = write_digits_npz(tmp_path / "own.npz")
    for i, (what, damage) in enumerate(DAMAGE.items()):
        run = Path(shutil.copytree(runs("wecfl"), tmp_path / f"{i}"))
        damage(run)
        cases[what] = ["show", run]
        if i % 4 == 0 and "cross-site" not in what:  # which it does not read
            cases[f"{what}, onboard"] = ["onboard", run, "--data", data]
    for what, path in odd_files(tmp_path, "").items():
        cases[f"{what}, show"], cases[f"{what}, onboard"] = ["show", path], ["onboard", path, "--data", data]
    said = one_line_each(cases)
    assert "has no 'method'; it is damaged or another program's" in said["another program's"]
    assert "label = ['a'] is not text" in said["label"]
    assert "served_worst_dice = '0.5' is not a number" in said["a worst participant"]
    assert "is not a metric's name, with its mode" in said["a metric"]
    assert "more than 67,108,864" in said["sparse"]


@needs_extension("aftercare")
def test_states_of_onboard(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    data, source = write_digits_npz(tmp_path / "own.npz"), runs("wecfl")
    summary = load_run(source).summary
    spec, method = summary["model"], summary["method"]
    damage: dict[str, dict[str, Any]] = {
        "8 GB": {"model": {**spec, "args": {**spec["args"], "hidden": [46_000, 46_000]}}},
        "trap": {"model": {"class_path": "trap.Model", "args": {}}},
        "main": {"model": {"class_path": "cfl_flare.cli.__main__.main", "args": {}}},
        "model": {"model": [1]},
        "method": {"method": {"method": "trap.Model"}},
        "penalty": {"method": {**method, "penalties": [{"penalty": "trap.Model"}]}},
        "clusters": {"method": {**method, "k": 10**9}},
        "training": {"training": {"lr": "much"}},
        "training list": {"training": [[]]},
        "seed": {"seed": "x"},
    }
    cases: dict[str, Sequence[str | Path]] = {}

    def case(what: str) -> Path:
        run = Path(shutil.copytree(source, tmp_path / f"run {what}"))
        cases[what] = ["onboard", run, "--data", data]
        return run

    for what, values in damage.items():
        changed(case(what), "summary.json", **values)
    for what, facts in {
        "no facts": {},
        "facts": {"assignment": 3, "round": "x", "extras": []},
        "assignment": {"assignment": {"a": "b"}, "round": 3, "extras": {}},
        "far": {"assignment": {"a": 10**12}, "round": 3, "extras": {}},
    }.items():
        (file,) = (case(what) / "state").glob("round-*.json")
        changed(file.parent, file.name, facts=facts)
    for what in ("pipe", "bomb", "1e38"):
        case(what)
    cases["pipe"] = [*cases["pipe"][:3], odd_files(tmp_path, ".npz")["pipe"]]
    cases["bomb"] = [*cases["bomb"][:3], bomb(tmp_path / "bomb.npz", "train_images")]
    with zipfile.ZipFile(tmp_path / "bomb.npz", "a") as archive, zipfile.ZipFile(data) as whole:
        for name in set(whole.namelist()) - {"train_images.npy"}:
            archive.writestr(name, whole.read(name))
    huge = dict(np.load(data))
    np.savez(tmp_path / "huge.npz", **{**huge, "train_images": np.full(huge["train_images"].shape, 1e38)})
    cases["1e38"] = [*cases["1e38"][:3], tmp_path / "huge.npz"]
    said = one_line_each(cases)
    assert not (tmp_path / "sprung").exists()
    for what, reason in {
        "trap": "names trap.Model, which is not cfl_flare's own",
        "main": "names cfl_flare.cli.__main__.main, which is not cfl_flare's own",
        "bomb": "bytes, which no images in a file of this size have",
        "1e38": "sample 0 reaches 1e+38",
    }.items():
        assert reason in said[what], said[what]


def test_names_are_shown_as_they_are(runs: Runs, tmp_path: Path) -> None:
    run = Path(shutil.copytree(runs("wecfl"), tmp_path / "[bold]runs[/bold]" / "a"))
    shutil.copytree(run, run.parent / "[red]b")
    changed(run, "summary.json", label="[green]own[/nonsense]")
    ((status, said, errors),) = run_commands(["show", run.parent])
    assert status == 0, errors
    assert "[green]own[/nonsense]" in said and "[red]b" in said and "[bold]runs[/bold]" in said
