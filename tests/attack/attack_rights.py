"""Few rights stay few: no way to gain more through roles, tokens, impersonation, certificates or pods."""

import base64
import os
import subprocess
import tempfile

from client import Client
from server import rule

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CSR = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


def refused(answer, *codes):
    assert answer.code in (codes or (403,)), answer


def attack_roles_cannot_grant_more_than_their_author_has(server):
    """Neither a role, nor a binding, nor an update or patch of one grants rights that its author lacks."""
    groups = ("rbac.authorization.k8s.io",)
    write = ["create", "update", "patch", "get", "delete"]
    user = server.account("rights-a", "author", [rule(write, ["roles", "rolebindings"], groups)])
    roles = f"{RBAC}/namespaces/rights-a/roles"
    refused(user.json("POST", roles, {"metadata": {"name": "all"}, "rules": [EVERYTHING]}))
    user.ok("POST", roles, {"metadata": {"name": "none"}, "rules": []})
    refused(user.json("PATCH", f"{roles}/none", {"rules": [EVERYTHING]}, "application/merge-patch+json"))
    patch = [{"op": "add", "path": "/rules", "value": [EVERYTHING]}]
    refused(user.json("PATCH", f"{roles}/none", patch, "application/json-patch+json"))
    applied = {"apiVersion": groups[0] + "/v1", "kind": "Role", "metadata": {"name": "none"}, "rules": [EVERYTHING]}
    query = "?fieldManager=a&force=true"
    refused(user.json("PATCH", f"{roles}/none{query}", applied, "application/apply-patch+yaml"))
    refused(user.json("PATCH", f"{roles}/fresh{query}", {**applied, "metadata": {"name": "fresh"}}, "application/apply-patch+yaml"))
    subject = {"kind": "ServiceAccount", "name": "author", "namespace": "rights-a"}
    for kind, name in (("ClusterRole", "cluster-admin"), ("ClusterRole", "admin"), ("ClusterRole", "edit")):
        reference = {"apiGroup": groups[0], "kind": kind, "name": name}
        binding = {"metadata": {"name": "up"}, "roleRef": reference, "subjects": [subject]}
        refused(user.json("POST", f"{RBAC}/namespaces/rights-a/rolebindings", binding))
    assert user.get("/api/v1/namespaces/rights-a/secrets").code == 403


