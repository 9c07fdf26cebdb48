# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""Signs a run's lineage with the certificate of the project's server, and checks such a signature against its root."""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cryptography.x509 import NameOID
from nvflare.apis.fl_context import FLContext
from nvflare.lighter import utils

from cfl_flare.core.config import one_line
from cfl_flare.core.errors import FileError
from cfl_flare.core.files import atomic_write, read_json, read_text
from cfl_flare.core.text import plain
from cfl_flare.flare.compat import simulated
from cfl_flare.results.lineage import CERTIFICATE, SIGNATURE, Entries
from cfl_flare.results.run_dir import SUMMARY

# A certificate with those above it, and a signature, are smaller.
LARGEST = 2**16


@dataclass(frozen=True)
class ServerSigner:
    """Signs with the server's own key; ``certificate`` is the certificate and those above it, as text."""

    name: str
    certificate: str
    key: Any

    def sign(self, folder: Path, head: str) -> None:
        """Writes the signature of a chain's head, and the certificate beside it; a FileError if it cannot."""
        atomic_write(folder / CERTIFICATE, self.certificate)
        atomic_write(folder / SIGNATURE, utils.sign_content(signed_text(head, self.certificate), self.key) + "\n")


def signed_text(head: str, certificate: str) -> str:
    """What is signed: the chain's head, and the certificate that goes with it."""
    return f"cfl_flare lineage 1\n{head}\n{hashlib.sha256(certificate.encode()).hexdigest()}\n"


def signer_of(fl_ctx: FLContext) -> ServerSigner | None:
    """The signer of the kit in which this process runs; None in a simulation, or where the kit has no server's key."""
    startup = Path(fl_ctx.get_engine().get_workspace().get_startup_kit_dir())
    if simulated(fl_ctx) or not (startup / "server.key").is_file():
        return None
    certificate = read_text(startup / "server.crt", LARGEST)
    name = _subject(utils.load_crt_chain_bytes(certificate.encode())[0], NameOID.COMMON_NAME)
    return ServerSigner(name, certificate, utils.load_private_key_file(startup / "server.key"))


def check_signature(folder: Path, lineage: Entries, root: Path | None) -> tuple[list[str], str]:
    """Checks who signed a run's lineage.

    Args:
        root: the project's ``rootCA.pem``, from a startup kit of one's own; None checks no certificate.

    Returns:
        What is wrong, and who signed in one line.

    Raises:
        FileError: the root cannot be read.
    """
    there = [name for name in (SIGNATURE, CERTIFICATE) if (folder / name).exists()]
    if lineage.signer is None:
        problems = [f"{name} was added: the chain says that nobody signed it" for name in there]
        if root is not None:
            problems.append("the chain is not signed, so that no root can vouch for it")
        return problems, "unsigned: whoever can write this folder could have written another chain"
    if len(there) < 2:
        missing = f"{SIGNATURE} or {CERTIFICATE} was left out"
        return [f"the chain says that {lineage.signer} signed it; {missing}"], "unsigned"
    trusted = None if root is None else _root(root)
    try:
        text, signature = (read_text(folder / name, LARGEST) for name in (CERTIFICATE, SIGNATURE))
        chain = utils.load_crt_chain_bytes(text.encode())
        name, organization = (_subject(chain[0], part) for part in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME))
        is_other = _is_other(folder, name, chain[0])
    except Exception as error:  # whatever another program's bytes do to the parsers
        return [f"{CERTIFICATE} or {SIGNATURE} cannot be read: {plain(one_line(error), 200)}"], "unsigned"
    problems = [] if name == lineage.signer else [f"{CERTIFICATE} is {name}'s, and the chain names {lineage.signer}"]
    problems += [f"{CERTIFICATE} is a site's or a user's, not the server's"] * is_other
    if not _holds(signature, signed_text(lineage.head, text), chain[0]):
        problems.append(f"{SIGNATURE} is not of this chain's last entry with this {CERTIFICATE}")
    who = f"signed by {name} of {organization or 'no organization'}"
    if trusted is None:
        way = "--root rootCA.pem checks the certificate itself"
        return problems, f"{who}, as the certificate in the folder says; {way}"
    try:
        signed_at = datetime.fromisoformat(lineage.time).astimezone(timezone.utc)  # certificates expire before records
        utils.verify_cert_chain(chain[0], chain[1:], trusted, now=signed_at)
    except Exception as error:
        problems.append(f"{CERTIFICATE} is not of the project whose root is {root}: {plain(one_line(error), 200)}")
    return problems, f"{who}, whose certificate is the project's" if not problems else f"{who}, as the certificate says"


def _root(path: Path) -> Any:
    try:
        return utils.load_crt_bytes(read_text(path, LARGEST).encode())
    except ValueError as error:
        raise FileError(f"cannot read {path}: {plain(str(error), 100)}; name the project's rootCA.pem") from error


def _holds(signature: str, text: str, leaf: Any) -> bool:
    """Whether a signature, in the one way in which it is written, is of a text by a certificate's key."""
    try:
        if b64encode(b64decode(signature.strip(), validate=True)).decode() + "\n" != signature:
            return False
        utils.verify_content(text, signature.strip(), leaf.public_key())
    except Exception:
        return False
    return True


def _is_other(folder: Path, name: str, leaf: Any) -> bool:
    """Whether a certificate is a user's, which has a role, or one of the run's sites'; each is under the same root."""
    try:
        people = read_json(folder / SUMMARY)["participants"]
        sites = {person.get("site") for person in people}
    except (FileError, KeyError, TypeError, AttributeError):
        sites = set()
    return bool(_subject(leaf, NameOID.UNSTRUCTURED_NAME)) or name in sites


def _subject(certificate: Any, part: Any) -> str:
    values = certificate.subject.get_attributes_for_oid(part)
    return plain(str(values[0].value), 100) if values else ""
