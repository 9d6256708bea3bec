"""Settings are refused with the key and the mend, in our own errors."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ringfence import (
    BackendConfig,
    BubblewrapConfig,
    ConfigError,
    FakeConfig,
    LimitError,
    Limits,
    Mount,
    ProcessConfig,
    SandboxError,
    parse_backend,
)
from ringfence.config import CONFIGS, AnyConfig, ContainerConfig, KubernetesConfig, WasmConfig

LIMIT_NAMES = [item.name for item in fields(Limits)]
MODELS = [BackendConfig, *CONFIGS.values()]
OWN_NAMES = {
    "backend",
    "work_dir",
    "image",
    "network",
    "runtime",
    "host",
    "socket_path",
    "context",
    "tls_dir",
    "user",
    "nproc",
    "bridge_guard",
    "cap_add",
    "seccomp_profile",
    "tmpfs",
    "shm_bytes",
    "writable_rootfs",
    "workspace_storage",
    "labels",
    "pull",
    "pull_timeout",
    "transport",
    "reconnect_timeout",
    "namespace",
    "service_account",
    "kubeconfig",
    "runtime_class",
    "isolation",
    "architecture",
    "node_selector",
    "tolerations",
    "priority_class",
    "pull_secrets",
    "pull_policy",
    "cpu_request",
    "memory_request_bytes",
    "volume_medium",
    "sized_volumes",
    "network_policy",
    "ttl",
    "schedule_timeout",
    "wasm_path",
    "interpreter",
    "memory_limit_pages",
    "fs_dir",
    "clock",
    "random",
    "fuel",
    "stack_bytes",
    "table_elements",
    "cache_dir",
    "root_dir",
    "bwrap_path",
    "mounts",
    "spares",
    "portable",
}


class TestEveryModel:
    @pytest.mark.parametrize("model", MODELS)
    def test_each_has_every_limit_under_its_own_name(self, model: Any) -> None:
        given: dict[str, Any] = {name: number for number, name in enumerate(LIMIT_NAMES, 1)}
        assert model(**given).limits == Limits(**given)
        assert model().limits == Limits()

    @pytest.mark.parametrize("model", MODELS)
    def test_an_unknown_key_is_refused_with_the_nearest_known_one(self, model: Any) -> None:
        with pytest.raises(ConfigError, match=r"'memry_bytes' \(did you mean 'memory_bytes'\?\)"):
            model(memry_bytes=5)
        with pytest.raises(ConfigError, match=r"'zzz' \(known are .*backend, .*cpus"):
            model.parse({"zzz": 5})

    @pytest.mark.parametrize("model", MODELS)
    @pytest.mark.parametrize("name", LIMIT_NAMES)
    def test_a_bad_limit_is_refused_by_name(self, model: Any, name: str) -> None:
        bad: tuple[Any, ...] = (0, -1, "5", "5m", True, float("nan"), 10**400, [], {})
        for value in bad:
            with pytest.raises(LimitError, match=name) as caught:
                model(**{name: value})
            assert caught.value.limit == name

    def test_the_mend_of_a_limit_is_its_unit(self) -> None:
        for name, unit in (("tmp_bytes", "bytes"), ("cpus", "cores"), ("pids", "whole number")):
            with pytest.raises(LimitError, match=unit):
                ProcessConfig.parse({name: "much"})
        with pytest.raises(LimitError, match="seconds"):
            ProcessConfig.parse({"max_age": "much"})

    def test_every_fault_is_told_at_once(self) -> None:
        with pytest.raises(ConfigError, match=r"'a'; unknown setting 'b'"):
            ProcessConfig.parse({"a": 1, "b": 2})

    @pytest.mark.parametrize("model", MODELS)
    def test_no_error_of_pydantic_is_shown(self, model: Any) -> None:
        with pytest.raises(SandboxError) as caught:
            model(backend=5)
        assert not isinstance(caught.value, ValidationError)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__

    @pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '"process"', b"\xff"])
    def test_what_is_no_json_object_is_refused(self, text: str | bytes) -> None:
        with pytest.raises(ConfigError, match=r"not JSON|must be an object"):
            BackendConfig.parse(text)

    @pytest.mark.parametrize("settings", [None, 5, [("backend", "process")], {1: 2}])
    def test_what_is_no_mapping_is_refused(self, settings: Any) -> None:
        with pytest.raises(ConfigError, match="must be an object"):
            BackendConfig.parse(settings)

    def test_a_model_is_frozen(self) -> None:
        with pytest.raises(ValidationError, match="frozen"):
            ProcessConfig().portable = True

    def test_a_key_named_like_an_argument_is_just_unknown(self) -> None:
        with pytest.raises(ConfigError, match="unknown setting 'self'"):
            ProcessConfig.parse({"self": 1})


class TestEachModel:
    def test_paths_may_be_text(self) -> None:
        assert ProcessConfig.parse({"work_dir": "/tmp/w"}).work_dir == Path("/tmp/w")
        config = BubblewrapConfig.parse({"root_dir": "/r", "bwrap_path": "/b"})
        assert (config.root_dir, config.bwrap_path) == (Path("/r"), Path("/b"))

    @pytest.mark.parametrize("name", ["work_dir", "root_dir", "bwrap_path", "image", "wasm_path"])
    @pytest.mark.parametrize("value", ["a\0b", 5, True, ["a"]])
    def test_a_text_or_path_that_is_none_is_refused(self, name: str, value: Any) -> None:
        owner = next(model for model in CONFIGS.values() if name in model.model_fields)
        for model in (owner, BackendConfig):
            with pytest.raises(ConfigError, match="NUL" if value == "a\0b" else name):
                model.parse({"backend": owner.model_fields["backend"].default, name: value})

    def test_mounts_may_be_given_in_three_ways(self) -> None:
        config = BubblewrapConfig.parse(
            {"mounts": ["/a", {"source": "/b", "target": "/c"}, {"source": "/d"}, Mount("/e")]}
        )
        assert config.mounts == (Mount("/a"), Mount("/b", "/c"), Mount("/d"), Mount("/e"))

    @pytest.mark.parametrize(
        "mount",
        ["a", "/a/..", "", {}, {"target": "/a"}, {"source": 5}, {"source": "/a", "rw": True}, 5],
    )
    def test_a_bad_mount_is_refused(self, mount: Any) -> None:
        with pytest.raises(ConfigError, match="mount"):
            BubblewrapConfig.parse({"mounts": [mount]})

    @pytest.mark.parametrize("spares", [-1, 1.5, True, "1"])
    def test_a_bad_number_of_spares_is_refused(self, spares: Any) -> None:
        with pytest.raises(ConfigError, match="spares"):
            BubblewrapConfig(spares=spares)

    def test_no_spares_are_a_choice(self) -> None:
        assert BubblewrapConfig(spares=0).spares == 0
        assert BubblewrapConfig().spares == 1

    @pytest.mark.parametrize("model", CONFIGS.values())
    def test_the_backend_of_a_model_is_its_own(self, model: type[AnyConfig]) -> None:
        assert CONFIGS[model().backend] is model
        with pytest.raises(ConfigError, match="backend"):
            model.parse({"backend": "nonesuch"})


class TestParseBackend:
    @pytest.mark.parametrize(
        ("name", "texts"),
        [
            ("process", "process proc local subprocess"),
            ("bubblewrap", "bubblewrap bwrap jail namespace"),
            ("container", "container docker oci"),
            ("kubernetes", "kubernetes k8s k8sjob k8s-job k8s_job job"),
            ("wasm", "wasm wasi webassembly"),
            ("fake", "fake"),
            ("auto", "auto"),
        ],
    )
    def test_names_and_aliases_in_any_case_and_with_space_around(
        self, name: str, texts: str
    ) -> None:
        for text in texts.split():
            for form in (text, text.upper(), text.title(), f"  {text}\n"):
                assert parse_backend(form) == name

    @pytest.mark.parametrize("text", ["", " ", "dockr", "process backend", "podman", "\0"])
    def test_an_unknown_name_is_refused_with_those_that_are_known(self, text: str) -> None:
        known = "auto, bubblewrap, container, fake, kubernetes, process, wasm"
        with pytest.raises(ConfigError, match=known):
            parse_backend(text)

    def test_the_nearest_name_is_suggested(self) -> None:
        with pytest.raises(ConfigError, match=r"did you mean 'bubblewrap'\?"):
            parse_backend("bubblewarp")

    @given(st.text())
    def test_nothing_else_ever_travels_on(self, text: str) -> None:
        with suppress(ConfigError):
            assert parse_backend(text) in {"auto", *CONFIGS}

    @pytest.mark.parametrize("value", [None, 5, b"process"])
    def test_a_name_is_a_text(self, value: Any) -> None:
        with pytest.raises(ConfigError):
            parse_backend(value)


class TestBackendConfig:
    def test_its_names_are_those_of_the_json(self) -> None:
        assert set(BackendConfig.model_fields) == OWN_NAMES | set(LIMIT_NAMES)

    def test_it_has_every_setting_of_every_backend(self) -> None:
        """Catches a setting that can't be reached from a file or a flag."""
        for model in CONFIGS.values():
            assert set(model.model_fields) <= set(BackendConfig.model_fields)

    def test_an_empty_object_is_process_here(self) -> None:
        config = BackendConfig.parse("{}")
        assert (config.backend, config.work_dir) == ("", ".")
        assert config.narrowed() == ProcessConfig(work_dir=Path())

    def test_empty_texts_are_as_good_as_none(self) -> None:
        names = {
            name for name in OWN_NAMES if BackendConfig.model_fields[name].default in ("", ".")
        }
        assert len(names) > 8
        assert BackendConfig.parse(dict.fromkeys(names, "")) == BackendConfig()

    def test_an_alias_is_replaced(self) -> None:
        assert BackendConfig(backend=" K8s ").backend == "kubernetes"
        assert BackendConfig(backend="AUTO").backend == "auto"

    @pytest.mark.parametrize(
        ("settings", "narrowed"),
        [
            (
                {"backend": "process", "work_dir": "/w", "portable": True, "pids": 5},
                ProcessConfig(work_dir=Path("/w"), portable=True, pids=5),
            ),
            (
                {"backend": "bwrap", "mounts": ["/a"], "spares": 3, "network": "none"},
                BubblewrapConfig(mounts=(Mount("/a"),), spares=3),
            ),
            (
                {"backend": "docker", "image": "i", "network": "n", "runtime": "runsc"},
                ContainerConfig(image="i", network="n", runtime="runsc"),
            ),
            (
                {"backend": "k8s", "image": "i", "namespace": "n", "service_account": "s"},
                KubernetesConfig(image="i", namespace="n", service_account="s"),
            ),
            ({"backend": "wasi", "wasm_path": "/p.wasm"}, WasmConfig(wasm_path="/p.wasm")),
            ({"backend": "fake", "cpus": 2}, FakeConfig(cpus=2)),
        ],
    )
    def test_it_narrows_to_the_settings_of_one_backend(
        self, settings: dict[str, Any], narrowed: AnyConfig
    ) -> None:
        assert BackendConfig.parse(json.dumps(settings)).narrowed() == narrowed

    @pytest.mark.parametrize(
        ("settings", "owners"),
        [
            ({"backend": "process", "image": "alpine"}, "container or kubernetes"),
            ({"image": "alpine"}, "container or kubernetes"),
            ({"backend": "process", "network": "none"}, "bubblewrap or container or wasm"),
            ({"backend": "process", "mounts": ["/a"]}, "bubblewrap or container or wasm"),
            ({"backend": "bubblewrap", "work_dir": "/w"}, "process"),
            ({"backend": "container", "portable": True}, "process"),
            ({"backend": "bubblewrap", "runtime": "runsc"}, "container"),
            ({"backend": "container", "namespace": "n"}, "kubernetes"),
            ({"backend": "process", "spares": 0}, "bubblewrap or wasm"),
            ({"backend": "fake", "wasm_path": "/p"}, "wasm"),
        ],
    )
    def test_a_setting_of_another_backend_is_refused(
        self, settings: dict[str, Any], owners: str
    ) -> None:
        """Catches a protection that was asked for and silently dropped."""
        with pytest.raises(ConfigError, match=f"not a setting .* choose {owners},"):
            BackendConfig.parse(settings)

    def test_a_setting_at_its_default_was_not_asked_for(self) -> None:
        config = BackendConfig(backend="bubblewrap", work_dir=".", image="", portable=False)
        assert config.narrowed() == BubblewrapConfig()

    @pytest.mark.parametrize("backend", ["", "auto", *CONFIGS])
    def test_it_survives_a_round_trip(self, backend: str) -> None:
        config = BackendConfig(backend=backend, memory_bytes=5, timeout=1.5)
        assert BackendConfig.parse(config.model_dump_json()) == config
        assert BackendConfig.parse(config.model_dump()) == config

    def test_equal_ones_are_one_key_whatever_is_in_them(self) -> None:
        config = BackendConfig(backend="container", labels={"a": "b"}, tmpfs={"/cache": "size=1m"})
        again = BackendConfig.parse(config.model_dump_json())
        assert {config: 1}[again] == 1
        assert {ContainerConfig(labels={"a": "b"}), ContainerConfig(labels={"a": "b"})} == {
            ContainerConfig(labels={"a": "b"})
        }

    def test_auto_takes_what_any_of_its_choices_has(self) -> None:
        assert BackendConfig(backend="auto", image="alpine").image == "alpine"

    def test_other_models_that_hold_it_get_the_errors_of_pydantic(self) -> None:
        """A web framework that validates a body with it must be able to tell the bad field."""
        with pytest.raises(ValidationError, match="did you mean 'image'"):
            BackendConfig.model_validate({"imag": "alpine"})
