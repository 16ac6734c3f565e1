"""The official Python client against a cluster: create, list, watch, patch, apply, delete. Run by tests/python.rs."""
import sys

from kubernetes import client, config, dynamic, watch

config.load_kube_config(sys.argv[1])
core = client.CoreV1Api()
name, ns = "from-python", "default"

created = core.create_namespaced_config_map(
    ns, {"metadata": {"name": name, "labels": {"by": "python"}}, "data": {"k": "1"}}
)
assert created.data == {"k": "1"}, created
try:
    core.create_namespaced_config_map(ns, {"metadata": {"name": name}})
    raise SystemExit("a second create went through")
except client.ApiException as e:
    assert e.status == 409, e

listed = core.list_namespaced_config_map(ns, label_selector="by=python")
assert [c.metadata.name for c in listed.items] == [name], listed

core.patch_namespaced_config_map(name, ns, {"data": {"k": "2"}})
seen = None
w = watch.Watch()
for event in w.stream(
    core.list_namespaced_config_map, ns, resource_version=created.metadata.resource_version, timeout_seconds=30
):
    if event["object"].metadata.name == name:
        seen = (event["type"], event["object"].data["k"])
        w.stop()
assert seen == ("MODIFIED", "2"), seen

configmaps = dynamic.DynamicClient(client.ApiClient()).resources.get(api_version="v1", kind="ConfigMap")
applied = configmaps.server_side_apply(
    body={"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"l": "3"}},
    name=name,
    namespace=ns,
    field_manager="python-test",
)
assert dict(applied.data) == {"k": "2", "l": "3"}, applied

core.delete_namespaced_config_map(name, ns)
try:
    core.read_namespaced_config_map(name, ns)
    raise SystemExit("still there after its deletion")
except client.ApiException as e:
    assert e.status == 404, e

apps = client.AppsV1Api()
assert apps.get_api_resources().group_version == "apps/v1"
assert client.VersionApi().get_code().major == "1"
print("python client: ok")
