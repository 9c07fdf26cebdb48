# SPDX-FileCopyrightText: 2026 The cfl_flare authors
# SPDX-License-Identifier: Apache-2.0
"""FLARE's processes, forked from one that has imported PyTorch and FLARE, so that each saves seconds of importing.

A job in the simulator starts three processes at least. An import of PyTorch takes most of such a start. `start` runs
this file as a server, which imports what other people wrote, and nothing of ``cfl_flare``. `Popen` takes the place of
`subprocess.Popen`: where ``CFL_WARM`` names the server's socket, it asks for a fork that becomes the process. That
process imports the package from its own path, with its own arguments, folder, environment, session and files.
"""

from __future__ import annotations

import array
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

SOCKET = "CFL_WARM"
COMMANDS = ("from cfl_flare.cli import main", "from nvflare.cli import main")
MODULES = ("nvflare.", "cfl_flare.")
PLAIN = subprocess.Popen
SHIM = """#!{python}
import sys

sys.path.insert(0, {root!r})
from tests.helpers.warm import Popen

sys.exit(abs(Popen([sys.executable, "-c", {code!r}, *sys.argv[1:]]).wait()))
"""
IMPORTED = (
    *("nvflare.private.fed.app.simulator.simulator", "nvflare.private.fed.app.simulator.simulator_worker"),
    *("nvflare.private.fed.app.client.worker_process", "nvflare.private.fed.app.server.runner_process"),
    *("nvflare.cli", "nvflare.recipe.sim_env", "nvflare.client", "nvflare.app_opt.pt.recipes.fedavg"),
    *("torch", "torch.utils.data", "torchmetrics.functional", "torchvision.transforms.v2", "safetensors.torch"),
    *("pandas", "scipy.cluster.hierarchy", "scipy.optimize", "scipy.stats", "sklearn.cluster", "sklearn.datasets"),
    *("sklearn.decomposition", "sklearn.metrics", "PIL.Image", "rich.progress", "rich.table", "jinja2", "psutil"),
)


# ---- Who asks ----


def asked_for(words: Any, env: Mapping[str, str] | None) -> str:
    """The socket of the server that can start a command; empty for a command that starts by itself."""
    address = (os.environ if env is None else env).get(SOCKET, "")
    if not address or not isinstance(words, (list, tuple)) or len(words) < 2:
        return ""
    program, flag, code = (*map(str, words), "")[:3]
    if os.path.abspath(program) != os.path.abspath(sys.executable):
        return ""
    module, command = flag == "-m" and code.startswith(MODULES), flag == "-c" and any(c in code for c in COMMANDS)
    return address if module or command or flag.endswith(".py") else ""


class Popen(PLAIN):
    """`subprocess.Popen`, some of whose processes the server forks."""

    _warm: socket.socket | None = None

    def _execute_child(self, *values: Any) -> None:
        words, _, preexec_fn, _, pass_fds, cwd, env, _, _, shell, *rest = values
        pipes, session = rest[:6], rest[11]
        address = "" if shell or pass_fds or preexec_fn not in (None, os.setsid) else asked_for(words, env)
        if not address:
            super()._execute_child(*values)
            return
        request = {
            "words": [str(word) for word in words],
            "cwd": os.path.abspath(cwd or os.getcwd()),
            "env": dict(os.environ if env is None else env),
            "session": bool(session or preexec_fn),
            "parent": os.getpid(),
        }
        files = [own if own != -1 else usual for own, usual in zip((pipes[0], pipes[3], pipes[5]), (0, 1, 2))]
        self._warm, self.pid = ask(address, request, files)
        self._lock = threading.Lock()
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def _internal_poll(self, *values: Any, **named: Any) -> int | None:
        if self._warm is None:
            return super()._internal_poll(*values, **named)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._warm is None:
            return super()._wait(timeout)
        with self._lock:
            if self.returncode is None:
                if not select.select([self._warm], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                told = self._warm.recv(16)
                self.returncode = int(told) if told else -signal.SIGKILL
                self._warm.close()
        return self.returncode


def ask(address: str, request: Mapping[str, Any], files: Sequence[int]) -> tuple[socket.socket, int]:
    """Has a process forked; the connection on which its exit status arrives, and its number."""
    content = json.dumps(request).encode()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))]
    connection.sendmsg([len(content).to_bytes(8, "big")], rights)
    connection.sendall(content)
    pid = int(connection.recv(16))
    with open(f"{address}-{os.getpid()}", "a") as file:
        file.write(f"{pid}\n")
    return connection, pid


