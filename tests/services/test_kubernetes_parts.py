"""What a cluster is started with, built with and given, without one."""

from __future__ import annotations

import json
import ssl
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.services import kubernetes_build, kubernetes_images, kubernetes_node, kubernetes_parts
from scripts.services import kubernetes_pki as pki
from scripts.services.kubernetes_api import given_answers
from scripts.services.kubernetes_parts import PORTS, Plan
from scripts.services.steps import ServiceError


def plan(place: Path) -> Plan:
    return Plan(place, dict.fromkeys(PORTS, 1234), "group", "198.18.7.0/24")


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert Plan.read(tmp_path) is None
    chosen = Plan.choose(tmp_path)
    chosen.write()
    assert Plan.read(tmp_path) == chosen
    assert len(set(chosen.ports.values())) == len(PORTS)
    assert chosen.group != Plan.choose(tmp_path).group


def test_pods_get_a_network_that_the_machine_has_no_route_into(tmp_path: Path) -> None:
    routes = tmp_path / "route"
    taken = "Iface\tDestination\n" + "".join(
        f"veth\t02{number:02X}12C6\n" for number in range(1, 256) if number != 77
    )
    routes.write_text(taken, "ascii")
    assert kubernetes_parts.free_network(routes) == "198.18.77.0/24"


@pytest.mark.parametrize("part", ["etcd", "api", "controllers", "scheduler", "kubelet"])
def test_every_part_listens_on_this_machine_alone(tmp_path: Path, part: str) -> None:
    argv = getattr(kubernetes_parts, part)(plan(tmp_path))
    flags = dict(word.removeprefix("--").split("=", 1) for word in argv[1:])
    assert len(flags) == len(argv) - 1, "no flag is given twice"
    listens = [
        value
        for name, value in flags.items()
        if name in ("bind-address", "listen-client-urls", "listen-peer-urls")
    ]
    if part == "kubelet":
        listens = [str(kubernetes_parts.kubelet_settings(plan(tmp_path))["address"])]
    assert listens
    assert all("127.0.0.1" in value for value in listens)
    assert flags.get("insecure-port", "0") == flags.get("port", "0") == "0"


def test_the_first_process_of_a_node_is_a_shell_script_that_parses(tmp_path: Path) -> None:
    odd = replace(plan(tmp_path / "a b'c"), group="it's")
    text = kubernetes_node.script(odd, tmp_path / "im ages.tar")
    script = tmp_path / "node.sh"
    script.write_text(text, "utf-8")
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    assert "vm/overcommit_memory 1" in text


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("kubernetes_1.20.5+really1.20.2-1.1+deb12u1.dsc", "v1.20.2"),
        ("kubernetes_1.33.4-2.dsc", "v1.33.4"),
    ],
)
def test_the_program_says_the_version_of_its_source(name: str, version: str) -> None:
    flags = kubernetes_build.linked(Path(name))
    said = [flag for flag in flags if "gitVersion=" in flag]
    assert len(said) == 2
    assert all(flag.endswith(f"version.gitVersion={version}") for flag in said)
    assert any(flag.endswith(f"gitMinor={version.split('.')[1]}") for flag in flags)


def test_types_are_described_of_all_that_ask_for_it_but_generators(tmp_path: Path) -> None:
    for name in (
        "pkg/apis/one/types.go",
        "staging/src/k8s.io/api/core/v1/doc.go",
        "staging/src/k8s.io/code-generator/x/doc.go",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_text("// +k8s:openapi-gen=true\n", "utf-8")
    (tmp_path / "pkg/apis/other.go").write_text("package apis\n", "utf-8")
    assert kubernetes_build.described(tmp_path) == [
        "k8s.io/kubernetes/pkg/apis/one",
        "k8s.io/kubernetes/vendor/k8s.io/api/core/v1",
    ]


def test_images_are_one_archive_as_engines_save_them(tmp_path: Path) -> None:
    path = tmp_path / "images.tar"
    kubernetes_images.write(path, {"one:1": b"first", "two:2": b"second"})
    with tarfile.open(path) as tar:
        content = {
            one.name: file.read() for one in tar.getmembers() if (file := tar.extractfile(one))
        }
    manifest = json.loads(content["manifest.json"])
    assert [one["RepoTags"] for one in manifest] == [["one:1"], ["two:2"]]
    assert [content[one["Layers"][0]] for one in manifest] == [b"first", b"second"]
    config = json.loads(content[manifest[0]["Config"]])
    assert config["rootfs"]["diff_ids"] == [f"sha256:{manifest[0]['Layers'][0][:-4]}"]


def test_certificates_are_of_one_authority_and_its_kubeconfig_has_them(tmp_path: Path) -> None:
    pki.make(tmp_path)
    for name in pki.SUBJECTS:
        check = ["openssl", "verify", "-x509_strict", "-CAfile", str(tmp_path / "ca.crt")]
        subprocess.run([*check, str(tmp_path / f"{name}.crt")], check=True, capture_output=True)
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
        context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0
    path = pki.write_kubeconfig(tmp_path, "admin", "https://127.0.0.1:1")
    assert path.stat().st_mode & 0o077 == 0
    assert not given_answers(str(path)), "nothing answers there"


def test_a_kubeconfig_that_is_none_is_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("{}", "utf-8")
    with pytest.raises(ServiceError, match="KUBECONFIG is"):
        given_answers(str(path))
