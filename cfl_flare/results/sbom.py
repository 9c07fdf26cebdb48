# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""A bill of materials in CycloneDX's JSON: cfl_flare and all that it requires, as installed where this runs."""

from __future__ import annotations

import platform
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cfl_flare.core.text import plain

ROOT = "cfl-flare"


def installed(name: str = ROOT) -> dict[str, Distribution]:
    """A distribution and all that it requires, directly or not, by name; what is not installed is left out."""
    distributions, wanted, seen = dict[str, Distribution](), [(name, "")], set[tuple[str, str]]()
    while wanted:
        key, extra = wanted.pop()
        if (key, extra) in seen:
            continue
        seen.add((key, extra))
        try:
            distributions[key] = distributions.get(key) or distribution(key)
        except PackageNotFoundError:
            continue
        wanted += _required(distributions[key], extra)
    return distributions


def _required(of: Distribution, extra: str) -> Iterator[tuple[str, str]]:
    """Names of what a distribution requires for one of its extras, or for none, each with an extra of its own."""
    for text in of.requires or ():
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((canonicalize_name(requirement.name), name) for name in ("", *requirement.extras))


def bill_of_materials() -> dict[str, Any]:
    """CycloneDX 1.6; its schema is at cyclonedx.org."""
    components = [_component(name, of) for name, of in sorted(installed().items())]
    root = next((component for component in components if component["name"] == ROOT), None)
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            **({} if root is None else {"component": root}),
            "properties": [{"name": "python", "value": platform.python_version()}],
        },
        "components": [component for component in components if component is not root],
    }


def _component(name: str, of: Distribution) -> dict[str, Any]:
    purl = f"pkg:pypi/{name}@{of.version}"
    stated: Any = of.metadata  # a message of e-mail's, of which importlib's type knows less
    licence = stated.get("License-Expression") or stated.get("License")
    licences = {"licenses": [{"license": {"name": plain(licence, 100)}}]} if licence else {}
    return {"type": "library", "bom-ref": purl, "name": name, "version": of.version, "purl": purl, **licences}
