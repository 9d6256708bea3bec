"""Settings: one frozen model for each backend, and `BackendConfig` for all of them at once.

They check what can be checked without touching the machine. A setting that is unknown, of a wrong
type or of another backend is refused when the model is made, with the key and the mend in a
`ConfigError`, or a `LimitError` where it is a limit.
"""

from .container import ContainerConfig
from .every import CONFIGS, AnyConfig, BackendConfig, parse_backend
from .kubernetes import KubernetesConfig
from .small import BubblewrapConfig, FakeConfig, ProcessConfig, WasmConfig

__all__ = (
    "CONFIGS",
    "AnyConfig",
    "BackendConfig",
    "BubblewrapConfig",
    "ContainerConfig",
    "FakeConfig",
    "KubernetesConfig",
    "ProcessConfig",
    "WasmConfig",
    "parse_backend",
)
