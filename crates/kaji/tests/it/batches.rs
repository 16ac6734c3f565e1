//! Creations that are sent together have the outcomes, the audit events and the effects of the same creations one by one.

use crate::common::{
    TestCluster,
    access::{admin, ask, ok, person},
};
use bytes::Bytes;
use kaji_audit::Options as AuditOptions;
use kaji_meta::{Random, SeededRandom, object};
use kaji_server::{Creation, LocalService};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

/// The same is done in both: at once, and one by one.
const NAMESPACES: [&str; 2] = ["batched", "singled"];
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const PODS: usize = 40;

fn audited(dir: &Path) -> AuditOptions {
    let file = dir.join("policy.yaml");
    let rules = "rules:\n- {level: Metadata, users: [binder]}\n- {level: None}\n";
    std::fs::write(&file, format!("apiVersion: audit.k8s.io/v1\nkind: Policy\n{rules}")).unwrap();
    let mut options = AuditOptions { policy_file: Some(file), ..AuditOptions::default() };
    options.log.path = dir.join("audit.log").to_str().unwrap().into();
    options
}

/// Pods, some of them gated, and the right to bind some of them by name and to create events.
async fn prepare(cluster: &TestCluster) {
    let admin = admin();
    let names = (0..PODS).filter(|i| i % 7 != 6).map(|i| format!("p{i}"));
    let named: Vec<String> = names.chain(["missing".to_owned()]).collect();
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"], "resourceNames": named},
        {"apiGroups": [""], "resources": ["events"], "verbs": ["create"]}]);
    ok(
        cluster,
        &admin,
        &format!("POST {RBAC}/clusterroles"),
        json!({"metadata": {"name": "binder"}, "rules": rules}),
    )
    .await;
    for namespace in NAMESPACES {
        let at = format!("/api/v1/namespaces/{namespace}");
        ok(cluster, &admin, "POST /api/v1/namespaces", json!({"metadata": {"name": namespace}})).await;
        ok(cluster, &admin, &format!("POST {at}/serviceaccounts"), json!({"metadata": {"name": "default"}}))
            .await;
        let binding = json!({
            "metadata": {"name": "binder"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "binder"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "binder"}],
        });
        ok(cluster, &admin, &format!("POST {RBAC}/namespaces/{namespace}/rolebindings"), binding).await;
        for i in 0..PODS {
            let gates = if i % 9 == 8 { json!([{"name": "example.com/g"}]) } else { json!([]) };
            // No volume with a random name.
            let spec = json!({"containers": [{"name": "c", "image": "i"}], "schedulingGates": gates,
                "automountServiceAccountToken": false});
            let pod = json!({"metadata": {"name": format!("p{i}"), "labels": {"a": "b"}}, "spec": spec});
            ok(cluster, &admin, &format!("POST {at}/pods"), pod).await;
        }
    }
    for zone in ["z0", "z1"] {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        ok(cluster, &admin, "POST /api/v1/nodes", json!({"metadata": {"name": zone, "labels": labels}}))
            .await;
    }
}

async fn pods(cluster: &TestCluster, namespace: &str) -> Vec<Value> {
    let list = ok(cluster, &admin(), &format!("GET /api/v1/namespaces/{namespace}/pods"), Value::Null).await;
    list["items"].as_array().unwrap().clone()
}

/// Bindings and events, of which many are refused. The same numbers make the same creations in each namespace. No two are about the same
/// pod: those of a batch are carried out at the same time.
async fn creations(cluster: &TestCluster, namespace: &str, random: &SeededRandom) -> Vec<Creation> {
    let uids: BTreeMap<String, String> = pods(cluster, namespace)
        .await
        .iter()
        .map(|p| (object::name(p).into(), object::uid(p).into()))
        .collect();
    let at = format!("/api/v1/namespaces/{namespace}");
    let first = random.u64() % PODS as u64;
    let one = |i: u64| {
        let number = random.u64();
        let pod = format!("p{}", (first + i) % PODS as u64);
        let mut uri = format!("{at}/pods/{pod}/binding");
        let mut body = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod, "namespace": namespace,
            "uid": uids[&pod]}, "target": {"kind": "Node", "name": format!("z{}", number / 32 % 2)}});
        match number % 16 {
            0 => body["metadata"]["uid"] = "another".into(),
            1 => body["target"]["kind"] = "Pod".into(),
            2 => body["metadata"]["name"] = "other".into(),
            3 => (uri, body["metadata"]["name"]) = (format!("{at}/pods/missing/binding"), "missing".into()),
            4 => body["metadata"]["namespace"] = "elsewhere".into(),
            5 => uri = format!("/api/v1/namespaces/default/pods/{pod}/binding"),
            6 => body["metadata"]["labels"] = json!({"not a label": "x"}),
            7 => body["metadata"]["annotations"] = json!({"example.com/a": "b"}),
            8 => {
                let involved = json!({"kind": "Pod", "namespace": namespace, "name": pod});
                uri = format!("{at}/events");
                body = json!({"metadata": {"name": format!("e{number}")}, "involvedObject": involved});
            }
            _ => {}
        }
        let text = if number % 128 == 127 { "{".to_owned() } else { body.to_string() };
        Creation { uri, body: Bytes::from(text) }
    };
    (0..PODS as u64).map(one).collect()
}

