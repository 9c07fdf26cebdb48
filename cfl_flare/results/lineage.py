# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A run's lineage: digests of its settings, data summaries, records, checkpoints and files, each chained to the last.

``lineage.jsonl`` has a line for each entry. An entry has its number, the digest of the one before and its own. The
first one, and each after an interruption, has digests of the settings, of what participants said of their data, and of
the records so far. The others have the records and the checkpoint of a round. The last one has those of all files.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from cfl_flare.core import files
from cfl_flare.core.errors import FileError
from cfl_flare.results import schema
from cfl_flare.results.run_dir import ASSIGNMENTS, ROUNDS

logger = logging.getLogger(__name__)

LINEAGE, SIGNATURE, CERTIFICATE = "lineage.jsonl", "lineage.sig", "lineage.crt"
# The copy beside a run's checkpoints.
KEPT = "chain.jsonl"
START, RESUME, ROUND, CLOSE = "start", "resume", "round", "close"
# What is made of a run's files after its end, or while it goes on by others.
LATER = (
    *("report.html", "*.png", "newcomers.json", "newcomers/*", "dossier/*", "metrics/*", "*.log", "job.json"),
    "withdrawal.json",
)
# What a participant says of its data at check-in, as the summary has it.
CHECK_IN = ("name", "site", "samples", "steps", "group", "tested", "clipped")
FIRST = NONE = "0" * 64

digest_text = schema.described(
    "a digest, of 64 hexadecimal digits",
    lambda value: isinstance(value, str) and len(value) == 64 and not set(value) - set("0123456789abcdef"),
)
DIGESTS = schema.dict_of(digest_text)
NEEDED: schema.Fields = {
    **dict.fromkeys(("entry", "rounds"), schema.count),
    **dict.fromkeys(("before", "digest"), digest_text),
    "kind": schema.described("a kind of entry", lambda kind: kind in (START, RESUME, ROUND, CLOSE)),
    "time": schema.text,
    "records": schema.dict_of(schema.row(digest_text, digest_text), lambda key: key.isdecimal() and len(key) < 10),
    "data": schema.dict_of(schema.maybe(digest_text)),
}
FIELDS: schema.Fields = {
    **dict.fromkeys(("settings", "checkpoint", "files"), DIGESTS),
    "signer": schema.maybe(schema.text),
}


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return json.dumps(json.loads(json.dumps(value)), sort_keys=True, separators=(",", ":"))


def digest_of(value: Any) -> str:
    return _sha256(canonical(value))


