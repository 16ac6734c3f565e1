//! Authorization on real requests: rights, granting them, and that the cluster's own parts get by with
//! what upstream's parts may do.

use crate::common::{TestCluster, api::Api};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use kaji::StoreKind;
use kaji_auth::names::{ANONYMOUS, AUTHENTICATED, MASTERS, NODES, UNAUTHENTICATED};
use kaji_resource::{Scope, UserInfo, Verb};
use kaji_server::LocalService;
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};
use tower::ServiceExt;

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.into(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..UserInfo::default()
    }
}

fn person(name: &str) -> UserInfo {
    user(name, &[AUTHENTICATED])
}

fn admin() -> UserInfo {
    user("admin", &[MASTERS, AUTHENTICATED])
}

/// `METHOD path`, with a body; patches are merge patches unless the query says apply.
async fn ask(cluster: &TestCluster, user: &UserInfo, request: &str, body: Value) -> (u16, Value) {
    let (method, path) = request.split_once(' ').unwrap();
    let kind = match method {
        "PATCH" if path.contains("fieldManager") => "application/apply-patch+yaml",
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let bytes = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
    let service = LocalService::new(cluster.cluster.stack.clone(), user.clone());
    let response = service.oneshot(request.body(Full::new(bytes)).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    if code == 200 && path.contains("watch=") {
        return (code, Value::Null);
    }
    let body = response.into_body().collect().await.map(|b| b.to_bytes()).unwrap_or_default();
    (code, serde_json::from_slice(&body).unwrap_or_default())
}

/// The same, for what must succeed.
async fn ok(cluster: &TestCluster, user: &UserInfo, request: &str, body: Value) -> Value {
    let (code, answer) = ask(cluster, user, request, body).await;
    assert!(code < 300, "{request}: {answer}");
    answer
}

/// The same, for what is refused: the message.
async fn refused(cluster: &TestCluster, user: &UserInfo, request: &str, body: Value) -> String {
    let (code, answer) = ask(cluster, user, request, body).await;
    assert_eq!(code, 403, "{request}: {answer}");
    answer["message"].as_str().unwrap().to_owned()
}

fn role(kind: &str, name: &str, verbs: &[&str], resources: &[&str]) -> Value {
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name},
        "rules": [{"apiGroups": [""], "resources": resources, "verbs": verbs}]})
}

fn binding(name: &str, role: &str, user: &str) -> Value {
    let (kind, role) = role.split_once('/').unwrap();
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]})
}

