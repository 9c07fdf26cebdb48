# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""The ways to install at a hospital: image, compose file and unit keep their promises; the signed wheelhouse.

No container engine is needed. A mount namespace has what the compose file says: a root that is read-only, the kit
read-only in it, volumes and a tmpfs; and the entry point of the image runs there as its user.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from cfl_flare import __version__
from cfl_flare.data import SiteData
from cfl_flare.flare import ClusteredRecipe
from cfl_flare.models import Logistic
from tests.e2e.deployment import GUIDE, ROOT, SERVER, TRUSTING, Deployment, until, write_hospitals
from tests.helpers.processes import can_mount
from tests.helpers.shared import make_once

LINES = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text()).splitlines()
STEPS = [line.split(" ", 1) for line in LINES if line and not line.startswith("#")]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
(UNIT,) = re.findall(r"^```ini\n(\[Unit\].*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)
UID = 10001
# In a mount namespace, all that is not below /mnt.
READ_ONLY = r"""
for place in $(awk '{print $5}' /proc/self/mountinfo | grep -v '^/mnt\|^/proc\|^/sys\|^/dev\|^/$'); do
    mount -o remount,bind,ro $place 2>/dev/null || true
done
mount -o remount,bind,ro /
"""


def steps(name: str) -> list[str]:
    """The arguments of the Dockerfile's instructions of this name."""
    return [argument for instruction, argument in STEPS if instruction == name]


def variables() -> dict[str, str]:
    return dict(word.split("=", 1) for line in steps("ENV") for word in shlex.split(line))


def mounts(service: str) -> list[tuple[str, str, bool]]:
    """Source, place and whether it may be written, of each of a service's volumes."""
    parts = [re.fullmatch(r"(.+?):(/[^:]*)(:ro)?", volume) for volume in SERVICES[service]["volumes"]]
    return [(part[1], part[2], not part[3]) for part in parts if part is not None]


def test_the_image_has_no_root_and_takes_nothing_from_elsewhere():
    assert steps("USER") == [f"{UID}:{UID}"] and [i for i, _ in STEPS].index("USER") > max(
        number for number, (instruction, _) in enumerate(STEPS) if instruction == "RUN"
    )
    assert not steps("ADD") and not steps("COPY") and len(steps("FROM")) == 1
    assert not re.search(r"https?:|curl|wget|apt", " ".join(steps("RUN")))
    (install,) = [line for line in steps("RUN") if "pip install" in line]
    assert "--no-index" in install and "--require-hashes" in install
    assert json.loads(steps("ENTRYPOINT")[0]) == ["bash", "/kit/startup/sub_start.sh", "--once"]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_writes_nowhere_but_in_volumes(service):
    promised = SERVICES[service]
    assert promised["read_only"] is True and promised["user"] == f"{UID}:{UID}"
    assert promised["cap_drop"] == ["ALL"] and promised["security_opt"] == ["no-new-privileges:true"]
    assert not {"privileged", "cap_add", "devices", "network_mode", "pid", "ipc", "env_file"} & promised.keys()
    places = {place: writable for _, place, writable in mounts(service)}
    assert not places["/kit"] and not places.get("/data", False)
    volumes = [place for place, writable in places.items() if writable]
    assert [source for source, _, writable in mounts(service) if writable] == [
        name for name in COMPOSE["volumes"] if name.startswith(f"{service}-")
    ]
    written = [value for value in variables().values() if value.startswith("/")]
    lasting = [value for value in written if value != "/tmp"]
    assert all(any(Path(value).is_relative_to(place) for place in volumes) for value in lasting)
    assert [place.split(":")[0] for place in promised["tmpfs"]] == ["/tmp"]


def test_flare_keeps_jobs_in_a_volume_of_the_server():
    import nvflare.lighter

    text = (Path(nvflare.lighter.__file__).parent / "templates" / "master_template.yml").read_text()
    stores = re.findall(r'"(?:uri_root|root_dir)": "(/[^"]+)"', text)
    volumes = [place for _, place, writable in mounts("server") if writable]
    assert len(stores) == 2 and all(any(Path(s).is_relative_to(v) for v in volumes) for s in stores)


def test_the_unit_is_one_of_systemd_s(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    (tmp_path / "flare.service").write_text(UNIT)
    done = subprocess.run(
        ["systemd-analyze", "verify", str(tmp_path / "flare.service")], capture_output=True, text=True
    )
    assert done.returncode == 0 and "flare.service" not in done.stderr, done.stderr


def fill_wheelhouse(folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(ROOT / ".ci" / "wheelhouse"), str(folder), "packaging"], capture_output=True, text=True, env=environment
    )
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no index has the wheel of packaging")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheelhouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheelhouse of cfl_flare and one package that it requires."""
    return make_once(tmp_path_factory, "wheelhouse", fill_wheelhouse)


@pytest.mark.slow
def test_the_steps_of_the_image_install_from_the_wheelhouse(wheelhouse, tmp_path):
    """In an empty environment, under a prefix; `pip check` is left out, as this wheelhouse has two packages."""
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "env")], check=True)
    environment = {"PATH": f"{tmp_path / 'env' / 'bin'}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def carried_out() -> list[subprocess.CompletedProcess[str]]:
        done = []
        for line in steps("RUN"):
            words = [word for word in shlex.split(line) if not word.startswith("--mount")]
            words = [word.replace("/wheelhouse", str(wheelhouse)) for word in words]
            if words[0] == "install" and os.getuid() == 0:
                words = [f"{tmp_path}/root{word}" if word.startswith("/") else word for word in words]
            if words != ["pip", "check"] and (words[0] == "pip" or os.getuid() == 0):
                done.append(subprocess.run(words, capture_output=True, text=True, env=environment))
        return done

    assert all(step.returncode == 0 for step in carried_out())
    if os.getuid() == 0:
        assert (tmp_path / "root/state").stat().st_uid == (tmp_path / "root/tmp/nvflare").stat().st_uid == UID
    code = "import cfl_flare; print(cfl_flare.__version__, cfl_flare.__file__)"
    said = subprocess.check_output(["python", "-c", code], text=True, env=environment, cwd=tmp_path).split()
    assert said[0] == __version__ and said[1].startswith(str(tmp_path / "env"))

    (wheel,) = wheelhouse.glob("cfl_flare-*.whl")
    whole = wheel.read_bytes()
    try:
        wheel.write_bytes(whole + b"\0")
        subprocess.run(["pip", "uninstall", "-y", "cfl-flare"], check=True, capture_output=True, env=environment)
        assert "DO NOT MATCH THE HASHES" in carried_out()[0].stderr
    finally:
        wheel.write_bytes(whole)


@pytest.fixture
def keyring() -> Iterator[dict[str, str]]:
    """An environment with a signing key that is thrown away; sockets of gpg want a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        environment = {**os.environ, "GNUPGHOME": folder}
        key = ["gpg", "--batch", "--passphrase", "", "--quick-gen-key", "release@example.org", "ed25519", "sign", "1d"]
        subprocess.run(key, check=True, capture_output=True, env=environment)
        yield environment
        subprocess.run(["gpgconf", "--kill", "all"], env=environment)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gpg") is None, reason="no gpg")
def test_the_release_is_signed_and_a_changed_wheel_is_noticed(wheelhouse, keyring, tmp_path):
    """By the commands of CONTRIBUTING.md."""
    shutil.copytree(wheelhouse, tmp_path / "wheelhouse")
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("\n## A release\n")[2]
    (block,) = re.findall(r"^ *```sh\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    sign, verify = (line.strip() for line in block.splitlines())

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = ["bash", "-c", command]
        return subprocess.run(words, capture_output=True, text=True, env=keyring, cwd=tmp_path)

    assert run(sign).returncode == 0
    signed = {path.name for path in (tmp_path / "wheelhouse").glob("*.asc")}
    assert len(signed) == 3 and {"requirements.lock.asc", "sbom.json.asc"} < signed
    assert run(verify).returncode == 0
    for name in signed:
        path = tmp_path / "wheelhouse" / name.removesuffix(".asc")
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert run(verify).returncode != 0, name
        path.write_bytes(content)
    assert run(verify).returncode == 0


@pytest.mark.slow
def test_the_bill_of_materials_lists_each_wheel(wheelhouse):
    bill = json.loads((wheelhouse / "sbom.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["version"]) == ("CycloneDX", __version__)
    wheels = {path.name.split("-")[0]: path for path in wheelhouse.glob("*.whl")}
    listed = {part["name"]: part["externalReferences"][0]["hashes"][0]["content"] for part in bill["components"]}
    assert wheels.keys() == listed.keys() == {"cfl_flare", "packaging"}
    for name, path in wheels.items():
        assert listed[name] == hashlib.sha256(path.read_bytes()).hexdigest()


# ---- A deployment: the server and one hospital as in a container, the other one as a service ----


def container(service: str, sources: dict[str, Path], folder: Path) -> tuple[str, ...]:
    """The command in which the image's entry point finds a service's mounts below /mnt, and no other place to write."""
    lines = ["set -e", "mount --make-rprivate /", "mount -t tmpfs -o mode=755 none /mnt"]
    for place in SERVICES[service]["tmpfs"]:
        place, _, _ = place.partition(":")
        lines += [f"mkdir -p /mnt{place}", f"mount -t tmpfs -o mode=1777 none /mnt{place}"]
    for source, place, writable in sorted(mounts(service), key=lambda mount: mount[1]):
        lines += [f"mkdir -p /mnt{place}", f"mount --bind {shlex.quote(str(sources[source]))} /mnt{place}"]
        lines += [] if writable else [f"mount -o remount,bind,ro /mnt{place}"]
    python, home = Path(sys.base_prefix), closed(Path(sys.base_prefix))
    if home is not None:  # Python itself is some user's: the image's user finds it, and nothing else of that user's
        lines += ["mkdir /mnt/python", f"mount --bind {python} /mnt/python", f"mount -t tmpfs -o mode=755 none {home}"]
        lines += [f"mkdir -p {python}", f"mount --bind /mnt/python {python}"]
    drop = f"setpriv --reuid {UID} --regid {UID} --clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all"
    entry = shlex.join(word.replace("/kit", "/mnt/kit") for word in json.loads(steps("ENTRYPOINT")[0]))
    lines += ["mount -o remount,ro /mnt", READ_ONLY]
    lines += [f"if touch {shlex.quote(str(folder / 'probe'))} /mnt/kit/probe 2>/dev/null; then exit 9; fi"]
    lines += [f"exec {drop} {entry}"]
    return ("unshare", "-m", "bash", "-c", "\n".join(lines))


def hash_files(folder: Path) -> dict[str, str]:
    return {str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def give(*folders: Path) -> None:
    """Makes folders those of the image's user."""
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder, *folder.rglob("*")):
            os.chown(path, UID, UID)


