"""What is authorized is what is carried out: the query is read once."""

from server import rule

MAPS = "/api/v1/namespaces/{}/configmaps"
REPEATED = [
    "fieldSelector=&fieldSelector=metadata.name%3Ds1",
    "fieldSelector=metadata.name%3Ds1&fieldSelector=",
    "fieldSelector=metadata.name%3Ds1&fieldSelector=metadata.name%3Ds2",
    "fieldSelector=metadata.name%3Ds2&fieldSelector=metadata.name%3Ds1",
    "fieldSelector=metadata.name%3Ds1;fieldSelector=metadata.name%3Ds2",
    "fieldSelector=%zz&fieldSelector=metadata.name%3Ds1",
    "fieldSelector=metadata.name%3Ds1,metadata.name%3Ds2",
    "fieldselector=metadata.name%3Ds1",
]


def attack_resource_names_hold_for_repeated_selectors(server):
    """A right on one name is not a right on all, however often the selector is given."""
    names = rule(["get", "list", "watch"], ["configmaps"], names=["s1"])
    user = server.account("query-a", "one", [names])
    for name in ("s1", "s2"):
        server.admin.ok("POST", MAPS.format("query-a"), {"metadata": {"name": name}})
    for query in REPEATED:
        for watch in ("", "&watch=1&timeoutSeconds=1", "&watch=&timeoutSeconds=1", "&watch=f&timeoutSeconds=1"):
            answer = user.send("GET", f"{MAPS.format('query-a')}?{query}{watch}", timeout=10)
            assert b'"s2"' not in answer.body, f"{query}{watch}: {answer}"
            assert answer.code in (200, 400, 403), answer


def attack_dry_run_is_never_carried_out(server):
    """A dry run in any spelling changes nothing."""
    server.namespace("query-b")
    for i, query in enumerate(["dryRun=All", "dryRun=All&dryRun=", "dryRun=", "dryRun=&dryRun=All", "dryRun=all"]):
        answer = server.admin.json("POST", f"{MAPS.format('query-b')}?{query}", {"metadata": {"name": f"m{i}"}})
        found = server.admin.get(f"{MAPS.format('query-b')}/m{i}")
        assert found.code == 404, f"{query}: {answer}"


def attack_preconditions_in_the_query_hold(server):
    """A DELETE with another uid or resourceVersion in its query deletes nothing."""
    server.namespace("query-c")
    path = f"{MAPS.format('query-c')}/kept"
    server.admin.ok("POST", MAPS.format("query-c"), {"metadata": {"name": "kept"}})
    for query in ("uid=another", "resourceVersion=1"):
        for target in (path, MAPS.format("query-c")):
            answer = server.admin.send("DELETE", f"{target}?{query}")
            assert server.admin.get(path).code == 200, f"DELETE {target}?{query}: {answer}"