def attack_dry_runs_and_reviews_grant_nothing(server):
    """A review tells rights and gives none; a dry run of a refused write is refused."""
    user = server.account("rights-b", "asker")
    review = {"spec": {"resourceAttributes": {"verb": "*", "resource": "*", "group": "*"}}}
    answer = user.ok("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    assert answer["status"]["allowed"] is False, answer
    refused(user.json("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {**review["spec"], "user": "admin"}}))
    refused(user.json("POST", "/api/v1/namespaces/rights-b/configmaps?dryRun=All", {"metadata": {"name": "a"}}))


def attack_impersonation_needs_its_right(server):
    """Impersonation headers in every spelling are authorized or refused; the front proxy's headers are not taken."""
    user = server.account("rights-c", "actor")
    for headers in (
        {"Impersonate-User": "admin"},
        {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
        {"Impersonate-Group": "system:masters"},
        {"Impersonate-Uid": "1"},
        {"Impersonate-Extra-scopes": "all"},
        {"impersonate-user": "system:serviceaccount:kube-system:default"},
    ):
        answer = user.send("GET", "/api/v1/namespaces/kube-system/secrets", headers=headers)
        assert answer.code in (400, 403, 500), f"{headers}: {answer}"
    for headers in (
        {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"},
        {"X_Remote_User": "admin", "X_Remote_Group": "system:masters"},
    ):
        for client, code in ((user, 403), (server.anonymous, (401, 403))):
            answer = client.send("GET", "/api/v1/namespaces/kube-system/secrets", headers=headers)
            refused(answer, *(code if isinstance(code, tuple) else (code,)))


def attack_tokens_end_with_their_objects(server):
    """A token is refused without its account, with another's signature, algorithm or audience."""
    user = server.account("rights-d", "leaver")
    path = "/api/v1/namespaces/rights-d/serviceaccounts/leaver"
    review = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
    assert user.json("POST", review, {}).code == 201
    head, body, signature = user.token.split(".")
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=")
    for token in (f"{none}.{body}.", f"{none}.{body}.{signature}", f"{head}.{body}.", f"{head}.{body}.{signature[::-1]}", "x", ""):
        forged = Client(server.host, server.port, server.authority, token=token or " ")
        assert forged.json("POST", review, {}).code == 401 or not token, token
    other = server.admin.ok("POST", path + "/token", {"spec": {"audiences": ["other.example"]}})["status"]["token"]
    assert Client(server.host, server.port, server.authority, token=other).json("POST", review, {}).code == 401
    server.admin.ok("DELETE", path)
    assert user.json("POST", review, {}).code == 401


def node(server, name):
    """A client with a node's certificate, signed by the cluster through its own API."""
    folder = tempfile.mkdtemp(dir=server.scratch.name)
    key, request = os.path.join(folder, "key"), os.path.join(folder, "csr")
    subject = f"/O=system:nodes/CN=system:node:{name}"
    command = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(command + ["-keyout", key, "-out", request, "-subj", subject], check=True, capture_output=True)
    encoded = base64.b64encode(open(request, "rb").read()).decode()
    usages = ["digital signature", "client auth"]
    spec = {"request": encoded, "signerName": "kubernetes.io/kube-apiserver-client-kubelet", "usages": usages}
    server.admin.ok("POST", CSR, {"metadata": {"name": f"node-{name}"}, "spec": spec})
    condition = {"type": "Approved", "status": "True", "reason": "Attack", "message": ""}
    # A patch without a resourceVersion: controllers write to the request, too.
    approval = {"status": {"conditions": [condition]}}
    server.admin.ok("PATCH", f"{CSR}/node-{name}/approval", approval, content="application/merge-patch+json")
    server.wait(lambda: server.admin.get(f"{CSR}/node-{name}").json["status"].get("certificate"))
    certificate = base64.b64decode(server.admin.get(f"{CSR}/node-{name}").json["status"]["certificate"]).decode()
    both = os.path.join(folder, "pem")
    with open(both, "w") as file:
        file.write(certificate + open(key).read())
    return Client(server.host, server.port, server.authority, certificate=both)


def attack_a_node_reads_and_writes_only_what_is_its_own(shared):
    """A kubelet's certificate gives the node's own objects and those of its pods, nothing of other nodes."""
    from server import Server

    server = Server(shared.binary, shared.memory, ["--nodes", "sim:1"])
    try:
        kubelet = node(server, "evil")
        kubelet.ok("POST", "/api/v1/nodes", {"metadata": {"name": "evil"}})
        other = server.admin.get("/api/v1/nodes").json["items"]
        other = next(item["metadata"]["name"] for item in other if item["metadata"]["name"] != "evil")
        core = "/api/v1/namespaces/default"
        server.admin.ok("POST", f"{core}/secrets", {"metadata": {"name": "s"}})
        for path in ("/api/v1/secrets", f"{core}/secrets", f"{core}/secrets/s", "/api/v1/namespaces/kube-system/secrets"):
            refused(kubelet.get(path))
        labels = {"metadata": {"labels": {"node-restriction.kubernetes.io/x": "1"}}}
        merge = "application/merge-patch+json"
        refused(kubelet.json("PATCH", "/api/v1/nodes/evil", labels, merge))
        refused(kubelet.json("PATCH", f"/api/v1/nodes/{other}", {"metadata": {"labels": {"a": "b"}}}, merge))
        refused(kubelet.json("PATCH", f"/api/v1/nodes/{other}/status", {"status": {}}, merge))
        refused(kubelet.send("DELETE", f"/api/v1/nodes/{other}"))
        container = {"name": "c", "image": "i"}
        pod = {"metadata": {"name": "mirror"}, "spec": {"nodeName": other, "containers": [container]}}
        refused(kubelet.json("POST", f"{core}/pods", pod))
        pod["spec"]["nodeName"] = "evil"
        refused(kubelet.json("POST", f"{core}/pods", pod))
        refused(kubelet.json("POST", f"{core}/serviceaccounts/default/token", {"spec": {}}), 403, 400)
        lease = {"metadata": {"name": other, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": "evil"}}
        leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        refused(kubelet.json("PATCH", f"{leases}/{other}", {"spec": {"holderIdentity": "evil"}}, merge))
        refused(kubelet.json("POST", leases, lease), 403, 409)
    finally:
        server.stop()


def attack_certificates_do_not_name_the_masters(server):
    """No signer signs system:masters, another node's name or a foreign usage for a requester without the right."""
    groups = ("certificates.k8s.io",)
    rules = [rule(["create", "get"], ["certificatesigningrequests"], groups)]
    user = server.account("rights-e", "requester", cluster_rules=rules)
    with tempfile.TemporaryDirectory() as folder:
        key, request = os.path.join(folder, "key"), os.path.join(folder, "csr")
        command = ["openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-keyout", key, "-out", request, "-subj", "/O=system:masters/CN=root"]
        subprocess.run(command, check=True, capture_output=True)
        encoded = base64.b64encode(open(request, "rb").read()).decode()
    spec = {"request": encoded, "usages": ["client auth"], "signerName": "kubernetes.io/kube-apiserver-client"}
    refused(user.json("POST", CSR, {"metadata": {"name": "masters"}, "spec": spec}))
    spec["signerName"] = "example.com/own"
    user.ok("POST", CSR, {"metadata": {"name": "masters"}, "spec": spec})
    approval = {"metadata": {"name": "masters"}, "status": {"conditions": [{"type": "Approved", "status": "True"}]}}
    refused(user.json("PUT", f"{CSR}/masters/approval", approval))


def attack_anonymous_sees_health_and_version_only(server):
    """Without credentials there is health, version and cluster-info, nothing else."""
    for path in ("/api", "/apis", "/api/v1/namespaces", "/openapi/v2", "/openapi/v3", "/metrics", "/logs", "/debug/pprof/"):
        refused(server.anonymous.get(path), 401, 403)
    for path in ("/livez", "/readyz", "/healthz", "/version"):
        assert server.anonymous.get(path).code == 200, path
