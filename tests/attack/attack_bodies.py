"""Bodies that are large, deep or malformed are refused at little cost."""

import gzip
import json

MAPS = "/api/v1/namespaces/{}/configmaps"


def refused(answer, *codes):
    assert answer.code in codes, answer
    assert answer.json["kind"] == "Status", answer


def attack_malformed_bodies_get_a_status(server):
    """What cannot be decoded is a 400 or 415 with a Status."""
    path = server.namespace("body-a") + "/configmaps"
    for body in (b"", b"{", b"[]", b"null", b'"x"', b"{}}", b"\xff\xfe{}", b'{"metadata":{"name":"a"},"data":7}', b'{"metadata":{"name":"\xff"}}'):
        refused(server.admin.json("POST", path, body), 400, 422)
    for content in ("text/plain", "application/xml", "a/b;c=d", "application/cbor", "multipart/form-data"):
        refused(server.admin.json("POST", path, b"{}", content=content), 415)
    refused(server.admin.json("POST", path, b"k8s\0" + b"\xff" * 100, content="application/vnd.kubernetes.protobuf"), 400)


def attack_deep_bodies_are_refused(server):
    """Ten thousand levels of nesting, in JSON, YAML, patches and CRD schemas."""
    path = server.namespace("body-b") + "/configmaps"
    deep = b'{"a":' * 10_000 + b"1" + b"}" * 10_000
    refused(server.admin.json("POST", path, deep), 400)
    refused(server.admin.json("POST", path, b"[" * 100_000), 400)
    refused(server.admin.json("POST", path, b"a: " + b"[" * 10_000 + b"]" * 10_000, content="application/yaml"), 400)
    server.admin.ok("POST", path, {"metadata": {"name": "m"}})
    refused(server.admin.json("PATCH", f"{path}/m", deep, "application/merge-patch+json"), 400)
    refused(server.admin.json("PATCH", f"{path}/m", deep, "application/strategic-merge-patch+json"), 400)


def attack_yaml_aliases_do_not_multiply(server):
    """A billion laughs."""
    path = server.namespace("body-c") + "/configmaps"
    text = "a0: &a0 [" + ",".join(["x"] * 10) + "]\n"
    for i in range(1, 12):
        text += f"a{i}: &a{i} [" + ",".join([f"*a{i - 1}"] * 10) + "]\n"
    refused(server.admin.json("POST", path, text, content="application/yaml"), 400, 413)
    refused(server.admin.json("PATCH", f"{path}/a?fieldManager=m", text, "application/apply-patch+yaml"), 400, 413)


def attack_json_patch_copies_do_not_multiply(server):
    """Copies that double a document thirty times."""
    path = server.namespace("body-d") + "/configmaps"
    server.admin.ok("POST", path, {"metadata": {"name": "m"}, "data": {"a": "x" * 1000}})
    patch = [{"op": "copy", "from": "/data", "path": f"/data/d{i}"} for i in range(30)]
    refused(server.admin.json("PATCH", f"{path}/m", patch, "application/json-patch+json"), 400, 413, 422)
    many = [{"op": "test", "path": "/data/a", "value": "x"}] * 20_000
    refused(server.admin.json("PATCH", f"{path}/m", many, "application/json-patch+json"), 400, 413)


def attack_large_bodies_are_refused_readably(server):
    """A body over the limit is answered with 413 that a client which is still sending can read."""
    path = server.namespace("body-e") + "/configmaps"
    for size in (4_000_000, 20_000_000):
        body = json.dumps({"metadata": {"name": "big"}, "data": {"a": "x" * size}})
        try:
            answer = server.admin.json("POST", path, body)
        except OSError as error:
            # Far over the limit a server need not read on.
            assert size > 4_000_000, f"{size}: {error!r}"
            continue
        refused(answer, 413)


def attack_compressed_bodies_do_not_expand(server):
    """A gzip body is refused or counted by what it expands to."""
    path = server.namespace("body-f") + "/configmaps"
    body = gzip.compress(b'{"metadata":{"name":"z"},"data":{"a":"' + b"x" * 200_000_000 + b'"}}')
    answer = server.admin.send("POST", path, body, {"Content-Type": "application/json", "Content-Encoding": "gzip"})
    assert answer.code in (400, 413, 415), answer
