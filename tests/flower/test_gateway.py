"""The gateway of `docs/deployment.md`: nodes reach the Fleet API through it, and nobody the Control API."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from .processes import HOST, Program, Site, free_port, wait_until

pytestmark = pytest.mark.slow


def gateway(superlink: int) -> ThreadingHTTPServer:
    """What `examples/deployment/nginx.conf` does, without its TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if not self.path.startswith("/v1/fleet/"):
                self.send_response(403)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            behind = http.client.HTTPConnection(HOST, superlink, timeout=60)
            behind.request("POST", self.path, body, dict(self.headers))
            answer = behind.getresponse()
            data = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    return ThreadingHTTPServer((HOST, free_port()), Handler)


@pytest.mark.parametrize("site", [False], indirect=True, ids=["insecure"])
def test_nodes_pass_the_gateway_and_commands_do_not(site: Site) -> None:
    site.superlink()
    server = gateway(site.port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.server_address[1]
    arguments = ["flower-supernode", "--insecure", "--superlink", f"{HOST}:{port}", "--port", str(free_port())]
    node = Program(
        [*arguments, "--node-config", "partition-id=0"], site.folder / "home-node", site.folder / "n.log"
    )
    site.programs.append(node)
    wait_until(lambda: node.joined, "the node joins through the gateway", 120)
    statuses = []
    for path in ("/v1/control/register-node", "/v1/control/start-run", "/v1/runtime/get-nodes"):
        connection = http.client.HTTPConnection(HOST, port, timeout=30)
        connection.request("POST", path, b"")
        statuses.append(connection.getresponse().status)
    assert statuses == [403] * 3
    server.shutdown()
