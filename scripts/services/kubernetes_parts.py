"""What each part of the cluster is started with.

Everything listens on 127.0.0.1 and asks for a certificate. What makes a small machine wait for
nothing is set: short intervals, no fsync, no controllers that nobody here needs.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .kubernetes_pki import NODE
from .steps import free_ports

ADDRESS = "127.0.0.1"
PLAN = "plan.json"
PORTS = ("etcd", "etcd-peer", "api", "controllers", "scheduler", "node")
SERVICE_NETWORK = "198.18.0.0/24"
POD_NETWORKS = tuple(f"198.18.{number}.0/24" for number in range(1, 256))
"""Of the block that is set aside for measuring networks, so no real one is hidden by it."""

GATES = ("TTLAfterFinished", "SizeMemoryBackedVolumes")
"""What every newer cluster has without being asked."""

CONTROLLERS = (
    *("deployment", "garbagecollector", "job", "namespace", "nodelifecycle", "podgc"),
    *("replicaset", "resourcequota", "root-ca-cert-publisher", "serviceaccount"),
    *("serviceaccount-token", "ttl-after-finished"),
)
LOST_SECONDS = 60
"""For how long a node may be silent until it counts as lost: longer than a busy machine stalls, and
than an API server takes to start again. It says every ten seconds that it lives.

Its pods are not ready from then on. They are not evicted, since where all nodes are lost the
controller takes itself for what is cut off.
"""

POD_PIDS = 256

Flags = Mapping[str, str]


@dataclass(frozen=True)
class Plan:
    """What is chosen for one cluster, so that several on one machine don't meet.

    Attributes:
        place: The directory of all its files.
        ports: What listens where, by `PORTS`.
        group: The control group that the node and all its pods are below.
        network: The pods' addresses.
    """

    place: Path
    ports: Mapping[str, int]
    group: str
    network: str

    @classmethod
    def choose(cls, place: Path) -> Plan:
        """Return a new one, of what nobody uses."""
        ports = dict(zip(PORTS, free_ports(len(PORTS), ADDRESS), strict=True))
        return cls(place, ports, f"ringfence-cluster-{secrets.token_hex(4)}", free_network())

    @classmethod
    def read(cls, place: Path) -> Plan | None:
        """Return the one that was written there, if there is one."""
        try:
            known = json.loads((place / PLAN).read_text("utf-8"))
        except OSError:
            return None
        return cls(**(known | {"place": place}))

    def write(self) -> None:
        """Write it where it is read."""
        text = json.dumps(asdict(self) | {"place": ""}, indent=1)
        (self.place / PLAN).write_text(text, "utf-8")

    @property
    def server(self) -> str:
        """The API server's address."""
        return f"https://{ADDRESS}:{self.ports['api']}"


def free_network(routes: Path = Path("/proc/net/route")) -> str:
    """Return a network that this machine has no route into, for pods."""
    lines = routes.read_text("ascii").splitlines()[1:]
    taken = {line.split()[1][2:] for line in lines}  # the address's bytes are in reverse
    free = [one for one in POD_NETWORKS if _reversed(one) not in taken]
    return secrets.choice(free)


def _reversed(network: str) -> str:
    first, second, third, _ = network.split(".")
    return f"{int(third):02X}{int(second):02X}{int(first):02X}"


def etcd(plan: Plan) -> list[str]:
    """Return the command of the API server's store."""
    pki = plan.place / "pki"
    listen = f"https://{ADDRESS}:{plan.ports['etcd']}"
    peer = f"https://{ADDRESS}:{plan.ports['etcd-peer']}"
    flags = {
        "name": "test",
        "data-dir": str(plan.place / "etcd" / "data"),
        "listen-client-urls": listen,
        "advertise-client-urls": listen,
        "listen-peer-urls": peer,
        "initial-advertise-peer-urls": peer,
        "initial-cluster": f"test={peer}",
        **{
            f"{whose}{flag}": value
            for whose in ("", "peer-")
            for flag, value in (
                ("client-cert-auth", "true"),
                ("trusted-ca-file", str(pki / "ca.crt")),
                ("cert-file", str(pki / "etcd.crt")),
                ("key-file", str(pki / "etcd.key")),
            )
        },
        "log-level": "warn",
    }
    return _argv("etcd", flags)


def api(plan: Plan) -> list[str]:
    """Return the command of the API server."""
    pki = plan.place / "pki"
    flags = {
        "etcd-servers": f"https://{ADDRESS}:{plan.ports['etcd']}",
        "etcd-cafile": str(pki / "ca.crt"),
        "etcd-certfile": str(pki / "api.crt"),
        "etcd-keyfile": str(pki / "api.key"),
        "bind-address": ADDRESS,
        "advertise-address": ADDRESS,
        "secure-port": str(plan.ports["api"]),
        "insecure-port": "0",
        "tls-cert-file": str(pki / "api.crt"),
        "tls-private-key-file": str(pki / "api.key"),
        "client-ca-file": str(pki / "ca.crt"),
        "anonymous-auth": "false",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-signing-key-file": str(pki / "tokens.key"),
        "service-account-key-file": str(pki / "tokens.pub"),
        "service-cluster-ip-range": SERVICE_NETWORK,
        "endpoint-reconciler-type": "none",  # an address of 127.0.0.1 is no use to pods
        "kubelet-certificate-authority": str(pki / "ca.crt"),
        "kubelet-client-certificate": str(pki / "api-to-node.crt"),
        "kubelet-client-key": str(pki / "api-to-node.key"),
        "kubelet-preferred-address-types": "Hostname",
        "profiling": "false",
        **_gates(),
    }
    return _argv(str(plan.place / "bin" / "kube-apiserver"), flags)


