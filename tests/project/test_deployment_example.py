"""`examples/deployment`: what can be checked without a cluster."""

import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "examples" / "deployment"


def test_the_compose_file_fits_its_schema_and_closes_the_control_api() -> None:
    command = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(FOLDER / "compose.yaml")]
    pytest.importorskip("check_jsonschema")
    from check_jsonschema import main

    with pytest.raises(SystemExit) as ended:
        main(command[1:])
    assert ended.value.code in (None, 0)
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    assert services["superlink"]["ports"] == ["127.0.0.1:8000:8000"]
    assert "location /v1/fleet/" in (FOLDER / "nginx.conf").read_text()
    assert all("ports" not in services[name] for name in services if name.startswith("node"))


def test_every_client_of_the_compose_file_has_a_number_and_a_key_of_its_own() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    for number, name in enumerate(sorted(name for name in services if name.startswith("node"))):
        started = " ".join(services[name]["command"])
        assert f"partition-id={number} " in started
        assert f"/keys/node{number} " in started + " "


def test_the_pod_mounts_what_its_node_is_started_with() -> None:
    pod = yaml.safe_load((FOLDER / "kubernetes.yaml").read_text())["spec"]["template"]["spec"]["containers"][0]
    mounted = {mount["mountPath"] for mount in pod["volumeMounts"]}
    assert mounted == {"/keys", "/state"}
    assert any('state-dir="/state"' in argument for argument in pod["args"])


def test_the_script_for_keys_is_a_shell_script() -> None:
    subprocess.run(["sh", "-n", str(FOLDER / "keys.sh")], check=True)
