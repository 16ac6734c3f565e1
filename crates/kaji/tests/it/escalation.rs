//! Ways by which a user with few rights may try to get more: each is refused.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person, user},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kaji_auth::names::{AUTHENTICATED, NODES};
use kaji_resource::UserInfo;
use serde_json::{Value, json};
use std::fmt::Write;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const CSR: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const TEAM: &str = "/api/v1/namespaces/team";
const SYSTEM: &str = "/api/v1/namespaces/kube-system";

fn rule(groups: &[&str], resources: &[&str], verbs: &[&str], names: &[&str]) -> Value {
    json!({"apiGroups": groups, "resources": resources, "verbs": verbs, "resourceNames": names})
}

/// Grants a user these rules in all namespaces.
async fn grant(test: &TestCluster, name: &str, rules: Value) {
    let role = json!({"metadata": {"name": name}, "rules": rules});
    ok(test, &admin(), &format!("POST {RBAC}/clusterroles"), role).await;
    ok(test, &admin(), &format!("POST {RBAC}/clusterrolebindings"), binding(name, name, name)).await;
}

fn binding(name: &str, role: &str, user: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    })
}

/// A request for a certificate of this subject.
fn csr(name: &str, signer: &str, common: &str, organization: &str) -> Value {
    let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
    params.distinguished_name.push(rcgen::DnType::CommonName, common);
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"request": STANDARD.encode(pem), "signerName": format!("kubernetes.io/{signer}"),
            "usages": ["digital signature", "client auth"]},
    })
}

fn pod(name: &str, node: &str, secret: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "nodeName": node,
            "serviceAccountName": name,
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "secret": {"secretName": secret}}],
        },
    })
}

/// A namespace `team` with pods on two nodes and their secrets, and people with few rights:
/// `ann` administers the namespace, `ed` edits and `vera` views it; `rita` writes roles and bindings, `ivan` may act as `bob`, `pat` patches pods.
async fn world() -> TestCluster {
    let test = TestCluster::start(0).await;
    let root = admin();
    let writes = &["get", "list", "create", "update", "patch", "delete"];
    ok(&test, &root, "POST /api/v1/namespaces", json!({"metadata": {"name": "team"}})).await;
    for name in ["one", "two"] {
        let account = json!({"metadata": {"name": name}});
        ok(&test, &root, &format!("POST {TEAM}/serviceaccounts"), account.clone()).await;
        ok(&test, &root, &format!("POST {TEAM}/secrets"), account.clone()).await;
        ok(&test, &root, "POST /api/v1/nodes", account).await;
        ok(&test, &root, &format!("POST {TEAM}/pods"), pod(name, name, name)).await;
    }
    for (name, role) in [("ann", "admin"), ("ed", "edit"), ("vera", "view")] {
        let path = format!("POST {RBAC}/namespaces/team/rolebindings");
        // Controllers gather these roles; here none run.
        let rules = match role {
            "view" => json!([rule(
                &["", "apps"],
                &["pods", "services", "deployments", "serviceaccounts"],
                &["get", "list", "watch"],
                &[]
            )]),
            "edit" => json!([rule(
                &["", "apps"],
                &["pods", "services", "deployments", "secrets", "serviceaccounts"],
                &["*"],
                &[]
            )]),
            _ => json!([rule(&["*"], &["*"], writes, &[])]),
        };
        let own = json!({"metadata": {"name": format!("team-{role}")}, "rules": rules});
        ok(&test, &root, &format!("POST {RBAC}/clusterroles"), own).await;
        ok(&test, &root, &path, binding(name, &format!("team-{role}"), name)).await;
    }
    let all = &["roles", "rolebindings", "clusterroles", "clusterrolebindings"];
    grant(
        &test,
        "rita",
        json!([
            rule(&["rbac.authorization.k8s.io"], all, writes, &[]),
            rule(&[""], &["pods"], &["get"], &[])
        ]),
    )
    .await;
    grant(&test, "ivan", json!([rule(&[""], &["users"], &["impersonate"], &["bob"])])).await;
    grant(
        &test,
        "pat",
        json!([
            rule(&[""], &["pods"], &["get", "update", "patch"], &[]),
            rule(&[""], &["configmaps"], &["list", "get"], &["mine"])
        ]),
    )
    .await;
    let requests = [
        "certificatesigningrequests",
        "certificatesigningrequests/approval",
        "certificatesigningrequests/status",
    ];
    let all = ["create", "update", "patch"];
    grant(&test, "carl", json!([rule(&["certificates.k8s.io"], &requests, &all, &[])])).await;
    ok(&test, &root, &format!("POST {CSR}"), csr("asked", "kube-apiserver-client", "carl", "devs")).await;
    test
}

