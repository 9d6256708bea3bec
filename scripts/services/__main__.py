"""The command: see the package."""

from __future__ import annotations

import argparse
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence

from .docker import Docker
from .kubernetes import Kubernetes
from .podman import Podman
from .postgres import Postgres
from .s3 import S3
from .steps import ServiceError, alone, say

ALL = (Docker(), Kubernetes(), Podman(), Postgres(), S3())
SERVICES = {service.name: service for service in ALL}


def main(argv: Sequence[str]) -> int:
    """Do what the words say and return the exit code."""
    if list(argv[:2]) == ["around", "--"] and argv[2:]:
        return around(argv[2:])
    parser = argparse.ArgumentParser(prog="python -m scripts.services")
    parser.add_argument("verb", choices=("prepare", "up", "ready", "down", "env"))
    parser.add_argument("service", nargs="+", choices=SERVICES)
    wanted = parser.parse_args(argv)
    services = [SERVICES[name] for name in wanted.service]
    if wanted.verb == "ready":
        return 0 if all(service.is_ready() for service in services) else 1
    for service in services:
        if wanted.verb == "env":
            for name, value in service.env().items():
                print(f"export {name}={shlex.quote(value)}")
            continue
        with alone():
            if wanted.verb == "up":
                service.up()
            elif wanted.verb == "down":
                service.down()
            elif isinstance(service, Kubernetes):  # the one that takes minutes from nothing
                service.prepare()
    return 0


def around(command: Sequence[str]) -> int:
    """Run a command and put down the services that it has brought up, whatever became of it."""
    before = {service.name for service in SERVICES.values() if service.is_ours()}
    process = subprocess.Popen(command)
    # A terminal's Ctrl-C reaches the command too; what it brought up is ours to put down.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: process.send_signal(number))
    try:
        code = process.wait()
        return code if code >= 0 else 128 - code
    finally:
        for service in SERVICES.values():
            if service.name not in before:
                with alone():
                    service.down()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ServiceError as error:
        say(str(error))
        sys.exit(1)
