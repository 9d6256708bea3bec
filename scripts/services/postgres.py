"""PostgreSQL, from the machine's own packages, with a database of its own for the tests.

A server that is given, by RINGFENCE_TEST_DATABASE_URL, is used instead. Nothing in ours outlives
a crash: it does not wait for the disk.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

from . import debian
from .daemon import Daemon
from .steps import ServiceError, say, step

VARIABLE = "RINGFENCE_TEST_DATABASE_URL"
ADDRESS = "127.0.0.1"
USER = "postgres"  # the server refuses to run as root
PROGRAMS = Path("/usr/lib/postgresql")  # Debian keeps them off PATH, by version


class Postgres:
    """The server as a service."""

    name = "postgres"

    def __init__(self) -> None:
        self._daemon = Daemon(self.name)
        self._url = self._daemon.home / "url"
        self._place = self._daemon.home / "place"

    def up(self) -> None:
        """Have a server that answers a query.

        Raises:
            ServiceError: It can't be had.
        """
        if self.is_ready():
            return
        if os.environ.get(VARIABLE):
            raise ServiceError(f"{VARIABLE} is set, and no server answers there")
        self.down()
        programs = _programs()
        with step("postgres: started the server"):
            data, password = self._make(programs)
            port = _free_port()
            self._write(self._url, f"postgresql://{USER}:{password}@{ADDRESS}:{port}/postgres")
            self._daemon.start([*_as_user(), *_server(programs, data, port)])
            self._daemon.wait(self.is_ready)

    def is_ready(self) -> bool:
        """Whether it answers a query."""
        import psycopg  # one of the development packages

        url = self.env().get(VARIABLE)
        if url is None:
            return False
        try:
            with psycopg.connect(url, connect_timeout=2) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False

    def is_ours(self) -> bool:
        """Whether a server that `up` started is alive."""
        return self._daemon.pid is not None

    def down(self) -> None:
        """Stop it if `up` started it; what was in it is lost."""
        if self._daemon.stop(sign=signal.SIGINT):  # its word for: end what runs, and shut down
            say("postgres: stopped")
        if self._place.exists():
            shutil.rmtree(self._place.read_text("utf-8"), ignore_errors=True)
            self._place.unlink()

    def env(self) -> dict[str, str]:
        """Return the variable by which tests find it; none if it is not there."""
        if given := os.environ.get(VARIABLE):
            return {VARIABLE: given}
        return {VARIABLE: self._url.read_text("utf-8")} if self.is_ours() else {}

    def _make(self, programs: Path) -> tuple[Path, str]:
        """Make the directory of its data and return it with the password."""
        # Its user must get there, whatever directory this checkout is in.
        place = Path(tempfile.mkdtemp(prefix="ringfence-postgres-"))
        self._write(self._place, str(place))
        password = secrets.token_hex(16)
        secret = place / "password"
        secret.touch(0o600)
        secret.write_text(password, "utf-8")
        if os.geteuid() == 0:
            owner = pwd.getpwnam(USER)
            for path in (place, secret):
                os.chown(path, owner.pw_uid, owner.pw_gid)
        data = place / "data"
        argv = [
            *_as_user(),
            *(str(programs / "initdb"), f"--pgdata={data}", f"--username={USER}"),
            *(f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync"),
        ]
        done = subprocess.run(argv, capture_output=True, text=True, cwd="/", check=False)
        if done.returncode:
            raise ServiceError(f"initdb failed: {done.stderr.strip()}")
        return data, password

    def _write(self, path: Path, text: str) -> None:
        self._daemon.home.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_text(text, "utf-8")


def _programs() -> Path:
    """Return where the server's programs are, the newest if there are several."""
    if not _found():
        debian.install(("postgresql",), programs=("initdb",))
    if not (found := _found()):
        raise ServiceError(f"there is no PostgreSQL here: set {VARIABLE}, or install the server")
    return found[-1]


def _found() -> list[Path]:
    on_path = [Path(path).parent for path in [shutil.which("initdb")] if path]
    return on_path + sorted(PROGRAMS.glob("*/bin"), key=lambda path: float(path.parent.name))


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"]


def _server(programs: Path, data: Path, port: int) -> list[str]:
    settings = {
        "listen_addresses": ADDRESS,
        "port": str(port),
        "unix_socket_directories": "",
        "fsync": "off",
        "synchronous_commit": "off",
        "full_page_writes": "off",
    }
    given = [f"-c{name}={value}" for name, value in settings.items()]
    return [str(programs / "postgres"), "-D", str(data), *given]


def _free_port() -> int:
    with socket.create_server((ADDRESS, 0)) as probe:
        return int(probe.getsockname()[1])
