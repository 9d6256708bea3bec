"""The apt sources of this machine: where its Debian packages come from.

Which mirror that is only the machine knows, so none is named here.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ("APT", "parse_lines", "parse_stanzas", "read_sources", "source_files")

APT = Path("/etc/apt")

Stanza = dict[str, str]


def read_sources(apt: Path = APT) -> list[tuple[Path, Stanza]]:
    """Return every source of packages that is set up, with the file that it is in."""
    parts = apt / "sources.list.d"
    found = []
    for path in sorted(parts.glob("*.sources")):
        found += [(path, stanza) for stanza in parse_stanzas(path.read_text("utf-8"))]
    for path in (apt / "sources.list", *sorted(parts.glob("*.list"))):
        if path.is_file():
            found += [(path, stanza) for stanza in parse_lines(path.read_text("utf-8"))]
    return found


def source_files(suite: str, apt: Path = APT) -> list[Path]:
    """Return the files that have a source of a suite, such as `bookworm`."""
    found = [path for path, stanza in read_sources(apt) if suite in stanza["Suites"].split()]
    return list(dict.fromkeys(found))


def parse_stanzas(text: str) -> list[Stanza]:
    """Read apt's newer form: stanzas of `Name: value` lines.

    A value that goes on over several lines, such as a key, keeps its line ends.
    """
    stanzas: list[Stanza] = [{}]
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            stanzas.append({})
        elif line[0] in " \t":
            if name in stanzas[-1]:
                stanzas[-1][name] += f"\n{line}"
        else:
            name, _, value = line.partition(":")
            stanzas[-1][name] = value.strip()
    return [
        stanza
        for stanza in stanzas
        if stanza.get("Enabled", "yes") != "no"
        and "deb" in stanza.get("Types", "").split()
        and {"URIs", "Suites"} <= stanza.keys()
    ]


def parse_lines(text: str) -> list[Stanza]:
    """Read apt's older form, lines of `deb [options] URI suite components`, as such stanzas."""
    stanzas = []
    for line in text.splitlines():
        kind, _, rest = line.partition("#")[0].strip().partition(" ")
        if kind != "deb":
            continue
        options = ""
        if rest.lstrip().startswith("["):
            options, _, rest = rest.lstrip(" [").partition("]")
        words = rest.split()
        if len(words) < 2:
            continue
        stanza = {"Types": "deb", "URIs": words[0], "Suites": words[1]}
        for option in options.split():
            name, _, value = option.partition("=")
            if name == "signed-by":
                stanza["Signed-By"] = value
        stanzas.append(stanza)
    return stanzas
