#!/usr/bin/env python3
"""Serves a folder over HTTP, and the Git repositories below its git/ by `git http-backend`.

serve.py PORT FOLDER [USER:PASSWORD]: what is below git/private/ is only for that user.
"""
import base64
import os
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

port, folder = int(sys.argv[1]), sys.argv[2]
secret = "Basic " + base64.b64encode(sys.argv[3].encode()).decode() if len(sys.argv) > 3 else None


class Handler(SimpleHTTPRequestHandler):
    def do_GET(self):
        if not self.path.startswith("/git/"):
            return super().do_GET()
        self.git()

    def do_POST(self):
        self.git()

    def git(self):
        path, _, query = self.path.removeprefix("/git").partition("?")
        if path.startswith("/private/") and self.headers.get("Authorization") != secret:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            return self.end_headers()
        environment = dict(
            os.environ,
            GIT_PROJECT_ROOT=os.path.join(folder, "git"),
            GIT_HTTP_EXPORT_ALL="1",
            REQUEST_METHOD=self.command,
            PATH_INFO=path,
            QUERY_STRING=query,
            CONTENT_TYPE=self.headers.get("Content-Type", ""),
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""),
            GIT_PROTOCOL=self.headers.get("Git-Protocol", ""),
        )
        if "Content-Length" in self.headers:
            environment["CONTENT_LENGTH"] = self.headers["Content-Length"]
            sent = self.rfile.read(int(self.headers["Content-Length"]))
        else:
            sent = self.chunks() if self.headers.get("Transfer-Encoding") == "chunked" else b""
        answer = subprocess.run(["git", "http-backend"], input=sent, env=environment, stdout=subprocess.PIPE).stdout
        head, _, body = answer.partition(b"\r\n\r\n")
        fields = [line.split(": ", 1) for line in head.decode().split("\r\n") if line]
        status = next((value.split()[0] for name, value in fields if name == "Status"), "200")
        self.send_response(int(status))
        for name, value in fields:
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def chunks(self):
        got = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            got += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return got


ThreadingHTTPServer(("127.0.0.1", port), partial(Handler, directory=folder)).serve_forever()
