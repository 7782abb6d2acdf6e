"""`examples/cluster` and `examples/deployment`: what can be checked of scripts and manifests without a cluster."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project import ROOT

EXAMPLES = ROOT / "examples"
CLUSTER = EXAMPLES / "cluster"
SCRIPTS = [*sorted(CLUSTER.glob("*.sh")), EXAMPLES / "deployment" / "keys.sh"]
MANIFESTS = [CLUSTER / "kuberay.yaml", EXAMPLES / "deployment" / "kubernetes.yaml"]
KUBERNETES = "1.29"
RAY_JOB = {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec"}
"""The fields of KubeRay's RayJob (ray.io/v1) that are used; its schema is in no package."""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shell_scripts_are_sound(path: Path) -> None:
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    program = shutil.which("shellcheck", path=beside)  # of this environment, whether or not it is activated
    if program is None:
        pytest.skip("shellcheck is not installed: it comes with fedwcm[dev]")
    done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def documents(path: Path) -> Iterator[dict[str, Any]]:
    """The resources of a manifest, and the pods of those that Kubernetes itself does not know."""
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if document["apiVersion"] != "ray.io/v1":
            yield document
            continue
        cluster = document["spec"]["rayClusterSpec"]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_fit_the_schema_of_kubernetes(path: Path) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="it comes with fedwcm[dev]")
    found = list(documents(path))
    assert found
    for document in found:
        validator.validate(document, KUBERNETES, strict=True)


def test_the_job_on_kubernetes_says_what_kuberay_asks_for() -> None:
    claim, job = yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text(encoding="utf-8"))
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(job["spec"]) == RAY_JOB
    cluster = job["spec"]["rayClusterSpec"]
    [workers] = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    [volume] = cluster["headGroupSpec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    constraints = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"ray=={cluster['rayVersion']}\n" in constraints


def commands() -> Iterator[str]:
    """Every `fedwcm` command of the examples, on one line."""
    for path in (CLUSTER / "slurm.sh", CLUSTER / "eight-gpus.sh"):
        joined = path.read_text(encoding="utf-8").replace("\\\n", " ")
        yield from (line.strip() for line in joined.splitlines() if line.strip().startswith("fedwcm "))
    *_, job = yaml.safe_load_all((CLUSTER / "kuberay.yaml").read_text(encoding="utf-8"))
    yield job["spec"]["entrypoint"]


@pytest.mark.parametrize("command", list(commands()))
def test_commands_of_the_examples_can_be_parsed(command: str) -> None:
    from fedwcm.cli import command_line

    _, *words = (word for word in command.split() if word not in ("&", '"$@"'))
    options = command_line().parse_args(words)
    assert options.execute is not None


def test_the_pinned_ray_is_what_is_installed() -> None:
    pytest.importorskip("ray", reason="needs fedwcm[ray]")
    assert f"rayproject/ray:{version('ray')}-" in (CLUSTER / "kuberay.yaml").read_text(encoding="utf-8")
