"""What every test runs with."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

HERE = Path(__file__).parent

REAL = {"faults", "linux", "sessions", "warden"}
"""Where tests start real wardens and jails by the hundred: too slow for each change's check."""

# A shell starts what it runs in the background with these ignored, and `nohup` does with the first;
# children inherit it.
for _number, _usual in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGQUIT, signal.SIG_DFL),
):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)


def pytest_configure(config: pytest.Config) -> None:
    """Let an example of hypothesis take what it takes on a busy machine."""
    if config.pluginmanager.has_plugin("hypothesispytest"):  # some frameworks' suites have none
        from hypothesis import HealthCheck, settings

        patient = [HealthCheck.too_slow]
        settings.register_profile("patient", deadline=None, suppress_health_check=patient)
        settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parts = item.path.relative_to(HERE).parts
        if "conformance" in parts:
            item.add_marker(pytest.mark.conformance)
        elif parts[0] == "kubernetes":
            item.add_marker(pytest.mark.kubernetes)
        elif parts[0] in REAL:
            item.add_marker(pytest.mark.slow)
