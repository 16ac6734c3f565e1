//! The history of objects: complete, in order and attributed; shown to users that may get the object alone; kept over restarts, within
//! its limits.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
};
use bytes::Bytes;
use kaji::{Options, StoreKind};
use kaji_auth::names::{AUTHENTICATED, MASTERS};
use kaji_meta::{GroupResource, Random, SeededRandom, object};
use kaji_resource::UserInfo;
use kaji_server::{Creation, LocalService};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::Path};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const API: &str = "/apis/history.kaji.dev/v1alpha1";
const PURGES: &str = "/apis/history.kaji.dev/v1alpha1/purges";

async fn start(dir: tempfile::TempDir, change: impl FnOnce(&mut Options)) -> TestCluster {
    TestCluster::start_over(dir, 0, StoreKind::Disk, change).await
}

/// The path of an object's history in the namespace default.
fn path(group: &str, resource: &str, name: &str) -> String {
    let selector = format!("object.group%3D{group}%2Cobject.resource%3D{resource}%2Cobject.name%3D{name}");
    format!("{API}/namespaces/default/revisions?fieldSelector={selector}")
}

/// All revisions, page by page.
async fn revisions_as(cluster: &TestCluster, user: &UserInfo, path: &str) -> Vec<Value> {
    let (mut all, mut next) = (vec![], String::new());
    loop {
        let page = ok(cluster, user, &format!("GET {path}&limit=300{next}"), Value::Null).await;
        all.extend(page["items"].as_array().unwrap().iter().cloned());
        match object::str_at(&page, &["metadata", "continue"]) {
            "" => return all,
            token => next = format!("&continue={token}"),
        }
    }
}

async fn revisions(cluster: &TestCluster, resource: &str, name: &str) -> Vec<Value> {
    revisions_as(cluster, &admin(), &path("", resource, name)).await
}

/// `Modified bob kubectl update status`, one a line.
fn lines(revisions: &[Value]) -> String {
    let line = |revision: &Value| {
        let fields = ["change", "user", "fieldManager", "verb", "subresource"];
        let texts = fields.map(|field| object::str_at(revision, &[field]));
        texts.iter().filter(|text| !text.is_empty()).copied().collect::<Vec<_>>().join(" ")
    };
    revisions.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": value}})
}

