"""`examples/deployment`: what can be checked without a cluster."""

import re
import subprocess
from pathlib import Path
from shutil import which
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]
POD = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]


def test_the_compose_file_fits_its_schema_and_closes_the_control_api() -> None:
    checker = pytest.importorskip("check_jsonschema", reason="it comes with fedwcm[dev]")
    with pytest.raises(SystemExit) as ended:
        checker.main(["--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml")])
    assert ended.value.code in (None, 0)
    assert SERVICES["superlink"]["ports"] == ["127.0.0.1:8000:8000"]
    assert "location /v1/fleet/" in (FOLDER / "nginx.conf").read_text()
    assert all("ports" not in SERVICES[name] for name in SERVICES if name.startswith("node"))


def test_every_client_of_the_compose_file_has_a_number_and_a_key_of_its_own() -> None:
    for number, name in enumerate(sorted(name for name in SERVICES if name.startswith("node"))):
        started = " ".join(SERVICES[name]["command"])
        assert f"partition-id={number} " in started
        assert f"/keys/node{number} " in started + " "


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """What a service finds where: a file of this folder, or a volume."""
    return {inside: outside for outside, inside, *_ in (volume.split(":") for volume in service["volumes"])}


def test_every_container_gets_the_keys_that_it_is_started_with_and_no_others() -> None:
    started = {name: " ".join(service.get("command", [])) for name, service in SERVICES.items()}
    started["gateway"] = (FOLDER / "nginx.conf").read_text()
    for name, service in SERVICES.items():
        used = set(re.findall(r"/keys/[\w.]+", started[name]))
        assert used
        assert {inside: f".{inside}" for inside in used} == {
            inside: outside for inside, outside in mounts(service).items() if "keys" in outside
        }
        assert "/keys/ca.key" not in used


def test_the_user_of_flower_s_images_owns_what_volumes_are_mounted_on() -> None:
    found = [item for service in SERVICES.values() for item in mounts(service).items()]
    needed = {inside for inside, outside in found if outside in COMPOSE["volumes"]}
    (owned,) = re.findall(r"chown app:app (.*)", (FOLDER / "Dockerfile").read_text())
    assert set(owned.split()) == needed


def test_the_pod_runs_as_the_user_of_flower_s_images_whose_group_reads_the_keys() -> None:
    user = POD["securityContext"]
    assert user == {"runAsNonRoot": True, "runAsUser": 49999, "runAsGroup": 49999, "fsGroup": 49999}
    assert POD["volumes"][0]["secret"]["defaultMode"] == 0o440


def test_the_pod_mounts_what_its_node_is_started_with() -> None:
    (node,) = POD["containers"]
    assert {mount["mountPath"] for mount in node["volumeMounts"]} == {"/keys", "/state"}
    assert any('state-dir="/state"' in argument for argument in node["args"])


@pytest.mark.skipif(
    not (which("openssl") and which("ssh-keygen")), reason="openssl or ssh-keygen is not installed"
)
def test_the_keys_are_for_their_owner_alone_and_the_rest_for_everybody(tmp_path: Path) -> None:
    made = subprocess.run(
        ["sh", FOLDER / "keys.sh", "2"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "keys").iterdir()}
    public, private = ("ca.crt", "server.pem", "node0.pub"), ("ca.key", "server.key", "node0", "node1")
    assert {modes[name] for name in public} == {0o644}
    assert {modes[name] for name in private} == {0o600}
    assert "sudo chown 49999 keys/server.key" in made.stdout
