"""A stand-in for EC2's instance metadata service (IMDSv2), for TANDEM_IMDS: tokens, and the spot notice."""
import http.server
import json
import threading
import time

NONE = 404, ""
NOTICE = 200, json.dumps({"action": "terminate", "time": "2026-01-02T03:04:05Z"})
BROKEN = 200, '{"action": "termi'
UNAUTHORIZED = 401, ""  # as if the token had expired
HANG = None


class FakeImds:
    """Each request for the notice takes the next of `answers`; the last one stays. `requests`: the method and the status of
    each request that was answered."""

    def __init__(self, *answers, address=("127.0.0.1", 0)):
        self.answers, self.requests, self.tokens = list(answers), [], set()
        self.server = http.server.ThreadingHTTPServer(address, self.handler())
        self.server.daemon_threads = True
        self.address = "127.0.0.1:%d" % self.server.server_port

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def handler(imds):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self, status, body):
                imds.requests.append((self.command, status))
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            def do_PUT(self):
                lifetime = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
                if self.path != "/latest/api/token" or not lifetime.isdigit() or not 1 <= int(lifetime) <= 21600:
                    return self.answer(400, "")
                token = f"token{len(imds.tokens)}=="
                imds.tokens.add(token)
                self.answer(200, token)

            def do_GET(self):
                if self.headers.get("X-aws-ec2-metadata-token") not in imds.tokens:
                    return self.answer(401, "")
                if self.path != "/latest/meta-data/spot/instance-action":
                    return self.answer(404, "")
                answer = imds.answers.pop(0) if len(imds.answers) > 1 else imds.answers[0]
                if answer is HANG:
                    time.sleep(60)
                else:
                    self.answer(*answer)
        return Handler