def controllers(plan: Plan) -> list[str]:
    """Return the command of the controllers: Jobs, service accounts, garbage and lost nodes."""
    flags = {
        **_client(plan, "controllers"),
        **_inner(plan.ports["controllers"]),
        "controllers": ",".join(CONTROLLERS),
        "use-service-account-credentials": "true",  # which have the permissions
        "service-account-private-key-file": str(plan.place / "pki" / "tokens.key"),
        "root-ca-file": str(plan.place / "pki" / "ca.crt"),
        "node-monitor-period": "2s",
        "node-monitor-grace-period": f"{LOST_SECONDS}s",
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        **_gates(),
    }
    return _argv(str(plan.place / "bin" / "kube-controller-manager"), flags)


def scheduler(plan: Plan) -> list[str]:
    """Return the command of the scheduler."""
    flags = {
        **_client(plan, "scheduler"),
        **_inner(plan.ports["scheduler"]),
        "kube-api-qps": "200",
        "kube-api-burst": "400",
        **_gates(),
    }
    return _argv(str(plan.place / "bin" / "kube-scheduler"), flags)


def kubelet(plan: Plan) -> list[str]:
    """Return the command of the node."""
    flags = {
        "config": str(plan.place / "kubelet.json"),
        "kubeconfig": str(plan.place / "pki" / "node.kubeconfig"),
        "hostname-override": NODE,
        "container-runtime": "remote",
        "container-runtime-endpoint": "unix:///run/containerd/containerd.sock",
        "root-dir": "/var/lib/kubelet",
        "cert-dir": "/var/lib/kubelet/pki",
    }
    return _argv(str(plan.place / "bin" / "kubelet"), flags)


def kubelet_settings(plan: Plan) -> dict[str, object]:
    """Return the node's settings, as its file has them."""
    pki = plan.place / "pki"
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "port": plan.ports["node"],
        "readOnlyPort": 0,
        "healthzPort": 0,
        "tlsCertFile": str(pki / "node.crt"),
        "tlsPrivateKeyFile": str(pki / "node.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "podPidsLimit": POD_PIDS,
        "makeIPTablesUtilChains": False,
        "resolvConf": str(plan.place / "resolv.conf"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "oomScoreAdj": 0,  # to lower it takes a capability that a small machine does not give
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,  # never: no registry has them
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%"},
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "eventRecordQPS": 0,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "featureGates": dict.fromkeys(GATES, True),
    }


def containerd_settings(pause: str) -> str:
    """Return the runtime's settings; `pause` is the image that holds a pod's namespaces."""
    cri = '[plugins."io.containerd.grpc.v1.cri"'
    runtimes = "".join(
        f"{cri}.containerd.runtimes.{name}]\n"
        'runtime_type = "io.containerd.runc.v2"\n'
        f"{cri}.containerd.runtimes.{name}.options]\n"
        "SystemdCgroup = false\n"
        for name in ("runc", "second")  # which a RuntimeClass may name
    )
    return (
        "version = 2\n"
        'root = "/var/lib/containerd"\n'
        'state = "/run/containerd"\n'
        f"{cri}]\n"
        f"sandbox_image = {json.dumps(pause)}\n"
        # Lower values than ours take a capability that a small machine does not give.
        "restrict_oom_score_adj = true\n"
        f'stream_server_address = "{ADDRESS}"\n'
        f"{cri}.containerd]\n"
        'snapshotter = "overlayfs"\n'
        f"{runtimes}"
        f"{cri}.cni]\n"
        'bin_dir = "/usr/lib/cni"\n'
        'conf_dir = "/run/cni"\n'
    )


def network_settings(plan: Plan) -> dict[str, object]:
    """Return the pods' network: a pair of interfaces each, which vanish with the pod."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": plan.network}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    pair = {"type": "ptp", "ipMasq": False, "ipam": addresses}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [pair]}


def _client(plan: Plan, name: str) -> dict[str, str]:
    path = str(plan.place / "pki" / f"{name}.kubeconfig")
    flags = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    others = {"leader-elect": "false", "authentication-skip-lookup": "true"}
    return dict.fromkeys(flags, path) | others


def _inner(port: int) -> dict[str, str]:
    return {"bind-address": ADDRESS, "secure-port": str(port), "port": "0", "profiling": "false"}


def _gates() -> dict[str, str]:
    return {"feature-gates": ",".join(f"{gate}=true" for gate in GATES)}


def _argv(program: str, flags: Flags) -> list[str]:
    return [program, *(f"--{name}={value}" for name, value in flags.items())]
