#!/usr/bin/env python3
"""A client of the WebSocket multiplexer of Headlamp's server: opens a watch through it and prints what comes until a text has come.

Usage: multiplexed.py HOST PORT CLUSTER PATH QUERY WANTED SECONDS [HEADER...]
"""
import base64
import json
import os
import socket
import struct
import sys
import time


def frame(text):
    data, mask = text.encode(), os.urandom(4)
    length = struct.pack("!B", 0x80 | len(data)) if len(data) < 126 else struct.pack("!BH", 0xFE, len(data))
    return b"\x81" + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


class Stream:
    def __init__(self, host, port, headers):
        self.socket = socket.create_connection((host, port), timeout=1)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = ["GET /wsMultiplexer HTTP/1.1", f"Host: {host}:{port}", "Upgrade: websocket", "Connection: Upgrade",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", *headers]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        self.data, self.end = b"", time.monotonic() + float(sys.argv[7])
        while b"\r\n\r\n" not in self.data:
            self.more()
        head, _, self.data = self.data.partition(b"\r\n\r\n")
        if b" 101 " not in head.splitlines()[0]:
            sys.exit(head.decode())

    def more(self):
        while True:
            if time.monotonic() > self.end:
                sys.exit("nothing more has come")
            try:
                got = self.socket.recv(65536)
            except socket.timeout:
                continue
            if not got:
                sys.exit("the connection was closed")
            self.data += got
            return

    def take(self, count):
        while len(self.data) < count:
            self.more()
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def message(self):
        length = self.take(2)[1] & 127
        if length == 126:
            (length,) = struct.unpack("!H", self.take(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", self.take(8))
        return self.take(length).decode(errors="replace")


def main():
    host, port, cluster, path, query, wanted = sys.argv[1:7]
    stream = Stream(host, int(port), sys.argv[8:])
    request = {"clusterId": cluster, "path": path, "query": query, "userId": "page", "type": "REQUEST"}
    stream.socket.sendall(frame(json.dumps(request)))
    while True:
        message = stream.message()
        print(message[:400], flush=True)
        if wanted in message:
            return


if __name__ == "__main__":
    main()
