"""Small requests for much memory or much work: defaults, maps, aliases, managers, patterns, long lists."""

import concurrent.futures
import http.client
import json

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def define(server, plural, schema):
    """A custom resource of this schema, served; returns the path of its objects in a namespace of its own."""
    group = f"{plural}.example.com"
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "kind": plural.capitalize()}
    spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
    server.admin.ok("POST", CRDS, {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                                   "metadata": {"name": f"{plural}.{group}"}, "spec": spec})
    server.namespace(plural)
    path = f"/apis/{group}/v1/namespaces/{plural}/{plural}"
    server.wait(lambda: server.admin.get(path).code == 200)
    return path


def redefine(server, plural, schema):
    path = f"{CRDS}/{plural}.{plural}.example.com"
    crd = server.admin.ok("GET", path)
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema
    server.admin.ok("PUT", path, crd)


def custom(plural, name, **fields):
    return {"apiVersion": f"{plural}.example.com/v1", "kind": plural.capitalize(), "metadata": {"name": name}, **fields}


def attack_defaults_do_not_multiply(server):
    """Twenty thousand empty elements with 60 defaults of 10 kB each: 12 GB."""
    items = {"type": "object", "properties": {f"p{i}": {"type": "string", "default": "x" * 10_000} for i in range(60)}}
    path = define(server, "defaults", {"type": "object", "properties": {"x": {"type": "array", "items": items}}})
    many = [{}] * 20_000
    assert server.admin.json("POST", path, custom("defaults", "many", x=many)).code == 413
    server.admin.ok("POST", path, custom("defaults", "few", x=[{}]))
    merge = server.admin.json("PATCH", f"{path}/few", {"x": many}, "application/merge-patch+json")
    assert merge.code == 413, merge
    patch = [{"op": "add", "path": "/x", "value": many}]
    assert server.admin.json("PATCH", f"{path}/few", patch, "application/json-patch+json").code == 413
    applied = server.admin.json("PATCH", f"{path}/few?fieldManager=m&force=true", custom("defaults", "few", x=many),
                                "application/apply-patch+yaml")
    assert applied.code == 413, applied


def attack_defaults_of_stored_objects_do_not_multiply(server):
    """Three hundred small objects that a new definition gives 1.4 MB each."""
    fields = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    path = define(server, "grown", fields)
    objects = [("POST", path, custom("grown", f"n{i}"), "application/json") for i in range(300)]
    server.admin.many(objects)
    redefine(server, "grown", {**fields, "properties": {"fill": {"type": "string", "default": "y" * 1_400_000}}})
    server.wait(lambda: len(server.admin.get(f"{path}/n0").body) > 1_400_000)
    for query, headers in (("", {}), ("?pretty=true", {}), ("", {"Accept": "application/yaml"})):
        connection = http.client.HTTPSConnection(server.host, server.port, context=server.admin.tls, timeout=60)
        connection.request("GET", path + query, headers=headers)
        response, length = connection.getresponse(), 0
        while piece := response.read(1 << 20):
            length += len(piece)
        connection.close()
        assert response.status == 200 and length > 300 * 1_400_000, (response.status, length)