def started_by(pid: int) -> list[psutil.Process]:
    """The forks that a process asked for, as far as they run; it is no parent of theirs."""
    address = os.environ.get(SOCKET, "")
    path = Path(f"{address}-{pid}")
    running = []
    for number in path.read_text().split() if address and path.is_file() else ():
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(number))
            if process.status() != psutil.STATUS_ZOMBIE and __file__ in process.cmdline():
                running.append(process)
    return running


def start_forking() -> Callable[[], None]:
    """Starts a server, which this process and those that come from it ask; returns what ends it."""
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, __file__, str(folder / "warm")]
    server = PLAIN(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
    assert server.stdin and server.stdout
    server.stdout.readline()
    write_commands(folder / "bin")
    os.environ[SOCKET] = str(folder / "warm")

    def end() -> None:
        os.environ.pop(SOCKET, None)
        server.stdin.close()
        server.wait(60)
        shutil.rmtree(folder)

    return end


def write_commands(folder: Path) -> None:
    """Commands ``cfl-flare`` and ``nvflare`` that are forked, for those who type them."""
    folder.mkdir()
    for name, code in zip(("cfl-flare", "nvflare"), COMMANDS):
        path, root = folder / name, str(Path(__file__).parents[2])
        run = f"import sys; {code}; sys.exit(main())"
        path.write_text(SHIM.format(python=sys.executable, root=root, code=run))
        path.chmod(0o755)


def find_commands() -> str:
    """The folder of the commands; empty if there is no server."""
    return str(Path(os.environ[SOCKET]).with_name("bin")) if os.environ.get(SOCKET) else ""


# ---- The server ----


def serve(listener: socket.socket) -> dict[str, Any]:
    """Forks until its standard input ends; returns in each fork, with what was asked of it."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([listener, woken, 0], [], [])[0]
        if 0 in ready:
            os._exit(0)
        if woken in ready:
            os.read(woken, 4096)
            tell_ends(running)
        if listener in ready:
            connection = listener.accept()[0]
            request, files = receive(connection)
            pid = os.fork()
            if not pid:
                return become(request, files)
            for file in files:
                os.close(file)
            connection.sendall(f"{pid:16}".encode())
            running[pid] = connection


def receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """A request, and the files that came with it."""
    files = array.array("i")
    size, rights, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * files.itemsize))
    for _, _, content in rights:
        files.frombytes(content)
    content = b""
    while len(content) < int.from_bytes(size, "big"):
        content += connection.recv(1 << 20)
    return json.loads(content), list(files)


def tell_ends(running: dict[int, socket.socket]) -> None:
    """Sends the exit status of those that have ended."""
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with running.pop(pid) as connection, contextlib.suppress(OSError):
            connection.sendall(f"{os.waitstatus_to_exitcode(status):16}".encode())


def become(request: dict[str, Any], files: Sequence[int]) -> dict[str, Any]:
    """Turns a fork into the process that was asked for, up to its code."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["session"]:
        os.setsid()
    for number, file in enumerate(files):
        os.dup2(file, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 4096 else 4096)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    parent = request["parent"]
    os.getppid = lambda: parent
    return request


def run_request(request: Mapping[str, Any], base: Sequence[str]) -> None:
    """Runs the module or the code, as Python would."""
    words = request["words"]
    flag, arguments = words[1], words[2:]
    script = flag.endswith(".py")
    first = os.path.dirname(os.path.abspath(flag)) if script else "" if flag == "-c" else request["cwd"]
    sys.path[:] = [first, *filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep)), *base]
    sys.orig_argv[:] = words
    sys.argv[:] = [flag, *arguments[not script :]]
    importlib.invalidate_caches()
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    if script:
        runpy.run_path(flag, run_name="__main__")
    elif flag == "-m":
        sys.modules.pop(arguments[0], None)
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(arguments[0], "<string>", "exec"), main.__dict__)


def serve_processes() -> None:
    """The server's process."""
    base = sys.path[1:]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[1])
    listener.listen(64)
    print("listens", flush=True)  # who asks earlier than it has imported everything waits
    for name in IMPORTED:
        importlib.import_module(name)
    subprocess.Popen = Popen  # type: ignore[misc]
    gc.collect()
    gc.freeze()
    request = serve(listener)
    import numpy as np
    import torch

    np.random.seed()
    torch.set_num_threads(int(request["env"].get("OMP_NUM_THREADS") or torch.get_num_threads()))
    run_request(request, base)


if __name__ == "__main__":
    serve_processes()