/// A question of the matrix: what is asked, and the message if it is refused.
fn questions(cluster: &TestCluster) -> Vec<(String, String, String)> {
    let verbs = [
        ("list", "GET", false, ""),
        ("watch", "GET", false, "?watch=1&timeoutSeconds=1"),
        ("create", "POST", false, ""),
        ("deletecollection", "DELETE", false, ""),
        ("get", "GET", true, ""),
        ("update", "PUT", true, ""),
        ("patch", "PATCH", true, ""),
        ("delete", "DELETE", true, ""),
    ];
    let mut all = vec![];
    for resource in cluster.cluster.stack.engine.registry().iter() {
        let def = &resource.def;
        let version = &def.versions.iter().find(|v| v.served).unwrap().name;
        let mut base = match &*def.group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let mut place = "at the cluster scope".to_owned();
        if def.scope == Scope::Namespaced {
            base += "/namespaces/elsewhere";
            place = r#"in the namespace "elsewhere""#.to_owned();
        }
        for (verb, method, named, query) in verbs {
            let plural = &def.plural;
            let (name, quoted) = if named { ("/thing", " \"thing\"") } else { ("", "") };
            // Resources in a namespaces' path are about that namespace.
            let place = if named && plural == "namespaces" { r#"in the namespace "thing""# } else { &place };
            let of =
                if def.group.is_empty() { plural.to_string() } else { format!("{plural}.{}", def.group) };
            all.push((
                format!("{method} {base}/{plural}{name}{query}"),
                format!("{verb} {of}"),
                format!(
                    "{of}{quoted} is forbidden: User {{}} cannot {verb} resource {plural:?} in API group {:?} {place}",
                    def.group
                ),
            ));
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refuses_every_verb_without_rights() {
    let cluster = TestCluster::start(0).await;
    let questions = questions(&cluster);
    assert!(questions.len() > 400);
    let anonymous = user(ANONYMOUS, &[UNAUTHENTICATED]);
    let mut allowed = BTreeSet::new();
    let others = [anonymous, person("nobody"), user("system:node:other", &[NODES, AUTHENTICATED])];
    for user in &others {
        for (request, what, message) in &questions {
            let (code, answer) = ask(&cluster, user, request, Value::Null).await;
            if code != 403 {
                allowed.insert(format!("{}: {what}", user.name));
                continue;
            }
            let expected = message.replacen("{}", &format!("{:?}", user.name), 1);
            let said = answer["message"].as_str().unwrap();
            match user.name.as_str() {
                // The node authorizer says why.
                "system:node:other" => assert!(said.starts_with(&expected), "{request}: {said}"),
                _ => assert_eq!(said, expected, "{request}"),
            }
        }
    }
    expect_test::expect![[r#"
        nobody: create selfsubjectaccessreviews.authorization.k8s.io
        nobody: create selfsubjectreviews.authentication.k8s.io
        nobody: create selfsubjectrulesreviews.authorization.k8s.io
        system:node:other: create certificatesigningrequests.certificates.k8s.io
        system:node:other: create csinodes.storage.k8s.io
        system:node:other: create events
        system:node:other: create events.events.k8s.io
        system:node:other: create localsubjectaccessreviews.authorization.k8s.io
        system:node:other: create nodes
        system:node:other: create podcertificaterequests.certificates.k8s.io
        system:node:other: create pods
        system:node:other: create resourceslices.resource.k8s.io
        system:node:other: create selfsubjectaccessreviews.authorization.k8s.io
        system:node:other: create selfsubjectreviews.authentication.k8s.io
        system:node:other: create selfsubjectrulesreviews.authorization.k8s.io
        system:node:other: create subjectaccessreviews.authorization.k8s.io
        system:node:other: create tokenreviews.authentication.k8s.io
        system:node:other: delete pods
        system:node:other: get certificatesigningrequests.certificates.k8s.io
        system:node:other: get clustertrustbundles.certificates.k8s.io
        system:node:other: get csidrivers.storage.k8s.io
        system:node:other: get endpoints
        system:node:other: get nodes
        system:node:other: get runtimeclasses.node.k8s.io
        system:node:other: get services
        system:node:other: list certificatesigningrequests.certificates.k8s.io
        system:node:other: list clustertrustbundles.certificates.k8s.io
        system:node:other: list csidrivers.storage.k8s.io
        system:node:other: list endpoints
        system:node:other: list endpointslices.discovery.k8s.io
        system:node:other: list namespaces
        system:node:other: list networkpolicies.networking.k8s.io
        system:node:other: list nodes
        system:node:other: list pods
        system:node:other: list runtimeclasses.node.k8s.io
        system:node:other: list servicecidrs.networking.k8s.io
        system:node:other: list services
        system:node:other: patch events
        system:node:other: patch events.events.k8s.io
        system:node:other: patch nodes
        system:node:other: update events
        system:node:other: update events.events.k8s.io
        system:node:other: update nodes
        system:node:other: watch certificatesigningrequests.certificates.k8s.io
        system:node:other: watch clustertrustbundles.certificates.k8s.io
        system:node:other: watch csidrivers.storage.k8s.io
        system:node:other: watch endpoints
        system:node:other: watch endpointslices.discovery.k8s.io
        system:node:other: watch namespaces
        system:node:other: watch networkpolicies.networking.k8s.io
        system:node:other: watch nodes
        system:node:other: watch pods
        system:node:other: watch runtimeclasses.node.k8s.io
        system:node:other: watch servicecidrs.networking.k8s.io
        system:node:other: watch services"#]]
    .assert_eq(&allowed.into_iter().collect::<Vec<_>>().join("\n"));
    let paths: Vec<String> = futures_util::future::join_all(
        [
            "/healthz",
            "/livez",
            "/readyz",
            "/version",
            "/api",
            "/apis",
            "/openapi/v2",
            "/openapi/v3",
            "/metrics",
            "/logs",
        ]
        .map(async |path| {
            let mut codes = vec![];
            for user in &others[..2] {
                codes.push(ask(&cluster, user, &format!("GET {path}"), Value::Null).await.0);
            }
            format!("{path} {codes:?}")
        }),
    )
    .await;
    expect_test::expect![[r#"
        /healthz [200, 200]
        /livez [200, 200]
        /readyz [200, 200]
        /version [200, 200]
        /api [403, 200]
        /apis [403, 200]
        /openapi/v2 [403, 200]
        /openapi/v3 [403, 200]
        /metrics [403, 403]
        /logs [403, 403]"#]]
    .assert_eq(&paths.join("\n"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn roles_count_as_soon_as_they_are_written() {
    let cluster = TestCluster::start(0).await;
    let (admin, jane) = (admin(), person("jane"));
    let roles = format!("POST {RBAC}/namespaces/default/roles");
    let bindings = format!("POST {RBAC}/namespaces/default/rolebindings");
    let list = "GET /api/v1/namespaces/default/pods";
    for _ in 0..20 {
        refused(&cluster, &jane, list, Value::Null).await;
        ok(&cluster, &admin, &bindings, binding("b", "Role/r", "jane")).await;
        assert_eq!(
            refused(&cluster, &jane, list, Value::Null).await,
            r#"pods is forbidden: User "jane" cannot list resource "pods" in API group "" in the namespace "default": RBAC: role.rbac.authorization.k8s.io "r" not found"#
        );
        ok(&cluster, &admin, &roles, role("Role", "r", &["list"], &["pods"])).await;
        ok(&cluster, &jane, list, Value::Null).await;
        refused(&cluster, &jane, "GET /api/v1/namespaces/kube-system/pods", Value::Null).await;
        refused(&cluster, &jane, "GET /api/v1/pods", Value::Null).await;
        ok(&cluster, &admin, &format!("DELETE {RBAC}/namespaces/default/rolebindings/b"), Value::Null).await;
        // A read waits for the caches; a permission does not.
        ok(&cluster, &admin, list, Value::Null).await;
        refused(&cluster, &jane, list, Value::Null).await;
        ok(&cluster, &admin, &format!("DELETE {RBAC}/namespaces/default/roles/r"), Value::Null).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_that_creates_is_a_create_too() {
    let cluster = TestCluster::start(0).await;
    let (admin, jane) = (admin(), person("jane"));
    let mut rights = role("Role", "r", &["get", "update", "patch"], &["configmaps", "endpoints"]);
    ok(&cluster, &admin, &format!("POST {RBAC}/namespaces/default/roles"), rights.clone()).await;
    ok(
        &cluster,
        &admin,
        &format!("POST {RBAC}/namespaces/default/rolebindings"),
        binding("b", "Role/r", "jane"),
    )
    .await;
    let base = "/api/v1/namespaces/default";
    let object =
        |kind: &str, name: &str| json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}});
    let apply = format!("PATCH {base}/configmaps/new?fieldManager=jane");
    let put = format!("PUT {base}/endpoints/new");
    let tries = [(&apply, object("ConfigMap", "new")), (&put, object("Endpoints", "new"))];
    let mut said = vec![];
    for (request, body) in &tries {
        said.push(refused(&cluster, &jane, request, body.clone()).await);
        let path = request.split_once(' ').unwrap().1;
        assert_eq!(ask(&cluster, &admin, &format!("GET {path}"), Value::Null).await.0, 404);
    }
    expect_test::expect![[r#"
        configmaps "new" is forbidden: User "jane" cannot create resource "configmaps" in API group "" in the namespace "default"
        endpoints "new" is forbidden: User "jane" cannot create resource "endpoints" in API group "" in the namespace "default""#]]
    .assert_eq(&said.join("\n"));
    // What never existed is not found, with and without the right to create it.
    for user in [&jane, &admin] {
        let request = format!("PATCH {base}/configmaps/new");
        assert_eq!(ask(&cluster, user, &request, object("ConfigMap", "new")).await.0, 404);
    }
    // What is there may be changed; with the right to create, what is not may be made.
    ok(&cluster, &admin, &format!("POST {base}/configmaps"), object("ConfigMap", "old")).await;
    let old = format!("PATCH {base}/configmaps/old?fieldManager=jane");
    ok(&cluster, &jane, &old, object("ConfigMap", "old")).await;
    rights["rules"][0]["verbs"].as_array_mut().unwrap().push("create".into());
    ok(&cluster, &admin, &format!("PUT {RBAC}/namespaces/default/roles/r"), rights).await;
    for (request, body) in tries {
        ok(&cluster, &jane, request, body).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_of_one_name_is_about_that_name() {
    let cluster = TestCluster::start(0).await;
    let (admin, jane) = (admin(), person("jane"));
    let mut one = role("Role", "r", &["get", "list", "watch"], &["secrets"]);
    one["rules"][0]["resourceNames"] = json!(["mine"]);
    ok(&cluster, &admin, &format!("POST {RBAC}/namespaces/default/roles"), one).await;
    let bindings = format!("POST {RBAC}/namespaces/default/rolebindings");
    ok(&cluster, &admin, &bindings, binding("b", "Role/r", "jane")).await;
    let list = "GET /api/v1/namespaces/default/secrets";
    ok(&cluster, &jane, &format!("{list}?fieldSelector=metadata.name%3Dmine"), Value::Null).await;
    for query in ["", "?fieldSelector=metadata.name%3Dyours", "?fieldSelector=metadata.name!%3Dmine"] {
        refused(&cluster, &jane, &format!("{list}{query}"), Value::Null).await;
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_answer_as_requests_are() {
    let cluster = TestCluster::start(0).await;
    let (admin, jane) = (admin(), person("jane"));
    ok(
        &cluster,
        &admin,
        &format!("POST {RBAC}/namespaces/default/roles"),
        role("Role", "r", &["get"], &["pods"]),
    )
    .await;
    let bindings = format!("POST {RBAC}/namespaces/default/rolebindings");
    ok(&cluster, &admin, &bindings, binding("b", "Role/r", "jane")).await;
    ok(&cluster, &admin, &bindings, binding("lost", "ClusterRole/gone", "jane")).await;
    let review = |kind: &str, spec: Value| {
        let plural = format!("{}s", kind.to_lowercase());
        let body = json!({"apiVersion": "authorization.k8s.io/v1", "kind": kind, "spec": spec});
        (format!("POST /apis/authorization.k8s.io/v1/{plural}"), body)
    };
    let get = json!({"verb": "get", "resource": "pods", "namespace": "default"});
    let delete = json!({"verb": "delete", "resource": "pods", "namespace": "default"});
    let all = [
        (&jane, review("SelfSubjectAccessReview", json!({"resourceAttributes": get}))),
        (&jane, review("SelfSubjectAccessReview", json!({"resourceAttributes": delete}))),
        (
            &jane,
            review(
                "SelfSubjectAccessReview",
                json!({"nonResourceAttributes": {"verb": "get", "path": "/api"}}),
            ),
        ),
        (&admin, review("SelfSubjectAccessReview", json!({"resourceAttributes": delete}))),
        (&admin, review("SubjectAccessReview", json!({"user": "jane", "resourceAttributes": get}))),
        (
            &admin,
            review(
                "SubjectAccessReview",
                json!({"user": "system:node:x", "groups": [NODES], "resourceAttributes": {"verb": "get", "resource": "secrets", "namespace": "default", "name": "s"}}),
            ),
        ),
        (
            &admin,
            review(
                "SubjectAccessReview",
                json!({"user": "system:node:x", "groups": [NODES], "resourceAttributes": {"verb": "list", "resource": "pods", "fieldSelector": {"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["x"]}]}}}),
            ),
        ),
        (&jane, review("SelfSubjectRulesReview", json!({"namespace": "default"}))),
    ];
    let mut answers = vec![];
    for (user, (request, body)) in all {
        answers.push(ok(&cluster, user, &request, body).await["status"].to_string());
    }
    answers.push(refused(&cluster, &jane, &review("SubjectAccessReview", json!({})).0, json!({})).await);
    expect_test::expect![[r#"
        {"allowed":true,"reason":"RBAC: allowed by RoleBinding \"b/default\" of Role \"r\" to User \"jane\""}
        {"allowed":false,"reason":"RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found"}
        {"allowed":true,"reason":"RBAC: allowed by ClusterRoleBinding \"system:discovery\" of ClusterRole \"system:discovery\" to Group \"system:authenticated\""}
        {"allowed":true}
        {"allowed":true,"reason":"RBAC: allowed by RoleBinding \"b/default\" of Role \"r\" to User \"jane\""}
        {"allowed":false,"reason":"no relationship found between node 'x' and this object"}
        {"allowed":true}
        {"evaluationError":"clusterrole.rbac.authorization.k8s.io \"gone\" not found","incomplete":false,"nonResourceRules":[{"nonResourceURLs":["/kaji/why"],"verbs":["get"]},{"nonResourceURLs":["/api","/api/*","/apis","/apis/*","/healthz","/livez","/openapi","/openapi/*","/readyz","/version","/version/"],"verbs":["get"]},{"nonResourceURLs":["/healthz","/livez","/readyz","/version","/version/"],"verbs":["get"]}],"resourceRules":[{"apiGroups":["authorization.k8s.io"],"resources":["selfsubjectaccessreviews","selfsubjectrulesreviews"],"verbs":["create"]},{"apiGroups":["authentication.k8s.io"],"resources":["selfsubjectreviews"],"verbs":["create"]},{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}
        subjectaccessreviews.authorization.k8s.io is forbidden: User "jane" cannot create resource "subjectaccessreviews" in API group "authorization.k8s.io" at the cluster scope"#]].assert_eq(&answers.join("\n"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rejects_granting_rights_that_the_user_does_not_have() {
    let cluster = TestCluster::start(0).await;
    let (admin, jane) = (admin(), person("jane"));
    let mut manage = role("ClusterRole", "manage", &["get", "list"], &["pods"]);
    let write = json!({"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["roles", "rolebindings", "clusterroles"], "verbs": ["*"]});
    // Everything but `escalate` and `bind`.
    let verbs = json!(["get", "list", "create", "update", "patch", "delete"]);
    manage["rules"].as_array_mut().unwrap().push(write);
    manage["rules"][1]["verbs"] = verbs;
    ok(&cluster, &admin, &format!("POST {RBAC}/clusterroles"), manage).await;
    let bindings = format!("{RBAC}/namespaces/default/rolebindings");
    ok(&cluster, &admin, &format!("POST {bindings}"), binding("manage", "ClusterRole/manage", "jane")).await;
    let roles = format!("{RBAC}/namespaces/default/roles");
    let create = format!("POST {roles}");
    ok(&cluster, &jane, &create, role("Role", "r", &["get"], &["pods"])).await;
    let more = role("Role", "r", &["get", "delete"], &["pods", "secrets"]);
    let mut other = more.clone();
    other["metadata"]["name"] = "s".into();
    let json_patch = json!({"rules": more["rules"]});
    let apply = format!("PATCH {roles}/r?fieldManager=x&force=true");
    let mut said = vec![
        refused(&cluster, &jane, &create, other).await,
        refused(&cluster, &jane, &format!("PUT {roles}/r"), more.clone()).await,
        refused(&cluster, &jane, &format!("PATCH {roles}/r"), json_patch).await,
        refused(&cluster, &jane, &apply, more.clone()).await,
        refused(
            &cluster,
            &jane,
            &format!("POST {bindings}"),
            binding("b", "ClusterRole/cluster-admin", "jane"),
        )
        .await,
    ];
    ok(&cluster, &jane, &format!("PATCH {roles}/r"), json!({"metadata": {"labels": {"a": "b"}}})).await;
    ok(&cluster, &jane, &format!("POST {bindings}"), binding("own", "Role/r", "joe")).await;
    // With the explicit permission it is allowed.
    let mut escalate = role("Role", "escalate", &["escalate"], &["roles"]);
    escalate["rules"][0]["apiGroups"] = json!(["rbac.authorization.k8s.io"]);
    ok(&cluster, &admin, &create, escalate).await;
    ok(&cluster, &admin, &format!("POST {bindings}"), binding("escalate", "Role/escalate", "jane")).await;
    ok(&cluster, &jane, &apply, more).await;
    // Aggregation gathers anything.
    let aggregated = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "a"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}});
    let mut cluster_wide = binding("manage", "ClusterRole/manage", "jane");
    cluster_wide["kind"] = "ClusterRoleBinding".into();
    ok(&cluster, &admin, &format!("POST {RBAC}/clusterrolebindings"), cluster_wide).await;
    said.push(refused(&cluster, &jane, &format!("POST {RBAC}/clusterroles"), aggregated).await);
    expect_test::expect![[r#"
        roles.rbac.authorization.k8s.io "s" is forbidden: user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
        {APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}
        roles.rbac.authorization.k8s.io "r" is forbidden: user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
        {APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}
        roles.rbac.authorization.k8s.io "r" is forbidden: user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
        {APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}
        roles.rbac.authorization.k8s.io "r" is forbidden: user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:[""], Resources:["pods"], Verbs:["delete"]}
        {APIGroups:[""], Resources:["secrets"], Verbs:["get" "delete"]}
        rolebindings.rbac.authorization.k8s.io "b" is forbidden: user "jane" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held:
        {APIGroups:["*"], Resources:["*"], Verbs:["*"]}
        {NonResourceURLs:["*"], Verbs:["*"]}
        clusterroles.rbac.authorization.k8s.io "a" is forbidden: must have cluster-admin privileges to use the aggregationRule"#]].assert_eq(&said.join("\n"));
    cluster.stop().await;
}

/// At a later start what is missing comes back, what was added stays, and what is right is not written again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_roles_survive() {
    let cluster = TestCluster::start_in(tempfile::tempdir().unwrap(), 0, StoreKind::Disk).await;
    let admin = admin();
    let binding = format!("{RBAC}/clusterrolebindings/system:basic-user");
    let revision = |o: &Value| o["metadata"]["resourceVersion"].clone();
    let untouched = format!("GET {RBAC}/clusterroles/system:discovery");
    let before = revision(&ok(&cluster, &admin, &untouched, Value::Null).await);
    let jane = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "jane"}]);
    ok(&cluster, &admin, &format!("PATCH {binding}"), json!({"subjects": jane})).await;
    ok(&cluster, &admin, &format!("DELETE {RBAC}/clusterroles/view"), Value::Null).await;
    let protect = json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}, "rules": null});
    ok(&cluster, &admin, &format!("PATCH {RBAC}/clusterroles/system:heapster"), protect).await;
    let cluster = TestCluster::start_in(cluster.stop().await, 0, StoreKind::Disk).await;
    let found = ok(&cluster, &admin, &format!("GET {binding}"), Value::Null).await;
    let names: Vec<_> =
        found["subjects"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["jane", AUTHENTICATED]);
    ok(&cluster, &admin, &format!("GET {RBAC}/clusterroles/view"), Value::Null).await;
    let heapster =
        ok(&cluster, &admin, &format!("GET {RBAC}/clusterroles/system:heapster"), Value::Null).await;
    assert!(heapster["rules"].is_null(), "{heapster}");
    assert_eq!(revision(&ok(&cluster, &admin, &untouched, Value::Null).await), before);
    cluster.stop().await;
}

/// Everything that controllers, scheduler and nodes do in a busy cluster is within their default roles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_the_cluster_may_do_their_work() {
    let cluster = TestCluster::start(2).await;
    let api = Api(&cluster);
    let work = async {
        workloads(&api).await;
        let refused = refused_so_far(&cluster);
        api.ok(Verb::Delete, "/v1/namespaces/work", Value::Null).await;
        api.until("/v1/namespaces", "work", |o| o.is_none()).await;
        refused
    };
    let done = tokio::time::timeout(Duration::from_secs(60), work).await;
    let mut refused = refused_so_far(&cluster);
    if let Ok(before) = &done {
        // Nothing can be created in a namespace that is going; controllers learn that by trying.
        refused.retain(|line| !line.contains("verb=\"POST\""));
        refused.extend(before.iter().cloned());
    }
    // The node authorizer knows no node of a pod that is gone, as upstream's; kubelets learn that by trying.
    refused.retain(|line| !(line.contains("verb=\"GET\"") && line.contains("resource=\"pods\"")));
    assert!(refused.is_empty(), "{}", refused.join("\n"));
    assert!(done.is_ok(), "the work is not done in time");
    cluster.stop().await;
}

/// What requests were refused, and how often.
fn refused_so_far(cluster: &TestCluster) -> Vec<String> {
    let stack = &cluster.cluster.stack;
    let metrics = stack.metrics.render(&stack.engine, &stack.flow);
    let refused = |l: &&str| l.starts_with("apiserver_request_total") && l.contains("code=\"403\"");
    metrics.lines().filter(refused).map(str::to_owned).collect()
}

/// One of each kind of workload, and a change.
async fn workloads(api: &Api<'_>) {
    let labels = json!({"app": "a"});
    let template =
        json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "work"}});
    api.ok(Verb::Create, "/v1/namespaces", namespace).await;
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = "Never".into();
    once["metadata"] = json!({"annotations": {"sim.kaji.dev/exit-after": "0s"}});
    let selector = json!({"matchLabels": labels});
    for (path, body) in [
        (
            "/v1/services",
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"selector": labels, "ports": [{"port": 80}]}}),
        ),
        (
            "policy/v1/poddisruptionbudgets",
            json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"}, "spec": {"selector": selector, "minAvailable": 1}}),
        ),
        (
            "/v1/resourcequotas",
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {"hard": {"pods": "50"}}}),
        ),
        (
            "apps/v1/deployments",
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": {"replicas": 2, "selector": selector, "template": template}}),
        ),
        (
            "apps/v1/statefulsets",
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "t"}, "spec": {"serviceName": "s", "replicas": 1, "selector": selector, "template": template}}),
        ),
        (
            "apps/v1/daemonsets",
            json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "e"}, "spec": {"selector": selector, "template": template}}),
        ),
        (
            "/v1/replicationcontrollers",
            json!({"apiVersion": "v1", "kind": "ReplicationController", "metadata": {"name": "r"}, "spec": {"replicas": 1, "selector": {"app": "r"}, "template": {"metadata": {"labels": {"app": "r"}}, "spec": template["spec"]}}}),
        ),
        (
            "batch/v1/jobs",
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": once, "ttlSecondsAfterFinished": 0}}),
        ),
    ] {
        api.ok(Verb::Create, &format!("{path}?namespace=work"), body).await;
    }
    let ready = |status: &Value, field: &str, n: i64| status["status"][field] == json!(n);
    api.until("apps/v1/deployments", "d", |o| o.is_some_and(|o| ready(o, "readyReplicas", 2))).await;
    api.until("apps/v1/statefulsets", "t", |o| o.is_some_and(|o| ready(o, "readyReplicas", 1))).await;
    api.until("apps/v1/daemonsets", "e", |o| o.is_some_and(|o| ready(o, "numberReady", 2))).await;
    api.until("/v1/replicationcontrollers", "r", |o| o.is_some_and(|o| ready(o, "readyReplicas", 1))).await;
    api.until("policy/v1/poddisruptionbudgets", "b", |o| {
        o.is_some_and(|o| ready(o, "disruptionsAllowed", 4))
    })
    .await;
    let change = json!([{"op": "add", "path": "/spec/template/metadata/annotations", "value": {"x": "y"}}]);
    api.ok(Verb::Patch, "apps/v1/deployments/d?namespace=work", change.clone()).await;
    api.ok(Verb::Patch, "apps/v1/daemonsets/e?namespace=work", change).await;
    api.until("apps/v1/deployments", "d", |o| {
        o.is_some_and(|o| {
            ready(o, "updatedReplicas", 2) && ready(o, "observedGeneration", 2) && ready(o, "replicas", 2)
        })
    })
    .await;
    // Aggregation.
    let view = |o: &Value| o["rules"].as_array().is_some_and(|r| r.len() > 10);
    api.until("rbac.authorization.k8s.io/v1/clusterroles", "admin", |o| o.is_some_and(view)).await;
}