/// Changes one object, and returns what was acknowledged: the object and the audit id by its revision.
async fn change(cluster: &TestCluster, name: &str, count: usize) -> BTreeMap<u64, (String, String, Value)> {
    let user = crate::common::access::user(name, &[MASTERS, AUTHENTICATED]);
    let mut made = BTreeMap::new();
    for number in 0..count {
        let id = format!("{name}-{number}");
        let request = format!("PATCH {MAPS}/shared\nuser-agent: {name}-tool/v1 (linux)\naudit-id: {id}");
        let patch = json!({"data": {name: number.to_string()}});
        let changed = ok(cluster, &user, &request, patch).await;
        let revision = object::resource_version(&changed).parse().unwrap();
        made.insert(revision, (name.to_owned(), id, changed["data"].clone()));
    }
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_changes_by_three_users_are_complete_in_order_and_attributed() {
    let cluster = start(tempfile::tempdir().unwrap(), |_| {}).await;
    ok(&cluster, &admin(), &format!("POST {MAPS}"), map("shared", "b")).await;
    let (ann, bob, cid) = tokio::join!(
        change(&cluster, "ann", 334),
        change(&cluster, "bob", 333),
        change(&cluster, "cid", 333)
    );
    let acknowledged: BTreeMap<_, _> = [ann, bob, cid].into_iter().flatten().collect();
    assert_eq!(acknowledged.len(), 1000);
    let recorded = revisions(&cluster, "configmaps", "shared").await;
    assert_eq!(lines(&recorded[..1]), "Created admin create");
    let number = |revision: &Value| object::str_at(revision, &["revision"]).parse::<u64>().unwrap();
    assert!(recorded.windows(2).all(|two| number(&two[0]) < number(&two[1])));
    let seen = recorded[1..].iter().map(|revision| {
        let text = |field: &str| object::str_at(revision, &[field]).to_owned();
        assert_eq!((text("change"), text("verb")), ("Modified".to_owned(), "patch".to_owned()));
        assert_eq!(text("fieldManager"), format!("{}-tool", text("user")));
        assert_eq!(text("userAgent"), format!("{}-tool/v1 (linux)", text("user")));
        (number(revision), (text("user"), text("auditID"), revision["state"]["data"].clone()))
    });
    assert_eq!(seen.collect::<BTreeMap<_, _>>(), acknowledged);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn history_goes_on_after_deletion_and_restart_until_it_is_purged() {
    let cluster = start(tempfile::tempdir().unwrap(), |_| {}).await;
    ok(&cluster, &admin(), &format!("POST {MAPS}\nuser-agent: kubectl/v1"), map("m", "1")).await;
    ok(&cluster, &admin(), &format!("PATCH {MAPS}/m?fieldManager=hand"), map("m", "2")).await;
    ok(&cluster, &admin(), &format!("DELETE {MAPS}/m"), Value::Null).await;
    ok(&cluster, &admin(), &format!("POST {MAPS}"), map("m", "3")).await;
    ok(&cluster, &admin(), &format!("POST {MAPS}"), map("other", "1")).await;
    let before = revisions(&cluster, "configmaps", "m").await;
    expect_test::expect![[r"
        Created admin kubectl create
        Modified admin hand patch
        Deleted admin delete
        Created admin create"]]
    .assert_eq(&lines(&before));
    let values: Vec<&str> =
        before.iter().map(|revision| object::str_at(revision, &["state", "data", "a"])).collect();
    assert_eq!(values, ["1", "2", "2", "3"]);
    let dir = cluster.stop().await;

    let cluster = start(dir, |_| {}).await;
    assert_eq!(revisions(&cluster, "configmaps", "m").await, before);
    ok(&cluster, &admin(), &format!("PUT {MAPS}/m"), map("m", "4")).await;
    let after = revisions(&cluster, "configmaps", "m").await;
    assert_eq!(&after[..before.len()], before);
    assert_eq!(lines(&after[before.len()..]), "Modified admin update");

    let spec = json!({"apiVersion": "history.kaji.dev/v1alpha1", "kind": "Purge",
        "spec": {"resource": "configmaps", "namespace": "default", "name": "m"}});
    let (code, _) = ask(&cluster, &person("guest"), &format!("POST {PURGES}"), &spec).await;
    assert_eq!(code, 403);
    let purged = ok(&cluster, &admin(), &format!("POST {PURGES}"), spec).await;
    assert_eq!(purged["status"]["revisions"], after.len());
    ok(&cluster, &admin(), &format!("PUT {MAPS}/m"), map("m", "5")).await;
    let left = revisions(&cluster, "configmaps", "m").await;
    assert_eq!(lines(&left), "Purged admin create\nModified admin update");
    assert_eq!(lines(&revisions(&cluster, "configmaps", "other").await), "Created admin create");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_redacted_and_other_users_learn_nothing() {
    let cluster = start(tempfile::tempdir().unwrap(), |_| {}).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    for (request, value) in [(format!("POST {secrets}"), "hunter2"), (format!("PUT {secrets}/s"), "hunter3")]
    {
        let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": value}});
        ok(&cluster, &admin(), &request, secret).await;
    }
    let recorded = revisions(&cluster, "secrets", "s").await;
    let hash = |at: usize| object::str_at(&recorded[at], &["state", "data", "password"]);
    assert!(hash(0).starts_with("redacted:") && hash(1).starts_with("redacted:"));
    assert_ne!(hash(0), hash(1));

    // Rights to histories without the right to get secrets.
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "curious"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"apiGroups": ["history.kaji.dev"], "resources": ["revisions"], "verbs": ["get", "list"]}]});
    ok(&cluster, &admin(), &format!("POST {rbac}/roles"), role).await;
    let binding = json!({"metadata": {"name": "curious"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "curious"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "curious"}]});
    ok(&cluster, &admin(), &format!("POST {rbac}/rolebindings"), binding).await;
    let curious = person("curious");
    let asked = async |name: &str| {
        ask(&cluster, &curious, &format!("GET {}", path("", "secrets", name)), &json!(null)).await
    };
    let (code, there) = asked("s").await;
    assert_eq!(code, 403, "{there}");
    let (_, missing) = asked("t").await;
    let message = |answer: &Value| answer["message"].as_str().unwrap().replace("\"t\"", "\"s\"");
    assert_eq!(message(&there), message(&missing));
    let one = format!("GET {API}/namespaces/default/revisions/{}", object::name(&recorded[0]));
    assert_eq!(ask(&cluster, &curious, &one, &json!(null)).await.0, 404);
    assert_eq!(ok(&cluster, &admin(), &one, Value::Null).await["state"], recorded[0]["state"]);
    ok(&cluster, &admin(), &format!("POST {MAPS}"), map("m", "1")).await;
    assert_eq!(revisions_as(&cluster, &curious, &path("", "configmaps", "m")).await.len(), 1);
    // The right to get an object is not the right to its history.
    let (code, _) =
        ask(&cluster, &person("guest"), &format!("GET {}", path("", "configmaps", "m")), &json!(null)).await;
    assert_eq!(code, 403);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bindings_that_are_sent_together_are_attributed() {
    let cluster = start(tempfile::tempdir().unwrap(), |_| {}).await;
    ok(&cluster, &admin(), "POST /api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let pods = "/api/v1/namespaces/default/pods";
    let mut creations = vec![];
    for name in ["p0", "p1", "p2"] {
        let spec = json!({"containers": [{"name": "c", "image": "i"}]});
        ok(&cluster, &admin(), &format!("POST {pods}"), json!({"metadata": {"name": name}, "spec": spec}))
            .await;
        let target = if name == "p1" { "Pod" } else { "Node" };
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name},
            "target": {"kind": target, "name": "n"}});
        creations
            .push(Creation { uri: format!("{pods}/{name}/binding"), body: Bytes::from(binding.to_string()) });
    }
    let map = Bytes::from(map("m", "1").to_string());
    creations.push(Creation { uri: MAPS.into(), body: map });
    let scheduler = crate::common::access::user("binder", &[MASTERS, AUTHENTICATED]);
    let service = LocalService::new(cluster.cluster.stack.clone(), scheduler);
    let codes: Vec<u16> =
        service.create_all("binder-agent", creations).await.into_iter().map(|(code, _)| code).collect();
    assert_eq!((codes[0], codes[2], codes[3]), (201, 201, 201));
    assert!(codes[1] >= 400);
    let bound = revisions(&cluster, "pods", "p0").await;
    expect_test::expect![[r"
        Created admin create
        Modified binder binder-agent create binding"]]
    .assert_eq(&lines(&bound));
    let other = revisions(&cluster, "pods", "p2").await;
    let id = |revisions: &[Value]| object::str_at(&revisions[1], &["auditID"]).to_owned();
    assert!(!id(&bound).is_empty() && id(&bound) != id(&other));
    assert_eq!(revisions(&cluster, "pods", "p1").await.len(), 1);
    assert_eq!(lines(&revisions(&cluster, "configmaps", "m").await), "Created binder binder-agent create");
    cluster.stop().await;
}

fn size(dir: &Path) -> u64 {
    std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_hold() {
    const LIMIT: u64 = 1 << 20;
    let cluster = start(tempfile::tempdir().unwrap(), |options| {
        let history = options.history.as_mut().unwrap();
        history.limits.bytes = LIMIT;
        history.excluded.push(GroupResource::new("", "services"));
    })
    .await;
    let random = SeededRandom::new(7);
    ok(&cluster, &admin(), &format!("POST {MAPS}"), map("m", "")).await;
    let mut last = String::new();
    for _ in 0..60 {
        let value: String = (0..4096).map(|_| format!("{:016x}", random.u64())).collect();
        let changed = ok(&cluster, &admin(), &format!("PUT {MAPS}/m"), map("m", &value)).await;
        object::resource_version(&changed).clone_into(&mut last);
    }
    let kept = revisions(&cluster, "configmaps", "m").await;
    assert!(kept.len() < 60 && !lines(&kept).contains("Created"), "{}", kept.len());
    assert_eq!(object::str_at(&kept[kept.len() - 1], &["revision"]), last);
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    ok(&cluster, &admin(), "POST /api/v1/namespaces/default/services", service).await;
    assert_eq!(revisions(&cluster, "services", "s").await, [Value::Null; 0]);
    let dir = cluster.stop().await;
    // One file beyond the limit at most, which a quarter of it ends.
    let bytes = size(&dir.path().join("history"));
    assert!(bytes <= LIMIT + LIMIT / 4 + (128 << 10), "{bytes}");

    let cluster = start(dir, |options| options.history = None).await;
    let (code, _) =
        ask(&cluster, &admin(), &format!("GET {}", path("", "configmaps", "m")), &json!(null)).await;
    assert_eq!(code, 404);
    cluster.stop().await;
}

/// Clients that back up, count or delete everything list each resource that discovery says can be listed.
#[tokio::test]
async fn what_discovery_says_can_be_listed_can_be() {
    let cluster = start(tempfile::tempdir().unwrap(), |_| ()).await;
    let groups = ok(&cluster, &admin(), "GET /apis", Value::Null).await;
    let mut roots = vec!["/api/v1".to_owned()];
    for group in groups["groups"].as_array().unwrap() {
        let versions = group["versions"].as_array().unwrap();
        roots.extend(versions.iter().map(|v| format!("/apis/{}", object::str_at(v, &["groupVersion"]))));
    }
    let mut listed = 0;
    for root in roots {
        let found = ok(&cluster, &admin(), &format!("GET {root}"), Value::Null).await;
        for resource in found["resources"].as_array().unwrap() {
            if resource["verbs"].as_array().unwrap().iter().any(|verb| verb == "list") {
                let path = format!("GET {root}/{}", object::str_at(resource, &["name"]));
                assert!(ok(&cluster, &admin(), &path, Value::Null).await["items"].is_array(), "{path}");
                listed += 1;
            }
        }
    }
    assert!(listed > 60, "{listed}");
    cluster.stop().await;
}

/// `Created configmaps/m by admin`, one a line.
fn object_lines(list: &Value) -> String {
    let line = |revision: &Value| {
        let text = |path: &[&str]| object::str_at(revision, path).to_owned();
        let (change, user) = (text(&["change"]), text(&["user"]));
        format!("{change} {}/{} by {user}", text(&["object", "resource"]), text(&["object", "name"]))
    };
    list["items"].as_array().unwrap().iter().map(line).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_changed_in_a_namespace_is_listed_for_users_that_may_get_the_objects() {
    let cluster = start(tempfile::tempdir().unwrap(), |_| {}).await;
    let namespace = "/api/v1/namespaces/shop";
    ok(&cluster, &admin(), "POST /api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
    ok(&cluster, &admin(), &format!("POST {namespace}/configmaps"), map("m", "1")).await;
    let secret = json!({"metadata": {"name": "s"}, "stringData": {"password": "hunter2"}});
    ok(&cluster, &admin(), &format!("POST {namespace}/secrets"), secret).await;
    ok(&cluster, &admin(), &format!("POST {MAPS}"), map("other", "1")).await;
    ok(&cluster, &admin(), &format!("DELETE {namespace}/configmaps/m"), Value::Null).await;

    let path = format!("GET {API}/namespaces/shop/revisions");
    let all = ok(&cluster, &admin(), &path, Value::Null).await;
    expect_test::expect![[r"
        Created configmaps/m by admin
        Created secrets/s by admin
        Deleted configmaps/m by admin"]]
    .assert_eq(&object_lines(&all));
    let selected = format!("{path}?fieldSelector=object.resource%21%3Dsecrets&limit=1");
    let first = ok(&cluster, &admin(), &selected, Value::Null).await;
    assert_eq!(object_lines(&first), "Created configmaps/m by admin");
    // A page may be empty, and goes on.
    let (mut next, mut pages) = (object::str_at(&first, &["metadata", "continue"]).to_owned(), vec![]);
    while !next.is_empty() {
        let page = ok(&cluster, &admin(), &format!("{selected}&continue={next}"), Value::Null).await;
        object::str_at(&page, &["metadata", "continue"]).clone_into(&mut next);
        pages.push(object_lines(&page));
    }
    assert_eq!(pages.concat(), "Deleted configmaps/m by admin");

    // What comes later begins where the list ended.
    let end = object::resource_version(&all).to_owned();
    let later = format!("{path}?continue={end}");
    assert_eq!(object_lines(&ok(&cluster, &admin(), &later, Value::Null).await), "");
    ok(&cluster, &admin(), &format!("POST {namespace}/configmaps"), map("n", "1")).await;
    let found = ok(&cluster, &admin(), &later, Value::Null).await;
    assert_eq!(object_lines(&found), "Created configmaps/n by admin");
    let everywhere = format!("GET {API}/revisions?fieldSelector=object.resource%3Dconfigmaps&continue={end}");
    let everywhere = ok(&cluster, &admin(), &everywhere, Value::Null).await;
    assert_eq!(object_lines(&everywhere), "Created configmaps/n by admin");

    let time = object::str_at(&found["items"][0], &["time"]).replace(':', "%3A");
    let since = ok(&cluster, &admin(), &format!("{path}?sinceTime={time}"), Value::Null).await;
    assert_eq!(object_lines(&since), "Created configmaps/n by admin");
    let one = "fieldSelector=object.resource%3Dconfigmaps%2Cobject.name%3Dm";
    // Terms that contradict those that name the object.
    for (terms, lines) in
        [("%2Cobject.group%21%3Dapps", 2), ("%2Cobject.name%21%3Dm", 0), ("%2Cobject.group%21%3D", 0)]
    {
        let found = ok(&cluster, &admin(), &format!("{path}?{one}{terms}"), Value::Null).await;
        assert_eq!(object_lines(&found).lines().count(), lines, "{terms}");
    }
    for wrong in ["sinceTime=yesterday".to_owned(), "continue=x".into(), format!("{one}&sinceTime={time}")] {
        assert_eq!(ask(&cluster, &admin(), &format!("{path}?{wrong}"), &Value::Null).await.0, 400, "{wrong}");
    }

    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/shop";
    let role = json!({"metadata": {"name": "viewers"}, "rules": [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
        {"apiGroups": ["history.kaji.dev"], "resources": ["revisions"], "verbs": ["list"]}]});
    ok(&cluster, &admin(), &format!("POST {rbac}/roles"), role).await;
    let binding = json!({"metadata": {"name": "viewers"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewers"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "viewer"}]});
    ok(&cluster, &admin(), &format!("POST {rbac}/rolebindings"), binding).await;
    let viewer = person("viewer");
    let seen = ok(&cluster, &viewer, &path, Value::Null).await;
    expect_test::expect![[r"
        Created configmaps/m by admin
        Deleted configmaps/m by admin
        Created configmaps/n by admin"]]
    .assert_eq(&object_lines(&seen));
    for refused in [format!("GET {API}/revisions"), format!("GET {API}/namespaces/default/revisions")] {
        assert_eq!(ask(&cluster, &viewer, &refused, &Value::Null).await.0, 403);
    }
    cluster.stop().await;
}