/// One outcome a line, the namespace left out.
fn shown(outcomes: &[(u16, Value)], namespace: &str) -> Vec<String> {
    let line = |(code, body): &(u16, Value)| {
        let said = if *code < 300 { "" } else { body["message"].as_str().or(body.as_str()).unwrap_or("-") };
        format!("{code} {}", said.replace(namespace, "NS"))
    };
    // The uid of a precondition that fails is the pod's.
    outcomes.iter().map(line).map(|line| line.split("in object meta").next().unwrap().to_owned()).collect()
}

/// The audit events of a namespace's requests, the namespace left out; each has an id of its own for both of its stages.
fn events(dir: &Path, namespace: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join("audit.log")).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of: Vec<&Value> = events
        .iter()
        .filter(|e| e["requestURI"].as_str().unwrap().contains(&format!("/{namespace}/")))
        .collect();
    let ids: BTreeSet<&str> = of.iter().map(|e| e["auditID"].as_str().unwrap()).collect();
    assert_eq!(2 * ids.len(), of.len());
    let line = |event: &&Value| {
        let fields = ["stage", "verb", "requestURI"].map(|field| event[field].as_str().unwrap_or("-"));
        let (status, decision) =
            (&event["responseStatus"]["code"], &event["annotations"]["authorization.k8s.io/decision"]);
        format!("{} {status} {decision}", fields.join(" ")).replace(namespace, "NS")
    };
    let mut lines: Vec<String> = of.iter().map(line).collect();
    lines.sort();
    lines
}

/// A pod without what differs from one namespace to the other.
fn plain(mut pod: Value) -> Value {
    let meta = object::meta_mut(&mut pod);
    ["namespace", "uid", "resourceVersion", "creationTimestamp"]
        .iter()
        .for_each(|field| drop(meta.remove(*field)));
    // Their times differ.
    meta.remove("managedFields");
    for condition in pod["status"]["conditions"].as_array_mut().into_iter().flatten() {
        condition["lastTransitionTime"] = Value::Null;
    }
    pod
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_sent_together_comes_out_as_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let audit = audited(dir.path());
    let cluster = TestCluster::start_with(|options| options.audit = audit).await;
    prepare(&cluster).await;
    let binder = person("binder");
    let service = LocalService::new(cluster.cluster.stack.clone(), binder.clone());
    let mut codes = BTreeSet::new();
    for seed in 0..6 {
        let [batch, single] = NAMESPACES;
        let together = creations(&cluster, batch, &SeededRandom::new(seed)).await;
        let alone = creations(&cluster, single, &SeededRandom::new(seed)).await;
        let answers = service.create_all("binder", together).await;
        let json = |body: Bytes| {
            serde_json::from_slice(&body)
                .unwrap_or_else(|_| String::from_utf8_lossy(&body).into_owned().into())
        };
        let answers: Vec<(u16, Value)> = answers.into_iter().map(|(code, body)| (code, json(body))).collect();
        let mut others = vec![];
        for Creation { uri, body } in alone {
            let body = serde_json::from_slice(&body).unwrap_or_else(|_| Value::from(0));
            others.push(ask(&cluster, &binder, &format!("POST {uri}"), &body).await);
        }
        codes.extend(answers.iter().map(|(code, _)| *code));
        assert_eq!(answers.len(), others.len());
        for (at, (one, other)) in answers.iter().zip(&others).enumerate() {
            // A body that is no JSON is sent as another one that is no object.
            if !matches!((one.0, other.0), (400, 400)) {
                let show = |answer: &(u16, Value), namespace| shown(std::slice::from_ref(answer), namespace);
                assert_eq!(show(one, batch), show(other, single), "seed {seed}, creation {at}");
            }
        }
    }
    assert_eq!(codes.into_iter().collect::<Vec<_>>(), [201, 400, 403, 404, 409, 422, 500]);
    let (batched, singled) = (pods(&cluster, NAMESPACES[0]).await, pods(&cluster, NAMESPACES[1]).await);
    let versions: BTreeSet<&str> = batched.iter().map(object::resource_version).collect();
    assert_eq!(versions.len(), PODS);
    assert!(batched.iter().any(|pod| pod["spec"]["nodeName"] == "z1"));
    for (one, other) in batched.into_iter().zip(singled) {
        assert_eq!(plain(one), plain(other));
    }
    cluster.stop().await;
    assert_eq!(events(dir.path(), NAMESPACES[0]), events(dir.path(), NAMESPACES[1]));
}