def attack_tiny_maps_do_not_multiply(server):
    """Three million bytes of maps with one entry, a hundred bytes of memory for each of them."""
    path = define(server, "tiny", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    maps = ",".join(['{"":0}'] * 430_000)
    body = json.dumps(custom("tiny", "a", x=[]))[:-2] + maps + "]}"
    assert server.admin.json("POST", path, body).code == 413
    text = f"{json.dumps(custom('tiny', 'b'))[:-1]}, \"a\": &a {'x' * 1_000_000}, \"x\": [{','.join(['*a'] * 1_000)}]}}"
    assert server.admin.json("POST", path, text, content="application/yaml").code == 400
    pods = server.namespace("tiny") + "/pods"
    empty = '{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[' + ",".join(["{}"] * 900_000) + "]}}"
    assert server.admin.json("POST", pods, empty).code in (413, 422)


def attack_objects_have_a_size(server):
    """What etcd would not take is not stored."""
    path = define(server, "sized", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    for size, text in ((1_600_000, "etcdserver: request is too large"), (2_600_000, "trying to send message larger than max")):
        answer = server.admin.json("POST", path, custom("sized", "a", x="x" * size))
        assert answer.code == 500 and text in answer.message, answer
    server.admin.ok("POST", path, custom("sized", "b", x="x" * 1_500_000))


def attack_managers_cost_no_more_than_they_are(server):
    """Nineteen thousand managers of one object, each of its own version."""
    maps = server.namespace("managers") + "/configmaps"
    made = server.admin.ok("POST", maps, {"metadata": {"name": "m"}, "data": {"a": "b"}})
    entry = lambda i: {"manager": f"m{i}", "operation": "Apply", "apiVersion": f"v{i}", "fieldsType": "FieldsV1",
                       "fieldsV1": {"f:data": {f"f:k{i}": {}}}}
    for count in (8_000, 19_000):
        before = server.cpu()
        made["metadata"]["managedFields"] = [entry(i) for i in range(count)]
        made["metadata"].pop("resourceVersion", None)
        answer = server.admin.json("PUT", f"{maps}/m", made)
        used = server.cpu() - before
        assert answer.code in (200, 500), answer
        assert used < 3, f"{count} managers: {used:.1f} s"


def attack_list_patches_cost_no_more_than_they_are(server):
    """A hundred thousand elements that are merged into a list."""
    maps = server.namespace("lists") + "/configmaps"
    finalizers = [f"example.com/f{i}" for i in range(20_000)]
    server.admin.ok("POST", maps, {"metadata": {"name": "m", "finalizers": finalizers[:1000]}})
    before = server.cpu()
    patch = {"metadata": {"finalizers": [f"example.com/g{i}" for i in range(100_000)]}}
    answer = server.admin.json("PATCH", f"{maps}/m", patch, "application/strategic-merge-patch+json")
    moves = [{"op": "add", "path": "/metadata/finalizers/0", "value": "example.com/z"}] * 10_000
    server.admin.json("PATCH", f"{maps}/m", moves, "application/json-patch+json")
    used = server.cpu() - before
    assert answer.code in (200, 413, 422, 500), answer
    assert used < 5, f"{used:.1f} s"
    server.admin.json("PATCH", f"{maps}/m", {"metadata": {"finalizers": None}}, "application/merge-patch+json")


def attack_patterns_cost_no_more_than_they_are(server):
    """Two hundred wide patterns in one definition: refused or accepted in a fraction of a second."""
    before = server.cpu()
    properties = {f"p{i}": {"type": "string", "pattern": f"^\\p{{L}}{{1,{30 + i % 10}}}$"} for i in range(200)}
    spec = {"group": "wide.example.com", "scope": "Namespaced", "names": {"plural": "wide", "kind": "Wide"},
            "versions": [{"name": "v1", "served": True, "storage": True,
                          "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}}]}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
           "metadata": {"name": "wide.wide.example.com"}, "spec": spec}
    answer = server.admin.json("POST", CRDS, crd)
    used = server.cpu() - before
    assert answer.code in (201, 422), answer
    assert used < 2, f"{used:.1f} s"


def attack_many_large_bodies_at_once(server):
    """Forty bodies at once that take a hundred megabytes each when they are decoded."""
    path = define(server, "crowd", {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    maps = ",".join(['{"":0}'] * 60_000)
    body = lambda i: json.dumps(custom("crowd", f"n{i}", x=[]))[:-2] + maps + "]}"
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        answers = list(pool.map(lambda i: server.admin.json("POST", path, body(i)), range(80)))
    codes = {answer.code for answer in answers}
    assert codes <= {201, 429} and 201 in codes, codes
    assert all(answer.headers.get("retry-after") for answer in answers if answer.code == 429)