def data_digests(participants: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """By participant, the digest of what it said of its data, from a summary's participants or `CHECK_IN` alone."""
    return {p["name"]: digest_of({key: p[key] for key in CHECK_IN if key in p}) for p in participants}


def records_of(folder: Path, offsets: dict[str, int] | None = None) -> list[tuple[str, list[str]]]:
    """Each record of a run, in the order of the file: its round, its digest, and that of its assignments.

    ``offsets`` say where to begin in each file, and are moved to its end.
    """
    assignments: dict[str, list[str]] = {}
    for line in complete_lines(folder / ASSIGNMENTS, offsets):
        assignments.setdefault(_round_of(line), []).append(line)
    lines = [(_round_of(line), line) for line in complete_lines(folder / ROUNDS, offsets)]
    rest = assignments.keys() - {number for number, _ in lines}
    records = [(number, [_sha256(line), _sha256("\n".join(assignments.get(number, ())))]) for number, line in lines]
    return records + [(number, [NONE, _sha256("\n".join(assignments[number]))]) for number in sorted(rest)]


def _round_of(line: str) -> str:
    """The round of a record or an assignment; empty if the line says none."""
    try:
        number = json.loads(line)["round"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return str(number) if schema.count(number) else ""


def complete_lines(path: Path, offsets: dict[str, int] | None = None) -> list[str]:
    """The complete lines of a file, perhaps from an offset on; none if there is no file."""
    offsets = {} if offsets is None else offsets
    if not path.is_file():
        return []
    with files.open_regular(path, files.MOST_LINES) as file:
        file.seek(offsets.get(path.name, 0))
        content = file.read()
    end = content.rfind(b"\n") + 1
    offsets[path.name] = offsets.get(path.name, 0) + end
    return content[:end].decode(errors="backslashreplace").split("\n")[:-1]


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def covered(folder: Path) -> list[str]:
    """The files of a run that its chain covers once it is closed."""
    others = {*later(folder), LINEAGE, SIGNATURE, CERTIFICATE}
    return [name for name in _names(folder) if name not in others]


def later(folder: Path) -> list[str]:
    """The files of a run that are made of its others, and that no chain covers."""
    return [name for name in _names(folder) if any(fnmatch(name, pattern) for pattern in LATER)]


def _names(folder: Path) -> list[str]:
    return [str(path.relative_to(folder)) for path in files.below(folder)]


class Entries:
    """The entries in the lines of a chain's file, and what they say together.

    Attributes:
        entries: those that can be read.
        problems: what is wrong with them.
        last: the last one's digest.
        records: by round, the digests of its record and its assignments, as the last entries have them.
        data: by participant, the digest of what it said of its data.
        settings: by name.
        files: by name, once the chain is closed; None before.
        signer: who says to have signed it.
        time: of the last entry.
    """

    def __init__(self, lines: Iterable[str]):
        self.entries: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.last: str | None = FIRST
        self.records: dict[str, list[str]] = {}
        self.data: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.files: dict[str, str] | None = None
        self.signer: str | None = None
        self.time = ""
        self._checkpoints: dict[int, dict[str, str]] = {}
        self._expected = 0
        for number, line in enumerate(lines, start=1):
            self._read(f"{LINEAGE}: line {number}", line)

    @property
    def head(self) -> str:
        return str(self.last)

    @property
    def extent(self) -> str:
        """What it covers, in words."""
        return f"{len(self.files or {})} files and {len(self.records)} rounds"

    def _read(self, where: str, line: str) -> None:
        try:
            entry = schema.checked(files.parse_json(line, where), where, NEEDED, FIELDS)
        except FileError:
            self.problems.append(f"{where} is changed: it is no entry")
            self.last, self._expected = None, self._expected + 1
            return
        content = {key: value for key, value in entry.items() if key != "digest"}
        if digest_of(content) != entry["digest"] or canonical(entry) != line:
            self.problems.append(f"{where} is changed: its digest is another")
        if entry["entry"] != self._expected or self.last not in (entry["before"], None):
            wanted = f"entry {self._expected} is expected, after {str(self.last)[:12]}"
            self.problems.append(f"{where} is entry {entry['entry']}, after {entry['before'][:12]}; {wanted}")
        self.last, self._expected = entry["digest"], entry["entry"] + 1
        self.entries.append(entry)
        self._take(where, entry)

    def _take(self, where: str, entry: Mapping[str, Any]) -> None:
        kind, rounds, checkpoint = entry["kind"], entry["rounds"], entry.get("checkpoint", {})
        self.files, self.signer, self.time = entry.get("files"), entry.get("signer"), entry["time"]
        if kind in (START, RESUME):
            changed = [n for n, d in entry["records"].items() if self.records.get(n, d) != d]
            self.problems += [f"{ROUNDS}: round {n} was changed before the run went on" for n in changed]
            if checkpoint and self._checkpoints.get(rounds, checkpoint) != checkpoint:
                self.problems.append(f"{where}: the checkpoint after {rounds} rounds is not the one that was written")
            self.records, self.data, self.settings = {}, {}, entry.get("settings", {})
        self._checkpoints |= {rounds: checkpoint} if checkpoint else {}
        self.records |= entry["records"]
        self.data = {n: d for n, d in {**self.data, **entry["data"]}.items() if d is not None}


class Chain:
    """Writes a run's lineage.

    Args:
        folder: the run's.
        rounds: rounds that are done. A run without any begins a new chain; another one goes on with that in its folder.
        copy: where a copy is written that outlives the folder, and from which the chain goes on in a new folder.
    """

    def __init__(self, folder: Path, rounds: int, copy: Path | None = None):
        self._folder, self._paths = folder, [folder / LINEAGE, *([] if copy is None else [copy])]
        earlier = next((lines for path in self._paths if rounds and (lines := complete_lines(path))), [])
        text = "".join(line + "\n" for line in earlier)  # without a last line that was cut off
        files.atomic_write(folder / LINEAGE, text)
        self._copy(lambda path: files.make_folder(path.parent, private=True))
        self._copy(lambda path: files.atomic_write(path, text))
        for name in (SIGNATURE, CERTIFICATE):
            (folder / name).unlink(missing_ok=True)
        before = Entries(earlier)
        self._count, self.head = len(earlier), before.last or _sha256(earlier[-1])
        self._data = before.data
        self._offsets: dict[str, int] = {}

    def begin(
        self, rounds: int, settings: Mapping[str, Any], data: Mapping[str, str], checkpoint: Mapping[str, str]
    ) -> None:
        """A run starts, or goes on after this number of rounds.

        Args:
            data: by participant, the digest of what it said of its data.
            checkpoint: digests of the files from which the run goes on.
        """
        self._data = {}
        of_settings = {key: digest_of(value) for key, value in settings.items()}
        self._write(RESUME if self._count else START, rounds, data, checkpoint=checkpoint, settings=of_settings)

    def round(self, rounds: int, data: Mapping[str, str], checkpoint: Mapping[str, str]) -> None:
        """A round is done."""
        self._write(ROUND, rounds, data, checkpoint=checkpoint)

    def close(self, rounds: int, data: Mapping[str, str], signer: str | None = None) -> None:
        """The run is over; ``signer`` is the name of the certificate that signs the head, None where nothing does."""
        digests = {name: files.file_sha256(self._folder / name) for name in covered(self._folder)}
        self._write(CLOSE, rounds, data, files=digests, signer=signer)

    def _copy(self, write: Callable[[Path], None]) -> None:
        """Writes to the copy; a run goes on without one, as it does without checkpoints."""
        try:
            for path in self._paths[1:]:
                write(path)
        except FileError as error:
            logger.error("the lineage has no copy beside the checkpoints: %s", error)

    def _write(self, kind: str, rounds: int, data: Mapping[str, str], **content: Any) -> None:
        changes: dict[str, str | None] = {name: d for name, d in data.items() if self._data.get(name) != d}
        entry = {
            "entry": self._count,
            "kind": kind,
            "before": self.head,
            "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "rounds": rounds,
            "records": dict(records_of(self._folder, self._offsets)),
            "data": {**changes, **dict.fromkeys(self._data.keys() - data.keys())},
            **content,
        }
        entry["digest"] = digest_of(entry)
        line = canonical(entry) + "\n"
        files.append(self._folder / LINEAGE, line)
        self._copy(lambda path: files.append(path, line))
        self._count, self.head, self._data = self._count + 1, entry["digest"], dict(data)


def seal(folder: Path) -> None:
    """Closes an unsigned chain again, once a simulation has put further files into its run's folder."""
    chain = Entries(complete_lines(folder / LINEAGE))
    if chain.files is not None and chain.signer is None:
        rounds = chain.entries[-1]["rounds"]
        Chain(folder, max(1, rounds)).close(rounds, chain.data)
