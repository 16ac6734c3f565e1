#!/usr/bin/env python3
"""Serves the Git repositories of a folder below /argo-e2e/, as the nginx.conf of Argo CD's tests does, by `git http-backend`.

serve.py FOLDER [CERTIFICATES] PORT:KIND…: KIND is `open`, `password` (admin:password), `tls` (the same over TLS) or `client`
(a client's certificate as well). What is below a folder helm-repo is served as files.
"""
import base64
import os
import ssl
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

folder = sys.argv[1]
certificates = sys.argv[2] if ":" not in sys.argv[2] else None
SECRET = "Basic " + base64.b64encode(b"admin:password").decode()
PREFIX = "/argo-e2e"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port, kind):
        super().__init__(("127.0.0.1", port), Handler)
        self.kind = kind
        self.context = None
        if kind in ("tls", "client"):
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(f"{certificates}/argocd-test-server.crt", f"{certificates}/argocd-test-server.key")
        if kind == "client":
            self.context.load_verify_locations(f"{certificates}/argocd-test-ca.crt")
            self.context.verify_mode = ssl.CERT_OPTIONAL

    def finish_request(self, request, address):
        if self.context:
            try:
                request = self.context.wrap_socket(request, server_side=True)
            except OSError:
                return
        super().finish_request(request, address)


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *args):
        super().__init__(*args, directory=folder)

    def log_message(self, *_):
        pass

    def refuse(self, status, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self):
        self.answer()

    def do_HEAD(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        sent = self.sent()
        if self.server.kind == "client" and not self.connection.getpeercert():
            return self.refuse(400)
        if self.server.kind != "open" and self.headers.get("Authorization") != SECRET:
            return self.refuse(401, ("WWW-Authenticate", 'Basic realm="Restricted"'))
        path, _, query = self.path.partition("?")
        if not path.startswith(PREFIX + "/"):
            return self.refuse(404)
        self.path = path.removeprefix(PREFIX)
        if "/helm-repo/" not in self.path:
            return self.git(query, sent)
        return super().do_HEAD() if self.command == "HEAD" else super().do_GET()

    def git(self, query, sent):
        environment = dict(
            os.environ,
            GIT_PROJECT_ROOT=folder,
            GIT_HTTP_EXPORT_ALL="1",
            REQUEST_METHOD=self.command,
            PATH_INFO=self.path,
            QUERY_STRING=query,
            CONTENT_TYPE=self.headers.get("Content-Type", ""),
            CONTENT_LENGTH=str(len(sent)),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""),
            GIT_PROTOCOL=self.headers.get("Git-Protocol", ""),
            REMOTE_USER="admin",
        )
        answer = subprocess.run(["git", "http-backend"], input=sent, env=environment, stdout=subprocess.PIPE).stdout
        head, _, body = answer.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
        self.send_response(int(next((value.split()[0] for name, value in fields if name == "Status"), "200")))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def sent(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        got = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            got += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return got


servers = []
for spec in sys.argv[3 if certificates else 2 :]:
    port, kind = spec.split(":")
    servers.append(threading.Thread(target=Server(int(port), kind).serve_forever))
for server in servers:
    server.start()
