#!/usr/bin/env python3
"""A TCP load balancer over API servers, as clusters have one before them.

    balancer.py PORT STATUS SERVER_PORT...

It asks each server's /readyz ten times a second. New connections go in turn to those that are ready; a server that refuses a
connection is followed by the next one. Connections that are open stay open when their server stops being ready: to end them is the
server's business. STATUS is a file that is written when at least one server is ready, and has the numbers of those.

Invariant: no byte of a connection is read twice or sent to two servers.
"""

import asyncio
import ssl
import sys

HOST = "127.0.0.1"
PERIOD = 0.1
TIMEOUT = 2.0
PIECE = 65536


class Balancer:
    def __init__(self, status, ports):
        self.status = status
        self.ports = ports
        self.ready = set()
        self.turn = 0
        self.trust = ssl.create_default_context()
        # Health is no secret, and the balancer passes TLS on.
        self.trust.check_hostname = False
        self.trust.verify_mode = ssl.CERT_NONE

    async def is_ready(self, port):
        reader, writer = await asyncio.open_connection(HOST, port, ssl=self.trust)
        try:
            writer.write(b"GET /readyz HTTP/1.1\r\nHost: kubernetes\r\nConnection: close\r\n\r\n")
            return (await reader.readline()).startswith(b"HTTP/1.1 200")
        finally:
            writer.close()

    async def watch(self, port):
        """Asks a server whether it is ready, until the balancer ends."""
        while True:
            try:
                ready = await asyncio.wait_for(self.is_ready(port), TIMEOUT)
            except (OSError, asyncio.TimeoutError):
                ready = False
            if ready != (port in self.ready):
                (self.ready.add if ready else self.ready.discard)(port)
                with open(self.status, "w", encoding="ascii") as file:
                    file.write(" ".join(str(port) for port in sorted(self.ready)) + "\n")
            await asyncio.sleep(PERIOD)

    async def connect(self):
        """A connection to a server that is ready, or to any if none is."""
        candidates = [port for port in self.ports if port in self.ready] or self.ports
        self.turn += 1
        for i in range(len(candidates)):
            try:
                return await asyncio.open_connection(HOST, candidates[(self.turn + i) % len(candidates)])
            except OSError:
                continue
        return None

    async def serve(self, reader, writer):
        server = await self.connect()
        if server is None:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, server[1]), pass_on(server[0], writer))


async def pass_on(reader, writer):
    """Passes on what one side sends, its end too."""
    try:
        while piece := await reader.read(PIECE):
            writer.write(piece)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except OSError:
        writer.close()


async def main():
    port, status, ports = int(sys.argv[1]), sys.argv[2], [int(port) for port in sys.argv[3:]]
    balancer = Balancer(status, ports)
    server = await asyncio.start_server(balancer.serve, HOST, port)
    async with server:
        await asyncio.gather(server.serve_forever(), *(balancer.watch(port) for port in ports))


asyncio.run(main())
