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
            # A refusal names what was asked for.
            assert answer.code == 403 or b'"s2"' not in answer.body, f"{query}{watch}: {answer}"
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


def attack_a_right_to_list_is_no_right_to_watch(server):
    """However a watch is spelt, it is authorized as one; a list neither passes for a watch."""
    lister = server.account("query-d", "lister", [rule(["list"], ["configmaps"])])
    watcher = server.account("query-d", "watcher", [rule(["watch"], ["configmaps"])])
    path = MAPS.format("query-d")
    for query in ("watch", "watch=", "watch=f", "watch=no", "watch=1&watch=0", "watch=&watch=false", "%77atch=1"):
        answer = lister.send("GET", f"{path}?{query}&timeoutSeconds=1", timeout=10)
        assert answer.code == 403, f"{query}: {answer}"
    for query in ("", "watch=0&watch=1", "watch=FALSE", "watch=1;", "watch=%zz", "Watch=1"):
        answer = watcher.send("GET", f"{path}?{query}&timeoutSeconds=1", timeout=10)
        assert answer.code == 403, f"{query}: {answer}"


def attack_nothing_is_written_where_a_path_says_watch(server):
    """A verb in the path is what is authorized, whatever the method is: nothing else is carried out."""
    server.namespace("query-e")
    path = "/api/v1/watch/namespaces/query-e/configmaps"
    for method, suffix in (("POST", ""), ("PUT", "/w"), ("PATCH", "/w"), ("DELETE", "/w"), ("DELETE", "")):
        answer = server.admin.send(method, f"{path}{suffix}", b'{"metadata":{"name":"w"}}')
        assert answer.code == 405, f"{method} {suffix}: {answer}"
    assert server.admin.get(f"{MAPS.format('query-e')}/w").code == 404
