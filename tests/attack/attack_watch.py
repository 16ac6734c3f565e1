"""Watches and lists deliver only what their namespace, selector and rights include."""

import threading

from server import rule

SECRETS = "/api/v1/namespaces/{}/secrets"


def secret(name, value="x", **meta):
    return {"metadata": {"name": name, **meta}, "stringData": {"k": value}}


def setup(server, mine, other):
    """A user with the right to read secrets in `mine`; secrets in both; the revision from before them."""
    user = server.account(mine, "reader", [rule(["list", "watch"], ["secrets"])])
    server.namespace(other)
    before = server.admin.get("/api/v1/namespaces").json["metadata"]["resourceVersion"]
    for i in range(20):
        server.admin.ok("POST", SECRETS.format(other), secret(f"db-{i}", "foreign"))
    server.admin.ok("POST", SECRETS.format(mine), secret("own"))
    return user, before


def namespaces(events):
    """Namespaces of the objects of watch events, in each representation."""
    for event in events:
        value = event["object"]
        if event["type"] == "BOOKMARK":
            continue
        for item in [row["object"] for row in value["rows"]] if value["kind"] == "Table" else [value]:
            yield item["metadata"]["namespace"], item["metadata"]["name"]


def attack_replayed_watch_stays_in_its_namespace(server):
    """A watch from an old revision must not deliver other namespaces' secrets, in no representation."""
    user, before = setup(server, "leak-a", "leak-b")
    paths = [SECRETS.format("leak-a") + "?watch=1", "/api/v1/watch/namespaces/leak-a/secrets?"]
    forms = [
        "application/json",
        "application/json;as=Table;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
    ]
    headers = user.headers
    for path in paths:
        for form in forms:
            user.headers = lambda more=None: {**headers(more), "Accept": form}
            own = lambda event: ("leak-a", "own") in namespaces([event])
            found = list(namespaces(user.events(f"{path}&resourceVersion={before}&timeoutSeconds=5", own)))
            assert {ns for ns, _ in found} == {"leak-a"} and ("leak-a", "own") in found, f"{path} {form}: {found}"


def attack_lagging_watch_stays_in_its_namespace(server):
    """A live watch with a reader that lags must not be refilled with other namespaces' secrets."""
    user, _ = setup(server, "lag-a", "lag-b")
    value = "v" * 5_000
    connection = user.connect(timeout=20, buffer=4096)
    path = SECRETS.format("lag-a") + "?watch=1&timeoutSeconds=60"
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {user.token}\r\n\r\n".encode())

    def writes(number):
        for i in range(400):
            for namespace, name in (("lag-a", f"own-{number}"), ("lag-b", f"db-{number}")):
                body = {"stringData": {"k": f"{namespace}-{i}-{value}"}}
                yield "PATCH", f"{SECRETS.format(namespace)}/{name}", body, "application/merge-patch+json"

    for number in range(4):
        server.admin.ok("POST", SECRETS.format("lag-a"), secret(f"own-{number}"))
    threads = [threading.Thread(target=server.admin.many, args=(writes(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    server.admin.ok("POST", SECRETS.format("lag-a"), secret("last"))
    got, seen = bytearray(), 0
    while got.find(b'"name":"last"', max(seen - 100, 0)) < 0:
        seen = len(got)
        piece = connection.recv(1 << 16)
        if not piece:
            break
        got += piece
    connection.close()
    assert b'"name":"last"' in got, f"the watch ended after {len(got)} bytes"
    assert b'"namespace":"lag-b"' not in got, "events of another namespace"


def attack_continue_token_is_bound_to_its_request(server):
    """A continue token of an administrator's list must not carry a namespaced reader out of its namespace."""
    user, _ = setup(server, "page-a", "page-b")
    for path in ("/api/v1/secrets", SECRETS.format("page-b")):
        token = server.admin.get(path, limit=1).json["metadata"]["continue"]
        answer = user.get(SECRETS.format("page-a"), limit=500, **{"continue": token})
        if answer.code == 200:
            found = {item["metadata"]["namespace"] for item in answer.json["items"]}
            assert found <= {"page-a"}, f"{path}: {found}"
        else:
            assert answer.code in (400, 410), answer


def attack_namespace_prefixes_are_not_confused(server):
    """A namespace with a name that begins like another one's is another one."""
    user, before = setup(server, "pre", "pre-2")
    server.namespace("pre2")
    server.admin.ok("POST", SECRETS.format("pre2"), secret("near"))
    found = {item["metadata"]["namespace"] for item in user.get(SECRETS.format("pre")).json["items"]}
    assert found == {"pre"}, found
    events = user.events(SECRETS.format("pre") + f"?watch=1&resourceVersion={before}&timeoutSeconds=2", lambda _: False)
    assert {ns for ns, _ in namespaces(events)} == {"pre"}, events
