"""Texts that `fedcodist deploy init` writes for other supervisors: systemd, compose, Kubernetes with and without KubeRay; and a device's
first site file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

SITE = """# What this device says of itself, and where its data is. The server sees the attributes and the number of examples.
[attributes]
capacity = "low"

[data]
kind = "file"  # or: kind = "function", function = "mine:load"; or: kind = "share", client = "...", task = { kind = "..." }
path = "data.npz"  # columns x and y
"""
KUBERAY = """# A Ray cluster for simulations, under the KubeRay operator. An experiment runs in the head's pod, with
# engine = { kind = "ray", address = "fedcodist-head-svc:6379" }. Whoever reaches the cluster can run code on it: keep others out.
apiVersion: ray.io/v1
kind: RayCluster
metadata: { name: fedcodist }
spec:
  rayVersion: "2.60.0"
  headGroupSpec:
    rayStartParams: { num-cpus: "0", include-dashboard: "false", disable-usage-stats: "true" }
    template:
      spec:
        containers:
          - name: ray-head
            image: fedcodist  # an image with: pip install 'fedcodist[ray]', and the data at the same path everywhere
            resources: { requests: { cpu: "2", memory: 4Gi }, limits: { memory: 4Gi } }
  workerGroupSpecs:
    - groupName: workers
      replicas: 4
      minReplicas: 4
      maxReplicas: 4
      rayStartParams: {}
      template:
        spec:
          containers:
            - name: ray-worker
              image: fedcodist
              resources: { requests: { cpu: "8", memory: 16Gi }, limits: { memory: 16Gi } }
"""
HARDENED = """NoNewPrivileges=yes
PrivateTmp=yes
ProtectSystem=strict
ProtectHome=read-only
UMask=0077
"""


def texts(directory: Path, host: str, port: int, nodes: Sequence[str]) -> dict[str, str]:
    """{file name: text}."""
    return {
        "fedcodist-server.service": _unit(directory / "server", "server", "The server of a fedcodist federation", "5"),
        "fedcodist-run.service": _unit(directory / "server", "run", "The experiment of a fedcodist federation", "30"),
        "fedcodist-node@.service": _unit(directory / "nodes" / "%i", "node", "A device of a fedcodist federation", "5"),
        "compose.yaml": _compose(port, nodes),
        "kubernetes.yaml": _kubernetes(host, port),
        "kuberay.yaml": KUBERAY,
    }


def _unit(place: Path, verb: str, what: str, seconds: str) -> str:
    restart = "on-failure" if verb == "run" else "always"
    return f"""[Unit]
Description={what}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
ExecStart=/usr/bin/env fedcodist deploy {verb} {place}
Restart={restart}
RestartSec={seconds}
User=fedcodist
ReadWritePaths={place}
{HARDENED}
[Install]
WantedBy=multi-user.target
"""


def _compose(port: int, nodes: Sequence[str]) -> str:
    service = """  {name}:
    image: fedcodist  # an image with: pip install 'fedcodist[deploy]'
    command: ["fedcodist", "deploy", "{verb}", "/federation"]
    restart: {restart}
    volumes: ["../{place}:/federation"]
    read_only: true
    tmpfs: ["/tmp"]
    cap_drop: ["ALL"]
    security_opt: ["no-new-privileges:true"]
"""
    parts = [service.format(name="server", verb="server", place="server", restart="always") + f'    ports: ["{port}:{port}"]\n']
    # The Control path is on the server's loopback alone, so whoever starts the experiment shares its network.
    parts.append(
        service.format(name="run", verb="run", place="server", restart="on-failure")
        + '    network_mode: "service:server"\n    depends_on: ["server"]\n'
    )
    parts += [service.format(name=name, verb="node", place=f"nodes/{name}", restart="always") for name in nodes]
    return (
        "# Set host in server/server.toml to 0.0.0.0, and server in each node.toml to the name that the certificate has.\n"
        "services:\n" + "".join(parts)
    )


def _kubernetes(host: str, port: int) -> str:
    return f"""# The server of a federation in Kubernetes; devices connect to the service from outside. The volume must hold DIR/server.
apiVersion: v1
kind: Service
metadata: {{ name: fedcodist }}
spec:
  type: LoadBalancer
  selector: {{ app: fedcodist }}
  ports: [{{ name: fleet, port: {port}, targetPort: {port} }}]
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {{ name: fedcodist }}
spec:
  serviceName: fedcodist
  replicas: 1  # one server has the run's directory
  selector: {{ matchLabels: {{ app: fedcodist }} }}
  template:
    metadata: {{ labels: {{ app: fedcodist }} }}
    spec:
      securityContext: {{ runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000 }}
      containers:
        - name: server
          image: fedcodist  # an image with: pip install 'fedcodist[deploy]'
          args: ["fedcodist", "deploy", "server", "/federation"]
          ports: [{{ containerPort: {port} }}]
          volumeMounts: [{{ name: federation, mountPath: /federation }}]
        - name: run
          image: fedcodist
          args: ["fedcodist", "deploy", "run", "/federation"]
          volumeMounts: [{{ name: federation, mountPath: /federation }}]
  volumeClaimTemplates:
    - metadata: {{ name: federation }}
      spec: {{ accessModes: ["ReadWriteOnce"], resources: {{ requests: {{ storage: 10Gi }} }} }}
# Devices find it as {host}:{port}, the name in its certificate.
"""
