"""Where a package comes from that the machine has not set up a source for."""

from __future__ import annotations

import pytest

from ringfence.image.apt_sources import parse_stanzas
from scripts.services.debian import backports_of, sources_of
from scripts.services.steps import ServiceError

STANZAS = parse_stanzas(
    "Types: deb\nURIs: http://mirror.example/security\nSuites: bookworm-security\n\n"
    "Types: deb deb-src\nURIs: http://mirror.example/debian\nSuites: bookworm bookworm-updates\n"
    "Components: main contrib\nSigned-By: /key.gpg\n"
)


def test_backports_come_from_the_mirror_of_their_release() -> None:
    assert parse_stanzas(backports_of(STANZAS, "bookworm-backports")) == [
        {
            "Types": "deb",
            "URIs": "http://mirror.example/debian",
            "Suites": "bookworm-backports",
            "Components": "main",
            "Signed-By": "/key.gpg",
        }
    ]


def test_a_release_that_is_not_set_up_has_none() -> None:
    with pytest.raises(ServiceError, match="no apt source of trixie"):
        backports_of(STANZAS, "trixie-backports")


def test_source_packages_come_from_the_mirrors_of_the_release_and_its_fixes() -> None:
    text = sources_of(STANZAS, "bookworm")
    assert [line for line in text.splitlines() if "Types" in line] == ["Types: deb-src"] * 2
    assert [line for line in text.splitlines() if "Suites" in line] == [
        "Suites: bookworm bookworm-updates",
        "Suites: bookworm-security",
    ]


def test_a_release_that_is_not_set_up_has_no_source() -> None:
    with pytest.raises(ServiceError, match="no apt source of trixie"):
        sources_of(STANZAS, "trixie")
