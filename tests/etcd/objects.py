"""The objects of all kinds of a server in a file, and two such files compared.

    objects.py see KUBECTL KUBECONFIG FILE PREFIX...
    objects.py compare FILE FILE
    objects.py plain ETCD PROVIDER
"""

import base64
import json
import subprocess
import sys
import urllib.request

# The network part of the service CIDRs, by which addresses are found.
ADDRESSES = ("10.201.", "10.202.")

# Keys of no resource, which no server encrypts.
UNENCRYPTED = ("/registry/ranges/", "/registry/masterleases/", "/registry/peerserverleases/")

# Fields that upstream's server of the version before does not have.
NEW = {"storage.k8s.io/v1 csinodes .status"}


def see(kubectl, kubeconfig, path, *prefixes):
    """Writes all objects with one of the prefixes in their names, by resource with its version, name and namespace."""
    def run(*arguments):
        return subprocess.run([kubectl, "--kubeconfig", kubeconfig, *arguments], check=True, capture_output=True, text=True).stdout

    def raw(url):
        return json.loads(run("get", "--raw", url))

    versions = [("/api/v1", "v1")]
    for group in raw("/apis")["groups"]:
        versions += [(f"/apis/{version['groupVersion']}", version["groupVersion"]) for version in group["versions"]]
    found = {}
    for url, version in versions:
        try:
            resources = raw(url)["resources"]
        except subprocess.CalledProcessError:
            # The API service of the objects has no server.
            continue
        for resource in resources:
            if "/" in resource["name"] or not {"create", "list"} <= set(resource["verbs"]):
                continue
            objects = found.setdefault(f"{version} {resource['name']}", {})
            for item in raw(f"{url}/{resource['name']}")["items"]:
                metadata = item["metadata"]
                if any(prefix in metadata["name"] for prefix in prefixes) or metadata["name"].startswith(ADDRESSES):
                    objects[f"{metadata.get('namespace', '')}/{metadata['name']}"] = item
    with open(path, "w") as file:
        json.dump(found, file)


def differences(path, one, other):
    """Paths at which two values differ, with both."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(f"{path}.{key}", one.get(key), other.get(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other)):
            yield from differences(f"{path}[{index}]", a, b)
    elif one != other:
        yield path, f"{json.dumps(one)[:120]} != {json.dumps(other)[:120]}"


def compare(first, second):
    """Prints how objects differ. Resources and versions that only one of both serves are named."""
    one, other = (json.load(open(path)) for path in (first, second))
    only = sorted(one.keys() ^ other.keys())
    if only:
        print("only one of both serves", ", ".join(only))
    count, kinds, wrong = 0, 0, 0
    for resource in sorted(one.keys() & other.keys()):
        kinds += bool(one[resource])
        for name in sorted(one[resource].keys() | other[resource].keys()):
            count += 1
            for path, values in differences("", one[resource].get(name), other[resource].get(name)):
                if f"{resource} {path}" not in NEW:
                    wrong += 1
                    print(f"FAIL  {resource} {name} {path}: {values}")
    print(f"{count} objects of {kinds} kinds and versions, {wrong} differences")
    assert kinds > 40, "too few kinds were compared"
    return wrong


def plain(etcd, provider):
    """Prints the keys below /registry with values that do not begin as those that a provider encrypts."""
    def encode(text):
        return base64.b64encode(text.encode()).decode()

    body = json.dumps({"key": encode("/registry/"), "range_end": encode("/registry0")}).encode()
    request = urllib.request.Request(f"{etcd}/v3/kv/range", body, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
        pairs = json.load(answer)["kvs"]
    assert len(pairs) > 100, "too few keys were read"
    prefix = f"k8s:enc:{provider}:v1:key1:".encode()
    for pair in pairs:
        key = base64.b64decode(pair["key"]).decode()
        if not key.startswith(UNENCRYPTED) and not base64.b64decode(pair.get("value", "")).startswith(prefix):
            print(key)


if sys.argv[1] == "see":
    see(*sys.argv[2:])
elif sys.argv[1] == "plain":
    plain(*sys.argv[2:])
else:
    sys.exit(min(compare(*sys.argv[2:]), 1))