def closed(path: Path) -> Path | None:
    """The first folder on the way there that other users may not enter."""
    return next((folder for folder in [*reversed(path.parents), path] if not folder.stat().st_mode & 0o001), None)


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="this user may not mount")
def test_a_job_runs_on_read_only_roots_and_as_a_service(data_root, tmp_path):
    if not (data_root / "bloodmnist28.npz").is_file() or closed(ROOT) or closed(Path(sys.prefix)):
        pytest.skip("no bloodmnist28.npz, or another user cannot read what is installed")
    files = write_hospitals(data_root / "bloodmnist28.npz", tmp_path / "cut", count=2)
    data = tmp_path / "data"
    data.mkdir()
    places = {site: Path(shutil.copy(path, data / f"{site}.npz")) for site, path in files.items()}
    trial = Deployment(tmp_path, places)
    resources = trial.kits / SERVER / "local" / "resources.json"
    resources.write_text(resources.read_text().replace(str(tmp_path / "nvflare"), "/mnt/tmp/nvflare"))
    inside = {name: value.replace("/", "/mnt/", 1) if value[0] == "/" else value for name, value in variables().items()}
    inside |= {"TMPDIR": "/mnt/tmp", "CFL_FAULTS": ""}  # that file lies where the image's user may not look
    before = hash_files(trial.kits)
    try:
        for service, name in (("server", SERVER), ("hospital-1", "hospital-1")):
            volumes = {source: tmp_path / "volumes" / source for source, _, writable in mounts(service) if writable}
            give(data, trial.kits / name, *volumes.values())
            sources = {f"${{KITS}}/{service}": trial.kits / name, "${DATA}": data, **volumes}
            settings = {k: str(v) for k, v in SERVICES[service].get("environment", {}).items()}
            trial.settings[name] = inside | {
                key: value.replace("/data", "/mnt/data") for key, value in settings.items()
            }
            trial.start(name, inside=container(service, sources, tmp_path))
        as_a_service(trial, "hospital-2")
        trial.until_connected()
        recipe = ClusteredRecipe(
            name="ward",
            method="wecfl:k=2",
            model=Logistic((3, 14, 14), 8),
            data=SiteData(),
            num_rounds=2,
            min_clients=2,
            **TRUSTING,
        )
        recipe.export(str(tmp_path / "jobs"))
        status, results = trial.run(tmp_path / "jobs" / "ward")
        assert status == "FINISHED:COMPLETED" and (results / "cfl" / "summary.json").is_file()
    finally:
        trial.stop()
    for name in (SERVER, "hospital-1"):  # their kits are as they were
        kit = str(trial.kits / name)
        assert {p: d for p, d in hash_files(trial.kits).items() if p.startswith(kit)} == {
            p: d for p, d in before.items() if p.startswith(kit)
        }
    volumes = tmp_path / "volumes"
    assert (volumes / "hospital-1-state" / "cfl" / "ward").is_dir() and list((volumes / "server-jobs").iterdir())
    logs = [*volumes.rglob("*log.txt"), *tmp_path.glob("*.out")]
    assert len(logs) > 4
    for log in logs:
        assert not re.search("Read-only file system|Permission denied|Errno 30", log.read_text()), log


def as_a_service(trial: Deployment, site: str) -> None:
    """Starts a site by the unit's own command, in its own folder."""
    lines = dict(line.split("=", 1) for line in UNIT.splitlines() if "=" in line)
    own = {"/srv/kits/hospital-1": str(trial.kits / site), "/srv/venv/bin": str(Path(sys.executable).parent)}
    own |= {"/var/lib/cfl": str(trial.state_root(site)), "/srv/ward/cells.npz": str(trial.data[site])}
    trial.state_root(site).mkdir(parents=True)
    command, folder = lines["ExecStart"], lines["WorkingDirectory"]
    for name, here in own.items():
        command, folder = command.replace(name, here), folder.replace(name, here)
    with (trial.folder / f"{site}.out").open("a") as out:
        words = [f"PYTHONPATH={ROOT}" if word == "-i" else word for word in shlex.split(command)]
        words[1:1] = ["-i"]
        trial.processes[site] = subprocess.Popen(words, cwd=folder, stdout=out, stderr=out, start_new_session=True)
    until("the service to start FLARE", lambda: (trial.kits / site / "pid.fl").is_file())
