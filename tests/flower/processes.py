"""Flower's real programs on 127.0.0.1: a SuperLink with TLS and node authentication, SuperNodes, the app."""

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import fedwcm

HOST = "127.0.0.1"


PROGRAMS = Path(sys.executable).parent
"""Where Flower's programs are, unless another Flower is meant."""


def environment(home: Path, programs: Path = PROGRAMS) -> dict[str, str]:
    """The environment of a program of Flower's: its own home, no telemetry, this package to be found."""
    package = Path(fedwcm.__file__).parents[1]
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(package),
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "OMP_NUM_THREADS": "1",
    }


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_until(holds: Callable[[], bool], what: str, seconds: float) -> None:
    """Wait for something to become true, but not for ever."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.25)


class Program:
    """A running program with all the processes that it starts, and its log."""

    def __init__(self, arguments: list[str], home: Path, log: Path, programs: Path = PROGRAMS) -> None:
        home.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._before = log.stat().st_size if log.exists() else 0
        with log.open("a") as file:
            self._process = subprocess.Popen(
                arguments,
                env=environment(home, programs),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def output(self) -> str:
        """What this program has logged, without those of the same name before it."""
        return self.log.read_bytes()[self._before :].decode()

    @property
    def joined(self) -> bool:
        """Whether a SuperNode has been let in."""
        return "SuperNode ID" in self.output

    def kill(self) -> None:
        """End it and all that it started, without warning."""
        self._signal(signal.SIGKILL)
        self._process.wait(timeout=30)

    def stop(self) -> None:
        """Stop it and all that it started, as a machine that falls asleep does."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `stop`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        for group in {self._process.pid, *_groups_below(self._process.pid)}:
            try:
                os.killpg(group, number)
            except ProcessLookupError:
                continue


def _groups_below(root: int) -> set[int]:
    """Process groups of the descendants: Flower starts some in sessions of their own."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found, frontier = set(), {root}  # type: ignore[var-annotated]
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    groups = set()
    for process in found:
        try:
            groups.add(os.getpgid(process))
        except ProcessLookupError:
            continue
    return groups - {os.getpgrp()}


def write_certificates(folder: Path) -> None:
    """A certificate authority, and a certificate of the server for this machine's own address."""
    authority_key, server_key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    addresses = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address(HOST)), x509.DNSName("localhost")]
    )
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    root = _certificate(authority, authority, authority_key, authority_key, is_authority)
    own = _certificate(server, authority, server_key, authority_key, addresses)
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(_private(server_key, serialization.PrivateFormat.PKCS8))


def write_node_key(path: Path) -> None:
    """A key pair by which a SuperNode is known: `path` and `path.pub`, as ssh-keygen writes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    path.write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public)


def _certificate(subject: Any, issuer: Any, key: Any, signer: Any, extension: Any) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).add_extension(extension, critical=False)
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))
    return builder.not_valid_after(now + datetime.timedelta(days=2)).sign(signer, hashes.SHA256())


def _private(key: Any, form: Any) -> bytes:
    data: bytes = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    return data


class Site:
    """A deployment on this machine: one folder, one port, programs that always end with the test."""

    def __init__(self, folder: Path, secure: bool = True) -> None:
        self.folder, self.secure = folder, secure
        self.port = free_port()
        self.programs: list[Program] = []
        write_certificates(folder)
        home = folder / "operator"
        home.mkdir()
        trust = f'root-certificates = "{folder / "ca.crt"}"' if secure else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "site"\n\n[superlink.site]\naddress = "{HOST}:{self.port}"\n{trust}\n'
        )

    def superlink(self, *more: str) -> Program:
        """Start the SuperLink, or start it again, and wait until it listens."""
        arguments = ["flower-superlink", "--host", HOST, "--port", str(self.port)]
        arguments += ["--database", str(self.folder / "state.db"), *more]
        if self.secure:
            arguments += ["--ssl-ca-certfile", str(self.folder / "ca.crt"), "--enable-supernode-auth"]
            arguments += ["--ssl-certfile", str(self.folder / "server.pem")]
            arguments += ["--ssl-keyfile", str(self.folder / "server.key")]
        else:
            arguments += ["--insecure"]
        started = self._start(arguments, "superlink")
        wait_until(lambda: self._listening() or not started.running, "the SuperLink listens", 240)
        assert started.running, started.log.read_text()
        return started

    def supernode(self, name: str, node_config: str) -> Program:
        """Start the SuperNode with the key of this name."""
        arguments = ["flower-supernode", "--superlink", f"{HOST}:{self.port}", "--port", str(free_port())]
        arguments += ["--root-certificates", str(self.folder / "ca.crt")]
        arguments += ["--auth-supernode-private-key", str(self.folder / name), "--node-config", node_config]
        return self._start(arguments, name)

    def client_node(self, client: int, clients: int) -> Program:
        """Start the SuperNode `node{client}`, which trains one part of the app's data."""
        config = f'partition-id={client} num-partitions={clients} state-dir="{self.folder / "state"}"'
        return self.supernode(f"node{client}", config)

    def register(self, name: str) -> None:
        """Let the node with the key of this name in."""
        write_node_key(self.folder / name)
        self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), "site")

    def flwr(self, *arguments: str) -> dict[str, Any]:
        """Run a command of Flower's command line; what it says in JSON."""
        done = subprocess.run(
            ["flwr", *arguments, "--format", "json"],
            env=environment(self.folder / "operator"),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        output: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
        assert output.get("success", True), output
        return output

    def close(self) -> None:
        for program in self.programs:
            program.kill()

    def logs(self) -> str:
        """The end of every log, to be read when a test fails."""
        return "\n".join(
            f"--- {path.name}\n{path.read_text()[-3000:]}" for path in sorted(self.folder.glob("*.log"))
        )

    def _start(self, arguments: list[str], name: str) -> Program:
        started = Program(arguments, self.folder / f"home-{name}", self.folder / f"{name}.log")
        self.programs.append(started)
        return started

    def _listening(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((HOST, self.port)) == 0


@contextmanager
def running_site(folder: Path, secure: bool = True) -> Iterator[Site]:
    """A site whose logs are shown and whose programs end with the test."""
    site = Site(folder, secure)
    try:
        yield site
    finally:
        print(site.logs())
        site.close()
