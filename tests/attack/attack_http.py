"""What is no proper HTTP, and paths in disguise, get an answer that gives nothing away."""

import threading

from server import rule


def attack_paths_in_disguise_reach_nothing_more(server):
    """Encoded slashes, dots and doubled slashes are authorized as what they are served as."""
    user = server.account("path-a", "reader", [rule(["get", "list"], ["configmaps"])])
    server.admin.ok("POST", "/api/v1/namespaces/path-a/secrets", {"metadata": {"name": "hidden"}, "stringData": {"k": "marker"}})
    base = "/api/v1/namespaces/path-a"
    for path in (
        f"{base}/configmaps/../secrets",
        f"{base}/configmaps/..%2fsecrets",
        f"{base}/configmaps/%2e%2e/secrets",
        f"{base}/configmaps%2f..%2fsecrets",
        f"{base}//secrets",
        f"{base}/./secrets",
        f"//api/v1/namespaces/path-a/secrets",
        f"{base}/secrets/",
        f"{base}/secrets/hidden/",
        f"{base}/secrets%2fhidden",
        f"{base}/secrets/hidden%3fx",
        f"{base}/secrets;x=y",
        f"{base}/secrets%00",
        f"/api/v1/watch{base[7:]}/secrets?timeoutSeconds=1",
        f"{base}/configmaps/x/secrets/hidden",
        f"{base}/pods/x/proxy/../../secrets",
    ):
        answer = user.send("GET", path, timeout=10)
        assert b"hidden" not in answer.body or answer.code in (301, 400, 403, 404), f"{path}: {answer}"
        assert b"bWFya2Vy" not in answer.body, f"{path}: {answer}"


def request(server, head, body=b""):
    user = f"Authorization: Bearer {server.token}\r\n"
    return head.replace("AUTH\r\n", user).encode() + body


def attack_ambiguous_lengths_are_refused(server):
    """Two lengths, a length beside chunks, odd chunks and folded headers never make a second request."""
    user = server.account("http-a", "writer", [rule(["create", "get"], ["configmaps"])])
    post = "POST /api/v1/namespaces/http-a/configmaps HTTP/1.1\r\nHost: x\r\nAUTH\r\nContent-Type: application/json\r\n"
    hidden = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = "Transfer-Encoding: chunked\r\n"
    for extra, body in (
        ("Content-Length: 3\r\nContent-Length: 40\r\n\r\n", b"{}\n" + hidden),
        ("Content-Length: 5\r\n" + chunked + "\r\n", b"0\r\n\r\n" + hidden),
        ("Transfer-Encoding: chunked, identity\r\n\r\n", b"0\r\n\r\n" + hidden),
        ("Transfer-Encoding: xchunked\r\n\r\n", b"0\r\n\r\n" + hidden),
        ("Content-Length: +2\r\n\r\n", b"{}" + hidden),
        ("Content-Length: -1\r\n\r\n", hidden),
        ("Content-Length : 2\r\n\r\n", b"{}" + hidden),
        (chunked + "\r\n", b"FFFFFFFFFFFFFFFFF\r\n" + hidden),
        (chunked + "\r\n", b"-1\r\n" + hidden),
    ):
        got = user.raw(request(user, post + extra, body), timeout=3)
        assert got.count(b"HTTP/1.1 ") <= 1, f"{extra!r}: {got[:800]!r}"
        assert b'"gitVersion"' not in got, f"{extra!r}: {got[:800]!r}"


def attack_two_hosts_are_refused(server):
    """A request with two Host headers, or none in HTTP/1.1, is a bad one."""
    for hosts in ("Host: a\r\nHost: b\r\n", ""):
        got = server.anonymous.raw(f"GET /version HTTP/1.1\r\n{hosts}\r\n".encode(), timeout=3)
        assert got.startswith(b"HTTP/1.1 400"), f"{hosts!r}: {got[:200]!r}"


def attack_half_open_connections_leave_room(server):
    """Five hundred connections that send half a request do not keep others from being served."""
    sockets = []
    try:
        for i in range(500):
            connection = server.anonymous.connect(timeout=20)
            connection.sendall(b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * i)
            sockets.append(connection)
        assert server.admin.get("/api/v1/namespaces").code == 200
    finally:
        for connection in sockets:
            connection.close()


def attack_a_flood_leaves_others_their_turn(server):
    """While one account floods, another one is answered."""
    rules = [rule(["list", "create"], ["configmaps"])]
    flooder, other = server.account("http-b", "flooder", rules), server.account("http-c", "other", rules)
    end = threading.Event()

    def flood():
        connection = flooder.connect()
        line = f"GET /api/v1/namespaces/http-b/configmaps HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {flooder.token}\r\n\r\n"
        try:
            while not end.is_set():
                connection.sendall(line.encode() * 16)
                connection.recv(1 << 20)
        except OSError:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=flood) for _ in range(40)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            assert other.get("/api/v1/namespaces/http-c/configmaps").code == 200
    finally:
        end.set()
        for thread in threads:
            thread.join()


def attack_garbage_is_answered(server):
    """Bytes that are no HTTP, HTTP/2 preface without frames, and TLS garbage end their connection only."""
    for data in (b"\x00" * 100, b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 50, b"\x16\x03\x01" * 30, b"A" * 70000):
        server.anonymous.raw(data, timeout=2)
    assert server.admin.get("/version").code == 200