/// What is tried, and what was said.
struct Tries<'a> {
    test: &'a TestCluster,
    text: String,
}

impl Tries<'_> {
    async fn of(&mut self, user: &UserInfo, request: &str, body: Value) {
        let (code, answer) = ask(self.test, user, request, &body).await;
        let said = answer["message"].as_str().or(answer.as_str()).unwrap_or_default();
        assert!((400..500).contains(&code), "{} {request}: {code} {answer}", user.name);
        writeln!(self.text, "{} {}\n  {code} {said}", user.name, request.replace('\n', " + ")).unwrap();
    }
}

fn tries(test: &TestCluster) -> Tries<'_> {
    Tries { test, text: String::new() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_and_bindings_do_not_escalate() {
    let test = world().await;
    let (rita, ann) = (person("rita"), person("ann"));
    let mut t = tries(&test);
    let secrets = json!([rule(&[""], &["secrets"], &["get"], &[])]);
    let role = |rules: &Value| json!({"metadata": {"name": "r"}, "rules": rules});
    t.of(&rita, &format!("POST {RBAC}/clusterroles"), role(&secrets)).await;
    t.of(&rita, &format!("POST {RBAC}/namespaces/team/roles"), role(&secrets)).await;
    let own = json!({"rules": [rule(&["*"], &["*"], &["*"], &[])]});
    t.of(&rita, &format!("PATCH {RBAC}/clusterroles/rita"), own).await;
    let verbs = json!({"rules": [rule(&["rbac.authorization.k8s.io"], &["clusterroles"], &["escalate", "bind"], &[])]});
    t.of(&rita, &format!("PATCH {RBAC}/clusterroles/rita"), verbs).await;
    t.of(&rita, &format!("POST {RBAC}/clusterrolebindings"), binding("b", "cluster-admin", "rita")).await;
    t.of(
        &rita,
        &format!("POST {RBAC}/namespaces/kube-system/rolebindings"),
        binding("b", "team-edit", "rita"),
    )
    .await;
    t.of(&rita, &format!("POST {RBAC}/clusterrolebindings"), binding("b", "not-there-yet", "rita")).await;
    let subjects = json!({"subjects": binding("", "", "rita")["subjects"]});
    t.of(&rita, &format!("PATCH {RBAC}/clusterrolebindings/cluster-admin"), subjects).await;
    let other = json!({"roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}});
    t.of(&rita, &format!("PATCH {RBAC}/clusterrolebindings/rita"), other).await;
    let gathers = json!({"metadata": {"name": "r"}, "rules": null, "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    t.of(&rita, &format!("POST {RBAC}/clusterroles"), gathers).await;
    let gathered = json!({"metadata": {"name": "r", "labels": {"rbac.authorization.k8s.io/aggregate-to-view": "true"}}, "rules": secrets});
    t.of(&rita, &format!("POST {RBAC}/clusterroles"), gathered).await;
    // All rights in one namespace are none in others.
    t.of(&ann, &format!("POST {RBAC}/clusterroles"), role(&secrets)).await;
    t.of(&ann, &format!("POST {RBAC}/clusterrolebindings"), binding("b", "team-admin", "ann")).await;
    t.of(
        &ann,
        &format!("POST {RBAC}/namespaces/kube-system/rolebindings"),
        binding("b", "team-admin", "ann"),
    )
    .await;
    t.of(&ann, &format!("POST {RBAC}/namespaces/team/rolebindings"), binding("b", "cluster-admin", "ann"))
        .await;
    let text = t.text;
    expect_test::expect![[r#"
        rita POST /apis/rbac.authorization.k8s.io/v1/clusterroles
          403 clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["secrets"], Verbs:["get"]}
        rita POST /apis/rbac.authorization.k8s.io/v1/namespaces/team/roles
          403 roles.rbac.authorization.k8s.io "r" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["secrets"], Verbs:["get"]}
        rita PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/rita
          403 clusterroles.rbac.authorization.k8s.io "rita" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:["*"], Resources:["*"], Verbs:["*"]}
        rita PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/rita
          403 clusterroles.rbac.authorization.k8s.io "rita" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:["rbac.authorization.k8s.io"], Resources:["clusterroles"], Verbs:["escalate" "bind"]}
        rita POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings
          403 clusterrolebindings.rbac.authorization.k8s.io "b" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:["*"], Resources:["*"], Verbs:["*"]}
        {NonResourceURLs:["*"], Verbs:["*"]}
        rita POST /apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings
          403 rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["deployments"], Verbs:["*"]}
        {APIGroups:[""], Resources:["pods"], Verbs:["*"]}
        {APIGroups:[""], Resources:["secrets"], Verbs:["*"]}
        {APIGroups:[""], Resources:["serviceaccounts"], Verbs:["*"]}
        {APIGroups:[""], Resources:["services"], Verbs:["*"]}
        {APIGroups:["apps"], Resources:["deployments"], Verbs:["*"]}
        {APIGroups:["apps"], Resources:["pods"], Verbs:["*"]}
        {APIGroups:["apps"], Resources:["secrets"], Verbs:["*"]}
        {APIGroups:["apps"], Resources:["serviceaccounts"], Verbs:["*"]}
        {APIGroups:["apps"], Resources:["services"], Verbs:["*"]}
        rita POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings
          404 clusterroles.rbac.authorization.k8s.io "not-there-yet" not found
        rita PATCH /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/cluster-admin
          403 clusterrolebindings.rbac.authorization.k8s.io "cluster-admin" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:["*"], Resources:["*"], Verbs:["*"]}
        {NonResourceURLs:["*"], Verbs:["*"]}
        rita PATCH /apis/rbac.authorization.k8s.io/v1/clusterrolebindings/rita
          422 ClusterRoleBinding.rbac.authorization.k8s.io "rita" is invalid: roleRef: Invalid value: {"APIGroup":"rbac.authorization.k8s.io","Kind":"ClusterRole","Name":"cluster-admin"}: cannot change roleRef
        rita POST /apis/rbac.authorization.k8s.io/v1/clusterroles
          403 clusterroles.rbac.authorization.k8s.io "r" is forbidden: must have cluster-admin privileges to use the aggregationRule
        rita POST /apis/rbac.authorization.k8s.io/v1/clusterroles
          403 clusterroles.rbac.authorization.k8s.io "r" is forbidden: user "rita" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["secrets"], Verbs:["get"]}
        ann POST /apis/rbac.authorization.k8s.io/v1/clusterroles
          403 clusterroles.rbac.authorization.k8s.io is forbidden: User "ann" cannot create resource "clusterroles" in API group "rbac.authorization.k8s.io" at the cluster scope
        ann POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings
          403 clusterrolebindings.rbac.authorization.k8s.io is forbidden: User "ann" cannot create resource "clusterrolebindings" in API group "rbac.authorization.k8s.io" at the cluster scope
        ann POST /apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings
          403 rolebindings.rbac.authorization.k8s.io is forbidden: User "ann" cannot create resource "rolebindings" in API group "rbac.authorization.k8s.io" in the namespace "kube-system"
        ann POST /apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings
          403 rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "ann" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:["*"], Resources:["*"], Verbs:["*"]}
        {NonResourceURLs:["*"], Verbs:["*"]}
    "#]].assert_eq(&text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impersonation_does_not_escalate() {
    let test = world().await;
    let mut t = tries(&test);
    for (name, headers) in [
        ("vera", "impersonate-user: bob"),
        ("ivan", "impersonate-user: alice"),
        ("ivan", "impersonate-user: bob\nimpersonate-group: system:masters"),
        ("ivan", "impersonate-user: bob\nimpersonate-uid: 0"),
        ("ivan", "impersonate-user: bob\nimpersonate-extra-scopes: all"),
        ("ivan", "impersonate-user: system:serviceaccount:kube-system:namespace-controller"),
        ("ivan", "impersonate-user: system:node:one"),
        ("ivan", "impersonate-group: system:masters"),
        ("ivan", "impersonate-user: bob"),
        ("ivan", "x-remote-user: root\nx-remote-group: system:masters"),
        ("ann", "impersonate-user: system:serviceaccount:team:one"),
    ] {
        t.of(&person(name), &format!("GET {SYSTEM}/secrets\n{headers}"), Value::Null).await;
    }
    let text = t.text;
    expect_test::expect![[r#"
        vera GET /api/v1/namespaces/kube-system/secrets + impersonate-user: bob
          403 secrets is forbidden: User "vera" cannot impersonate-on:user-info:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: alice
          403 secrets is forbidden: User "ivan" cannot impersonate-on:user-info:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: bob + impersonate-group: system:masters
          403 secrets is forbidden: User "ivan" cannot impersonate-on:user-info:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: bob + impersonate-uid: 0
          403 secrets is forbidden: User "ivan" cannot impersonate-on:user-info:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: bob + impersonate-extra-scopes: all
          403 secrets is forbidden: User "ivan" cannot impersonate-on:user-info:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: system:serviceaccount:kube-system:namespace-controller
          403 secrets is forbidden: User "ivan" cannot impersonate-on:serviceaccount:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: system:node:one
          403 secrets is forbidden: User "ivan" cannot impersonate-on:arbitrary-node:list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-group: system:masters
          400 requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"system:masters"}, Extra:map[string][]string(nil)} without impersonating a user name
        ivan GET /api/v1/namespaces/kube-system/secrets + impersonate-user: bob
          403 secrets is forbidden: User "bob" cannot list resource "secrets" in API group "" in the namespace "kube-system"
        ivan GET /api/v1/namespaces/kube-system/secrets + x-remote-user: root + x-remote-group: system:masters
          403 secrets is forbidden: User "ivan" cannot list resource "secrets" in API group "" in the namespace "kube-system"
        ann GET /api/v1/namespaces/kube-system/secrets + impersonate-user: system:serviceaccount:team:one
          403 secrets is forbidden: User "ann" cannot impersonate-on:serviceaccount:list resource "secrets" in API group "" in the namespace "kube-system"
    "#]].assert_eq(&text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_tokens_do_not_escalate() {
    let test = world().await;
    let (vera, ed) = (person("vera"), person("ed"));
    let mut t = tries(&test);
    let post = format!("POST {CSR}");
    t.of(&vera, &post, csr("r", "kube-apiserver-client", "vera", "devs")).await;
    let asked = ok(&test, &admin(), &format!("GET {CSR}/asked"), Value::Null).await;
    let mut approved = asked.clone();
    approved["status"] =
        json!({"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]});
    t.of(&ed, &format!("PUT {CSR}/asked/approval"), approved.clone()).await;
    t.of(&ed, &format!("PATCH {CSR}/asked/approval"), json!({"status": approved["status"]})).await;
    let mut signed = asked;
    signed["status"] = json!({"certificate": STANDARD.encode(&test.cluster.pki.admin.certificate)});
    t.of(&ed, &format!("PUT {CSR}/asked/status"), signed.clone()).await;
    // Rights to write requests do not include the signer's, and requests for masters are refused.
    let carl = person("carl");
    t.of(&carl, &post, csr("r", "kube-apiserver-client", "root", "system:masters")).await;
    t.of(&carl, &format!("PUT {CSR}/asked/approval"), approved.clone()).await;
    t.of(&carl, &format!("PATCH {CSR}/asked/approval"), json!({"status": approved["status"]})).await;
    t.of(&carl, &format!("PUT {CSR}/asked/status"), signed.clone()).await;
    for user in [&vera, &ed] {
        t.of(user, &format!("POST {SYSTEM}/serviceaccounts/namespace-controller/token"), json!({"spec": {}}))
            .await;
        t.of(user, &format!("POST {TEAM}/serviceaccounts/one/token"), json!({"spec": {}})).await;
    }
    let secret = json!({"type": "kubernetes.io/service-account-token", "metadata": {"name": "s", "annotations": {"kubernetes.io/service-account.name": "one"}}});
    t.of(&vera, &format!("POST {TEAM}/secrets"), secret.clone()).await;
    t.of(&ed, &format!("POST {SYSTEM}/secrets"), secret).await;
    for path in ["secrets", "secrets/one"] {
        t.of(&vera, &format!("GET {TEAM}/{path}"), Value::Null).await;
    }
    let text = t.text;
    expect_test::expect![[r#"
        vera POST /apis/certificates.k8s.io/v1/certificatesigningrequests
          403 certificatesigningrequests.certificates.k8s.io is forbidden: User "vera" cannot create resource "certificatesigningrequests" in API group "certificates.k8s.io" at the cluster scope
        ed PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/approval
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: User "ed" cannot update resource "certificatesigningrequests/approval" in API group "certificates.k8s.io" at the cluster scope
        ed PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/approval
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: User "ed" cannot patch resource "certificatesigningrequests/approval" in API group "certificates.k8s.io" at the cluster scope
        ed PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/status
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: User "ed" cannot update resource "certificatesigningrequests/status" in API group "certificates.k8s.io" at the cluster scope
        carl POST /apis/certificates.k8s.io/v1/certificatesigningrequests
          403 certificatesigningrequests.certificates.k8s.io "r" is forbidden: use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed
        carl PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/approval
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client"
        carl PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/approval
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client"
        carl PUT /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/status
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: user not permitted to sign requests with signerName "kubernetes.io/kube-apiserver-client"
        vera POST /api/v1/namespaces/kube-system/serviceaccounts/namespace-controller/token
          403 serviceaccounts "namespace-controller" is forbidden: User "vera" cannot create resource "serviceaccounts/token" in API group "" in the namespace "kube-system"
        vera POST /api/v1/namespaces/team/serviceaccounts/one/token
          403 serviceaccounts "one" is forbidden: User "vera" cannot create resource "serviceaccounts/token" in API group "" in the namespace "team"
        ed POST /api/v1/namespaces/kube-system/serviceaccounts/namespace-controller/token
          403 serviceaccounts "namespace-controller" is forbidden: User "ed" cannot create resource "serviceaccounts/token" in API group "" in the namespace "kube-system"
        ed POST /api/v1/namespaces/team/serviceaccounts/one/token
          403 serviceaccounts "one" is forbidden: User "ed" cannot create resource "serviceaccounts/token" in API group "" in the namespace "team"
        vera POST /api/v1/namespaces/team/secrets
          403 secrets is forbidden: User "vera" cannot create resource "secrets" in API group "" in the namespace "team"
        ed POST /api/v1/namespaces/kube-system/secrets
          403 secrets is forbidden: User "ed" cannot create resource "secrets" in API group "" in the namespace "kube-system"
        vera GET /api/v1/namespaces/team/secrets
          403 secrets is forbidden: User "vera" cannot list resource "secrets" in API group "" in the namespace "team"
        vera GET /api/v1/namespaces/team/secrets/one
          403 secrets "one" is forbidden: User "vera" cannot get resource "secrets" in API group "" in the namespace "team"
    "#]].assert_eq(&text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_pods_proxies_and_paths() {
    let test = world().await;
    let (vera, ed, pat, ann) = (person("vera"), person("ed"), person("pat"), person("ann"));
    let mut t = tries(&test);
    for what in ["exec?command=sh", "attach", "portforward?ports=1"] {
        t.of(&vera, &format!("GET {TEAM}/pods/one/{what}"), Value::Null).await;
        t.of(&vera, &format!("POST {TEAM}/pods/one/{what}"), Value::Null).await;
    }
    let container = json!({"spec": {"ephemeralContainers": [{"name": "e", "image": "i"}]}});
    t.of(&pat, &format!("PATCH {TEAM}/pods/one/ephemeralcontainers"), container.clone()).await;
    t.of(&pat, &format!("PATCH {TEAM}/pods/one"), container).await;
    t.of(&vera, &format!("GET {TEAM}/services/s/proxy/"), Value::Null).await;
    t.of(&vera, &format!("GET {TEAM}/pods/one/proxy/"), Value::Null).await;
    for user in [&ed, &ann] {
        t.of(user, "GET /api/v1/nodes/one/proxy/pods", Value::Null).await;
        t.of(user, "POST /api/v1/nodes/one/proxy/run/team/one/c", Value::Null).await;
        t.of(user, &format!("GET {SYSTEM}/services/s/proxy/"), Value::Null).await;
    }
    for kind in
        ["mutatingwebhookconfigurations", "validatingwebhookconfigurations", "mutatingadmissionpolicies"]
    {
        let path = format!("POST /apis/admissionregistration.k8s.io/v1/{kind}");
        t.of(&ann, &path, json!({"metadata": {"name": "w"}})).await;
    }
    for request in [
        format!("HEAD {SYSTEM}/secrets"),
        format!("GET {SYSTEM}/secrets?watch=1"),
        "GET /api/v1/watch/namespaces/kube-system/secrets".to_owned(),
        "GET /api/v1/secrets".to_owned(),
        format!("GET {TEAM}/../kube-system/secrets"),
        format!("GET {TEAM}%2F..%2Fkube-system/secrets"),
        "GET //api/v1/namespaces/kube-system/secrets".to_owned(),
        "GET /metrics".to_owned(),
        "GET /debug/api_priority_and_fairness/dump_queues".to_owned(),
    ] {
        t.of(&ed, &request, Value::Null).await;
    }
    ok(&test, &pat, &format!("GET {TEAM}/configmaps?fieldSelector=metadata.name%3Dmine"), Value::Null).await;
    for query in
        ["?fieldSelector=metadata.name%3Dyours", "?fieldSelector=metadata.name!%3Dmine", "", "/yours"]
    {
        t.of(&pat, &format!("GET {TEAM}/configmaps{query}"), Value::Null).await;
    }
    let text = t.text;
    expect_test::expect![[r#"
        vera GET /api/v1/namespaces/team/pods/one/exec?command=sh
          403 pods "one" is forbidden: User "vera" cannot get resource "pods/exec" in API group "" in the namespace "team"
        vera POST /api/v1/namespaces/team/pods/one/exec?command=sh
          403 pods "one" is forbidden: User "vera" cannot create resource "pods/exec" in API group "" in the namespace "team"
        vera GET /api/v1/namespaces/team/pods/one/attach
          403 pods "one" is forbidden: User "vera" cannot get resource "pods/attach" in API group "" in the namespace "team"
        vera POST /api/v1/namespaces/team/pods/one/attach
          403 pods "one" is forbidden: User "vera" cannot create resource "pods/attach" in API group "" in the namespace "team"
        vera GET /api/v1/namespaces/team/pods/one/portforward?ports=1
          403 pods "one" is forbidden: User "vera" cannot get resource "pods/portforward" in API group "" in the namespace "team"
        vera POST /api/v1/namespaces/team/pods/one/portforward?ports=1
          403 pods "one" is forbidden: User "vera" cannot create resource "pods/portforward" in API group "" in the namespace "team"
        pat PATCH /api/v1/namespaces/team/pods/one/ephemeralcontainers
          403 pods "one" is forbidden: User "pat" cannot patch resource "pods/ephemeralcontainers" in API group "" in the namespace "team"
        pat PATCH /api/v1/namespaces/team/pods/one
          422 Pod "one" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)
        @@ -18,6 +18,16 @@
          ],
          "dnsPolicy": "ClusterFirst",
          "enableServiceLinks": true,
        + "ephemeralContainers": [
        +  {
        +   "image": "i",
        +   "imagePullPolicy": "Always",
        +   "name": "e",
        +   "resources": {},
        +   "terminationMessagePath": "/dev/termination-log",
        +   "terminationMessagePolicy": "File"
        +  }
        + ],
          "nodeName": "one",
          "preemptionPolicy": "PreemptLowerPriority",
          "priority": 0,

        vera GET /api/v1/namespaces/team/services/s/proxy/
          403 services "s" is forbidden: User "vera" cannot get resource "services/proxy" in API group "" in the namespace "team"
        vera GET /api/v1/namespaces/team/pods/one/proxy/
          403 pods "one" is forbidden: User "vera" cannot get resource "pods/proxy" in API group "" in the namespace "team"
        ed GET /api/v1/nodes/one/proxy/pods
          403 nodes "one" is forbidden: User "ed" cannot get resource "nodes/proxy" in API group "" at the cluster scope
        ed POST /api/v1/nodes/one/proxy/run/team/one/c
          403 nodes "one" is forbidden: User "ed" cannot create resource "nodes/proxy" in API group "" at the cluster scope
        ed GET /api/v1/namespaces/kube-system/services/s/proxy/
          403 services "s" is forbidden: User "ed" cannot get resource "services/proxy" in API group "" in the namespace "kube-system"
        ann GET /api/v1/nodes/one/proxy/pods
          403 nodes "one" is forbidden: User "ann" cannot get resource "nodes/proxy" in API group "" at the cluster scope
        ann POST /api/v1/nodes/one/proxy/run/team/one/c
          403 nodes "one" is forbidden: User "ann" cannot create resource "nodes/proxy" in API group "" at the cluster scope
        ann GET /api/v1/namespaces/kube-system/services/s/proxy/
          403 services "s" is forbidden: User "ann" cannot get resource "services/proxy" in API group "" in the namespace "kube-system"
        ann POST /apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations
          403 mutatingwebhookconfigurations.admissionregistration.k8s.io is forbidden: User "ann" cannot create resource "mutatingwebhookconfigurations" in API group "admissionregistration.k8s.io" at the cluster scope
        ann POST /apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations
          403 validatingwebhookconfigurations.admissionregistration.k8s.io is forbidden: User "ann" cannot create resource "validatingwebhookconfigurations" in API group "admissionregistration.k8s.io" at the cluster scope
        ann POST /apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies
          403 mutatingadmissionpolicies.admissionregistration.k8s.io is forbidden: User "ann" cannot create resource "mutatingadmissionpolicies" in API group "admissionregistration.k8s.io" at the cluster scope
        ed HEAD /api/v1/namespaces/kube-system/secrets
          403 secrets is forbidden: User "ed" cannot list resource "secrets" in API group "" in the namespace "kube-system"
        ed GET /api/v1/namespaces/kube-system/secrets?watch=1
          403 secrets is forbidden: User "ed" cannot watch resource "secrets" in API group "" in the namespace "kube-system"
        ed GET /api/v1/watch/namespaces/kube-system/secrets
          403 secrets is forbidden: User "ed" cannot watch resource "secrets" in API group "" in the namespace "kube-system"
        ed GET /api/v1/secrets
          403 secrets is forbidden: User "ed" cannot list resource "secrets" in API group "" at the cluster scope
        ed GET /api/v1/namespaces/team/../kube-system/secrets
          403 .. "kube-system" is forbidden: User "ed" cannot get resource "../secrets" in API group "" in the namespace "team"
        ed GET /api/v1/namespaces/team%2F..%2Fkube-system/secrets
          403 .. "kube-system" is forbidden: User "ed" cannot get resource "../secrets" in API group "" in the namespace "team"
        ed GET //api/v1/namespaces/kube-system/secrets
          403 secrets is forbidden: User "ed" cannot list resource "secrets" in API group "" in the namespace "kube-system"
        ed GET /metrics
          403 forbidden: User "ed" cannot get path "/metrics"
        ed GET /debug/api_priority_and_fairness/dump_queues
          403 forbidden: User "ed" cannot get path "/debug/api_priority_and_fairness/dump_queues"
        pat GET /api/v1/namespaces/team/configmaps?fieldSelector=metadata.name%3Dyours
          403 configmaps "yours" is forbidden: User "pat" cannot list resource "configmaps" in API group "" in the namespace "team"
        pat GET /api/v1/namespaces/team/configmaps?fieldSelector=metadata.name!%3Dmine
          403 configmaps is forbidden: User "pat" cannot list resource "configmaps" in API group "" in the namespace "team"
        pat GET /api/v1/namespaces/team/configmaps
          403 configmaps is forbidden: User "pat" cannot list resource "configmaps" in API group "" in the namespace "team"
        pat GET /api/v1/namespaces/team/configmaps/yours
          403 configmaps "yours" is forbidden: User "pat" cannot get resource "configmaps" in API group "" in the namespace "team"
    "#]].assert_eq(&text);
    test.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_do_not_escalate() {
    let test = world().await;
    let (node, imposter) = (user("system:node:one", &[NODES, AUTHENTICATED]), person("system:node:one"));
    ok(&test, &node, &format!("GET {TEAM}/secrets/one"), Value::Null).await;
    let mut t = tries(&test);
    t.of(&imposter, &format!("GET {TEAM}/secrets/one"), Value::Null).await;
    for path in ["secrets/two", "secrets/none", "secrets", "configmaps"] {
        t.of(&node, &format!("GET {TEAM}/{path}"), Value::Null).await;
    }
    t.of(&node, &format!("POST {TEAM}/serviceaccounts/two/token"), json!({"spec": {}})).await;
    t.of(&node, &format!("POST {SYSTEM}/serviceaccounts/default/token"), json!({"spec": {}})).await;
    t.of(&node, &format!("DELETE {TEAM}/secrets/one"), Value::Null).await;
    t.of(&node, &format!("POST {TEAM}/pods/two/exec?command=sh"), Value::Null).await;
    t.of(&node, "GET /api/v1/nodes/two/proxy/pods", Value::Null).await;
    t.of(&node, &format!("POST {RBAC}/clusterrolebindings"), binding("b", "cluster-admin", "x")).await;
    t.of(&node, &format!("PATCH {CSR}/asked/approval"), json!({"status": {}})).await;
    for signer in ["kube-apiserver-client-kubelet", "kubelet-serving"] {
        t.of(&node, &format!("POST {CSR}"), csr("r", signer, "system:node:two", NODES)).await;
    }
    let text = t.text;
    expect_test::expect![[r#"
        system:node:one GET /api/v1/namespaces/team/secrets/one
          403 secrets "one" is forbidden: User "system:node:one" cannot get resource "secrets" in API group "" in the namespace "team"
        system:node:one GET /api/v1/namespaces/team/secrets/two
          403 secrets "two" is forbidden: User "system:node:one" cannot get resource "secrets" in API group "" in the namespace "team": no relationship found between node 'one' and this object
        system:node:one GET /api/v1/namespaces/team/secrets/none
          403 secrets "none" is forbidden: User "system:node:one" cannot get resource "secrets" in API group "" in the namespace "team": no relationship found between node 'one' and this object
        system:node:one GET /api/v1/namespaces/team/secrets
          403 secrets is forbidden: User "system:node:one" cannot list resource "secrets" in API group "" in the namespace "team": No Object name found
        system:node:one GET /api/v1/namespaces/team/configmaps
          403 configmaps is forbidden: User "system:node:one" cannot list resource "configmaps" in API group "" in the namespace "team": No Object name found
        system:node:one POST /api/v1/namespaces/team/serviceaccounts/two/token
          403 serviceaccounts "two" is forbidden: User "system:node:one" cannot create resource "serviceaccounts/token" in API group "" in the namespace "team": no relationship found between node 'one' and this object
        system:node:one POST /api/v1/namespaces/kube-system/serviceaccounts/default/token
          403 serviceaccounts "default" is forbidden: User "system:node:one" cannot create resource "serviceaccounts/token" in API group "" in the namespace "kube-system": no relationship found between node 'one' and this object
        system:node:one DELETE /api/v1/namespaces/team/secrets/one
          403 secrets "one" is forbidden: User "system:node:one" cannot delete resource "secrets" in API group "" in the namespace "team": can only read resources of this type
        system:node:one POST /api/v1/namespaces/team/pods/two/exec?command=sh
          403 pods "two" is forbidden: User "system:node:one" cannot create resource "pods/exec" in API group "" in the namespace "team"
        system:node:one GET /api/v1/nodes/two/proxy/pods
          403 nodes "two" is forbidden: User "system:node:one" cannot get resource "nodes/proxy" in API group "" at the cluster scope
        system:node:one POST /apis/rbac.authorization.k8s.io/v1/clusterrolebindings
          403 clusterrolebindings.rbac.authorization.k8s.io is forbidden: User "system:node:one" cannot create resource "clusterrolebindings" in API group "rbac.authorization.k8s.io" at the cluster scope
        system:node:one PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/asked/approval
          403 certificatesigningrequests.certificates.k8s.io "asked" is forbidden: User "system:node:one" cannot patch resource "certificatesigningrequests/approval" in API group "certificates.k8s.io" at the cluster scope
        system:node:one POST /apis/certificates.k8s.io/v1/certificatesigningrequests
          403 certificatesigningrequests.certificates.k8s.io "r" is forbidden: can only create a node CSR with CN=system:node:one
        system:node:one POST /apis/certificates.k8s.io/v1/certificatesigningrequests
          403 certificatesigningrequests.certificates.k8s.io "r" is forbidden: can only create a node CSR with CN=system:node:one
    "#]].assert_eq(&text);
    test.stop().await;
}

/// Users with rights to request certificates, approve and sign, but not for this signer: none gets a node's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn to_the_certificate_of_a_node() {
    let test = TestCluster::start(1).await;
    let requests = ["", "/approval", "/status"].map(|s| format!("certificatesigningrequests{s}"));
    let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
    let carl = person("carl");
    grant(
        &test,
        "carl",
        json!([
            rule(&["certificates.k8s.io"], &requests, &["create", "get", "update", "patch"], &[]),
            rule(
                &["certificates.k8s.io"],
                &["signers"],
                &["approve", "sign"],
                &["kubernetes.io/kube-apiserver-client"]
            ),
        ]),
    )
    .await;
    let post = format!("POST {CSR}");
    const SIGNER: &str = "kube-apiserver-client-kubelet";
    ok(&test, &carl, &post, csr("carls", SIGNER, "system:node:sim-1", NODES)).await;
    let mut t = tries(&test);
    let approve = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]}});
    let sign = json!({"status": {"certificate": STANDARD.encode(&test.cluster.pki.admin.certificate)}});
    t.of(&carl, &format!("PATCH {CSR}/carls/approval"), approve).await;
    t.of(&carl, &format!("PATCH {CSR}/carls/status"), sign).await;
    let text = t.text;
    // The node's own request, which came later, is approved and signed; his is not.
    let node = user("system:node:sim-1", &[NODES, AUTHENTICATED]);
    ok(&test, &node, &post, csr("own", SIGNER, "system:node:sim-1", NODES)).await;
    let requests = "certificates.k8s.io/v1/certificatesigningrequests";
    let signed = |r: Option<&Value>| r.is_some_and(|r| r["status"]["certificate"].is_string());
    crate::common::api::Api(&test).until(requests, "own", signed).await;
    let carls = ok(&test, &carl, &format!("GET {CSR}/carls"), Value::Null).await;
    assert_eq!(carls["status"], json!({}), "{carls}");
    expect_test::expect![[r#"
        carl PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/carls/approval
          403 certificatesigningrequests.certificates.k8s.io "carls" is forbidden: user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client-kubelet"
        carl PATCH /apis/certificates.k8s.io/v1/certificatesigningrequests/carls/status
          403 certificatesigningrequests.certificates.k8s.io "carls" is forbidden: user not permitted to sign requests with signerName "kubernetes.io/kube-apiserver-client-kubelet"
    "#]].assert_eq(&text);
    test.stop().await;
}
