"""Requests to one server over TLS, as one user. Nothing is retried."""

import http.client
import json
import socket
import ssl
import urllib.parse


class Answer:
    """Status code, headers (lower-case names; repeated ones joined) and body of a response."""

    def __init__(self, code, headers, body):
        self.code, self.headers, self.body = code, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def message(self):
        """The message of a Status; the body's beginning for anything else."""
        try:
            return self.json.get("message", "")
        except ValueError:
            return self.body[:300].decode("utf-8", "replace")

    def __repr__(self):
        return f"{self.code} {self.body[:300]!r}"


class Client:
    """One user's access. `token` or `certificate` (a file with certificate and key) or neither, for anonymous requests."""

    def __init__(self, host, port, authority, token=None, certificate=None):
        self.host, self.port, self.token = host, port, token
        self.tls = ssl.create_default_context(cadata=authority)
        if certificate:
            self.tls.load_cert_chain(certificate)

    def connect(self, timeout=30, buffer=None):
        """A TLS connection for raw bytes; `buffer`: bytes that the kernel receives for a slow reader."""
        plain = socket.socket()
        if buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        plain.settimeout(timeout)
        plain.connect((self.host, self.port))
        return self.tls.wrap_socket(plain, server_hostname=self.host)

    def headers(self, more=None):
        base = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return {**base, **(more or {})}

    def send(self, method, path, body=None, headers=None, timeout=60):
        """Sends one request on a connection of its own and reads the whole answer."""
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=timeout)
        try:
            connection.request(method, path, body=body, headers=self.headers(headers))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def json(self, method, path, value=None, content="application/json", headers=None, timeout=60):
        """Sends a JSON document; `value` may be bytes or text that is JSON already."""
        body = value if value is None or isinstance(value, (bytes, str)) else json.dumps(value)
        if isinstance(body, str):
            body = body.encode()
        more = {"Content-Type": content} if body is not None else {}
        return self.send(method, path, body, {**more, **(headers or {})}, timeout)

    def many(self, requests):
        """Sends (method, path, value, content type) tuples one after the other on one connection; all must succeed."""
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=60)
        try:
            for method, path, value, content in requests:
                connection.request(method, path, json.dumps(value), self.headers({"Content-Type": content}))
                response = connection.getresponse()
                body = response.read()
                assert response.status < 300, f"{method} {path}: {response.status} {body[:300]!r}"
        finally:
            connection.close()

    def get(self, path, **parameters):
        return self.json("GET", path + ("?" + urllib.parse.urlencode(parameters) if parameters else ""))

    def ok(self, method, path, value=None, **more):
        """As `json`; fails unless the answer is a success."""
        answer = self.json(method, path, value, **more)
        assert 200 <= answer.code < 300, f"{method} {path}: {answer}"
        return answer.json

    def raw(self, data, timeout=10, limit=1 << 20):
        """Sends bytes as they are and returns what comes back until the end, `limit` bytes or a pause of `timeout` seconds."""
        with self.connect(timeout) as connection:
            got = b""
            try:
                connection.sendall(data)
                while len(got) < limit:
                    piece = connection.recv(65536)
                    if not piece:
                        break
                    got += piece
            except (TimeoutError, ConnectionError, ssl.SSLError):
                pass
            return got

    def events(self, path, stop, timeout=10):
        """Reads a watch until `stop(event)` or the watch's end or a pause of `timeout` seconds; returns its events."""
        connection = http.client.HTTPSConnection(self.host, self.port, context=self.tls, timeout=timeout)
        events = []
        try:
            connection.request("GET", path, headers=self.headers())
            response = connection.getresponse()
            assert response.status == 200, f"{path}: {response.status} {response.read()[:300]!r}"
            while True:
                line = response.readline()
                if not line:
                    break
                events.append(json.loads(line))
                if stop(events[-1]):
                    break
        except TimeoutError:
            pass
        finally:
            connection.close()
        return events
