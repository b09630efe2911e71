"""A Dify application that answers everything, for hosts whose agent runs remotely."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FakeDify:
    """The server; ``requests`` holds every body it received."""

    def __init__(self) -> None:
        self.requests: list[dict] = []
        record = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                record.append(body)
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.end_headers()
                for event in (
                    {"event": "message", "answer": "Dify answers.", "conversation_id": "d1"},
                    {"event": "message_end"},
                ):
                    self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> "FakeDify":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def host_settings(self) -> dict:
        """The settings that give a host of either version this runner."""
        runner = {
            "dify_api_type": "chat",
            "dify_api_key": "x",
            "dify_api_base": self.base_url,
        }
        provider = {
            "id": "dify",
            "type": "dify",
            "provider": "dify",
            "provider_type": "agent_runner",
            "enable": True,
            **runner,
        }
        return {
            "provider_settings": {
                "agent_runner_type": "dify",
                "dify_agent_runner_provider_id": "dify",
            },
            "agent_runner": {"runner_type": "dify", "config": runner},
            "provider": [provider],
        }
