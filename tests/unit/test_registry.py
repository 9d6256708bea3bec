"""Opening backends by name, config or `auto`."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import anyio
import pytest

from ringfence import (
    Backend,
    BackendConfig,
    BackendUnavailableError,
    BubblewrapConfig,
    ConfigError,
    FakeBackend,
    FakeConfig,
    IsolationWarning,
    MissingDependencyError,
    Probe,
    ProcessConfig,
    SandboxClosedError,
    SandboxSpec,
    Script,
    open_backend,
    registry,
    select_backend,
)
from ringfence.backends.auto import AutoBackend
from ringfence.config import CONFIGS
from ringfence.registry import BACKENDS, Entry, load_backend

pytestmark = pytest.mark.anyio


class TestTable:
    def test_it_is_sorted_and_has_every_config(self) -> None:
        assert list(BACKENDS) == sorted(BACKENDS) == sorted(CONFIGS)

    @pytest.mark.parametrize("name", [name for name, entry in BACKENDS.items() if entry.path])
    def test_each_class_is_where_the_table_says(self, name: str) -> None:
        found = load_backend(name)
        assert issubclass(found, Backend)
        assert found.name == name

    def test_a_module_is_imported_when_it_is_asked_for(self) -> None:
        code = textwrap.dedent("""
            import sys, ringfence
            assert "ringfence.backends.bubblewrap" not in sys.modules
            ringfence.open_backend("bubblewrap")
            assert "ringfence.backends.bubblewrap" in sys.modules
        """)
        subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


class TestOpening:
    @pytest.mark.parametrize(
        "config",
        ["fake", " FAKE ", FakeConfig(), {"backend": "fake"}, BackendConfig(backend="Fake")],
    )
    async def test_every_form_of_a_config_opens_the_same(self, config: Any) -> None:
        backend = open_backend(config)
        assert isinstance(backend, FakeBackend)
        async with backend:
            assert (await backend.execute("x")).ok

    def test_the_config_reaches_the_backend(self) -> None:
        backend = open_backend({"backend": "fake", "memory_bytes": 5, "timeout": 2})
        assert backend.default_limits.memory_bytes == 5
        assert backend.default_limits.timeout == 2

    @pytest.mark.parametrize("config", ["", " ", {}, BackendConfig(), {"backend": ""}])
    def test_no_name_is_process_and_warns(self, config: Any) -> None:
        with pytest.warns(IsolationWarning, match="isolates nothing") as caught:
            backend = open_backend(config)
        assert backend.name == "process"
        assert caught[0].filename == __file__

    @pytest.mark.parametrize("config", ["process", {"backend": "proc"}, ProcessConfig()])
    def test_process_by_name_does_not_warn(self, config: Any) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert open_backend(config).name == "process"

    def test_the_default_is_auto_and_never_process(self) -> None:
        assert isinstance(open_backend(), AutoBackend)
        assert "process" not in BackendConfig.AUTO_ORDER

    @pytest.mark.parametrize("config", [None, 5, ["fake"], object()])
    def test_what_is_no_config_is_refused(self, config: Any) -> None:
        with pytest.raises(ConfigError):
            open_backend(config)

    def test_an_unknown_name_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="known are"):
            open_backend("podman")
        with pytest.raises(ConfigError, match="no single backend"):
            load_backend("auto")

    def test_a_backend_of_a_later_version_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(BACKENDS, "kubernetes", Entry("", "kubernetes", "a cluster"))
        with pytest.raises(BackendUnavailableError, match="not part of this version") as caught:
            open_backend("k8s")
        assert "bubblewrap" in str(caught.value)


class TestMissingDependency:
    @pytest.fixture(autouse=True)
    def _module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(tmp_path)
        self.path = tmp_path
        self.monkeypatch = monkeypatch

    def entry(self, source: str, extra: str = "container") -> None:
        name = f"backend_{abs(hash(source))}_{extra}"
        (self.path / f"{name}.py").write_text(source)
        self.monkeypatch.setitem(BACKENDS, "container", Entry(f"{name}:Found", extra, "an engine"))

    def test_the_error_names_the_package_and_the_extra(self) -> None:
        self.entry("import a_package_that_nobody_has.client")
        with pytest.raises(MissingDependencyError, match="a_package_that_nobody_has") as caught:
            open_backend("docker")
        assert caught.value.hint == "pip install 'ringfence[container]'"
        assert isinstance(caught.value, ImportError)
        assert isinstance(caught.value, BackendUnavailableError)

    def test_a_package_that_is_too_old_is_missing_too(self) -> None:
        self.entry("from json import nothing_of_this_name")
        with pytest.raises(MissingDependencyError):
            open_backend("docker")

    def test_a_fault_of_our_own_is_not_blamed_on_an_extra(self) -> None:
        self.entry("from ringfence.models import nothing_of_this_name")
        with pytest.raises(ImportError) as caught:
            open_backend("docker")
        assert not isinstance(caught.value, MissingDependencyError)

    def test_where_no_extra_would_help_none_is_named(self) -> None:
        self.entry("import a_package_that_nobody_has", extra="")
        with pytest.raises(ModuleNotFoundError):
            open_backend("docker")

    def test_once_it_is_installed_it_opens(self) -> None:
        self.entry("from ringfence.backends.fake import FakeBackend as Found")
        assert open_backend("docker").name == "fake"


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeBackend]:
    """Put a fake behind each name that `auto` may choose."""
    made = {name: FakeBackend(script=Script([name.encode()])) for name in BackendConfig.AUTO_ORDER}
    for name, backend in made.items():
        backend.name = name  # type: ignore[misc]  # what errors and results show

    def load(name: str) -> Any:
        return lambda config: made[config.backend]

    monkeypatch.setattr(registry, "load_backend", load)
    return made


class TestAuto:
    async def test_the_strongest_that_can_run_is_chosen(
        self, fakes: dict[str, FakeBackend]
    ) -> None:
        assert await select_backend() is fakes["container"]
        fakes["container"].probe_result = Probe(False, "no engine")
        assert await select_backend("auto") is fakes["bubblewrap"]

    async def test_where_none_can_each_says_why(self, fakes: dict[str, FakeBackend]) -> None:
        fakes["container"].probe_result = Probe(False, "no engine")
        fakes["bubblewrap"].probe_result = Probe(False, "no user namespaces")
        with pytest.raises(BackendUnavailableError) as caught:
            await select_backend()
        assert "container: no engine; bubblewrap: no user namespaces" in str(caught.value)
        probe = await open_backend("auto").probe()
        assert (probe.ok, "no engine" in probe.reason) == (False, True)

    async def test_one_that_has_not_every_setting_is_not_chosen(
        self, fakes: dict[str, FakeBackend]
    ) -> None:
        """Catches a setting that is dropped because of what `auto` chose."""
        assert await select_backend({"backend": "auto", "spares": 3}) is fakes["bubblewrap"]
        fakes["container"].probe_result = Probe(False, "no engine")
        with pytest.raises(BackendUnavailableError, match="image is not a setting"):
            await select_backend({"backend": "auto", "image": "alpine"})

    async def test_a_probe_that_hangs_is_given_up(
        self, fakes: dict[str, FakeBackend], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(registry, "PROBE_TIMEOUT", 0.02)
        monkeypatch.setattr(fakes["container"], "probe", anyio.sleep_forever)
        with anyio.fail_after(30):
            assert await select_backend() is fakes["bubblewrap"]

    async def test_what_is_named_is_not_probed(self) -> None:
        assert isinstance(await select_backend("fake"), FakeBackend)

    async def test_nothing_is_probed_before_it_is_entered(
        self, fakes: dict[str, FakeBackend]
    ) -> None:
        backend = open_backend()
        assert isinstance(backend, AutoBackend)
        with pytest.raises(SandboxClosedError):
            _ = backend.capabilities
        async with backend:
            assert backend.chosen is fakes["container"]
        assert fakes["bubblewrap"].calls == []

    async def test_everything_is_passed_on(self, fakes: dict[str, FakeBackend]) -> None:
        chosen = fakes["container"]
        async with open_backend() as backend:
            assert (await backend.execute("x")).stdout == b"container"
            sandbox = await backend.create(SandboxSpec(env={"A": "1"}))
            assert sandbox.backend == "container"
            assert backend.capabilities is chosen.capabilities
            assert backend.default_limits == chosen.default_limits
            assert (await backend.probe()).ok
            assert await backend.reap() == 0
        assert chosen.live_sandboxes == 0
        assert [call.verb for call in chosen.calls if not call.sandbox] == [
            "open",
            "reap",
            "aclose",
        ]

    async def test_a_one_shot_gets_what_the_chosen_one_has_ready(
        self, fakes: dict[str, FakeBackend], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Catches `auto` being slow because it makes a sandbox where a spare one waits."""
        chosen = fakes["container"]
        async with open_backend() as backend:
            spare = await chosen.create()

            async def ready(spec: SandboxSpec | None) -> Any:
                return spare

            monkeypatch.setattr(chosen, "_one_shot", ready)
            assert (await backend.execute("x")).ok
        assert chosen.sandboxes == [spare]

    async def test_a_choice_that_then_fails_to_open_is_an_error(
        self, fakes: dict[str, FakeBackend]
    ) -> None:
        fakes["container"].open_error = BackendUnavailableError("the engine went away")
        with pytest.raises(BackendUnavailableError, match="went away"):
            async with open_backend():
                pytest.fail("it was entered")

    async def test_closing_one_that_was_never_opened_is_fine(self) -> None:
        await open_backend().aclose()


def test_a_jail_gets_its_own_config() -> None:
    backend: Any = open_backend(BubblewrapConfig(spares=0))
    assert backend.name == "bubblewrap"
