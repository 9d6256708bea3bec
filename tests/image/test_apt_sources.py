"""Both forms of apt's sources are read, whatever else is in them."""

from __future__ import annotations

from pathlib import Path

from ringfence.image.apt_sources import parse_lines, parse_stanzas, read_sources, source_files

STANZAS = """\
# of the distribution
Types: deb deb-src
URIs: http://mirror.example/debian
# a comment between
Suites: bookworm bookworm-updates
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 mQINBF

Types: deb
URIs: http://mirror.example/security
Suites: bookworm-security

Enabled: no
Types: deb
URIs: http://mirror.example/other
Suites: bookworm

Types: deb-src
URIs: http://mirror.example/sources
Suites: bookworm
"""


def test_stanzas_that_are_on_and_of_packages_are_read() -> None:
    found = parse_stanzas(STANZAS)
    assert [stanza["URIs"] for stanza in found] == [
        "http://mirror.example/debian",
        "http://mirror.example/security",
    ]
    assert found[0]["Signed-By"].splitlines()[-1] == " mQINBF"


def test_lines_are_read_as_stanzas() -> None:
    text = """\
    # deb http://mirror.example/old bookworm main
    deb [ arch=amd64 signed-by=/k.gpg ] http://mirror.example/debian bookworm main contrib # why
    deb [trusted=yes] http://mirror.example/b bookworm-backports main
    deb-src http://mirror.example/debian bookworm main
    deb
    deb [broken
    debris http://mirror.example/debian bookworm main
    """
    assert parse_lines(text) == [
        {
            "Types": "deb",
            "URIs": "http://mirror.example/debian",
            "Suites": "bookworm",
            "Signed-By": "/k.gpg",
        },
        {"Types": "deb", "URIs": "http://mirror.example/b", "Suites": "bookworm-backports"},
    ]


def test_a_suite_is_found_in_the_files_that_have_it(tmp_path: Path) -> None:
    parts = tmp_path / "sources.list.d"
    parts.mkdir()
    (parts / "debian.sources").write_text(STANZAS)
    (parts / "other.list").write_text("deb http://mirror.example/x trixie main\n")
    (parts / "gone.list.disabled").write_text("deb http://mirror.example/x bookworm main\n")
    (tmp_path / "sources.list").write_text("deb http://mirror.example/y bookworm main\n")
    assert source_files("bookworm", tmp_path) == [
        parts / "debian.sources",
        tmp_path / "sources.list",
    ]
    assert source_files("trixie", tmp_path) == [parts / "other.list"]
    assert source_files("sid", tmp_path) == []
    assert len(read_sources(tmp_path)) == 4


def test_a_machine_without_apt_has_no_sources(tmp_path: Path) -> None:
    assert read_sources(tmp_path / "none") == []
