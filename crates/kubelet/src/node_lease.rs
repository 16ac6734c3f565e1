//! The heartbeat of a node: its Lease in `kube-node-lease`, as upstream's `component-helpers/apimachinery/lease`.
//!
//! Invariants:
//! - A renewal is one update of what the server returned the last time, with its resourceVersion. The lease is read only where that
//!   is not known: at first, and after a write that failed.
//! - What others added to the lease stays in it. Managed fields are not sent: the server keeps them.
//! - A renewal tries so many times as upstream's; what fails after that waits for the next one.

use jiff::Timestamp;
use kaji_meta::time::MicroTime;
use kaji_runtime::{Client, Error, Projection, Target, objects::Lease};
use serde_json::{Value, json};
use std::time::Duration;

/// Upstream's `nodeLeaseDurationSeconds`.
const SECONDS: u64 = 40;
/// The time between two renewals.
pub(crate) const RENEWAL: Duration = Duration::from_secs(SECONDS / 4);
/// Attempts of a renewal: upstream's `maxUpdateRetries`.
const ATTEMPTS: usize = 5;

/// A node's lease; the collection for an empty name.
pub(crate) fn target(node: &str) -> Target {
    Target::of::<Lease>(Lease::OF_NODES, node)
}

/// The first lease of a node.
pub(crate) fn first(node: &str, uid: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": Lease::api_version(),
        "kind": Lease::KIND,
        "metadata": {"name": node, "namespace": Lease::OF_NODES, "ownerReferences": [owner(node, uid)]},
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": SECONDS,
            "renewTime": MicroTime::new(now).to_string(),
        },
    })
}

fn owner(node: &str, uid: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid})
}

/// The lease with another time, and with its owner if it has none and the node's uid is known.
pub(crate) fn renewed(mut lease: Value, node: &str, uid: Option<&str>, now: Timestamp) -> Value {
    let owned = lease["metadata"]["ownerReferences"].as_array().is_some_and(|owners| !owners.is_empty());
    if let Some(uid) = uid.filter(|_| !owned) {
        lease["metadata"]["ownerReferences"] = json!([owner(node, uid)]);
    }
    lease["spec"]["renewTime"] = MicroTime::new(now).to_string().into();
    lease
}

/// What is kept of a lease that the server returned.
///
/// # Errors
/// When it is none.
pub(crate) fn kept(mut lease: Value) -> Result<Value, Error> {
    let absent = lease.get("spec").is_none_or(Value::is_null);
    let spec = absent || lease["spec"].is_object();
    match lease.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| spec) {
        Some(metadata) => {
            metadata.remove("managedFields");
            Ok(lease)
        }
        None => Err(Error::Decode("a lease without metadata, or with a spec that is no object".to_owned())),
    }
}

/// Renews the lease of one node.
pub(crate) struct Renewer {
    client: Client,
    node: String,
    latest: Option<Value>,
}

impl Renewer {
    /// For the node of this name.
    pub fn new(client: Client, node: String) -> Renewer {
        Renewer { client, node, latest: None }
    }

    /// Creates the lease or renews it. `uid` is the node's, if it is known.
    ///
    /// # Errors
    /// Those of the server, after the last attempt.
    pub async fn renew(&mut self, uid: Option<&str>, now: Timestamp) -> Result<(), Error> {
        let mut outcome = Ok(());
        for _ in 0..ATTEMPTS {
            outcome = self.attempt(uid, now).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    async fn attempt(&mut self, uid: Option<&str>, now: Timestamp) -> Result<(), Error> {
        let target = target(&self.node);
        let latest = match self.latest.take() {
            Some(latest) => latest,
            None => match self.client.get::<Value>(&target.path()).await {
                Ok(found) => kept(found)?,
                Err(error) if error.not_found() => return self.create(uid, now).await,
                Err(error) => return Err(error),
            },
        };
        let lease = renewed(latest, &self.node, uid, now);
        self.latest = Some(kept(self.client.update(&target, &lease).await?)?);
        Ok(())
    }

    async fn create(&mut self, uid: Option<&str>, now: Timestamp) -> Result<(), Error> {
        let uid = match uid {
            Some(uid) => uid.to_owned(),
            // A lease without an owner would outlive its node.
            None => {
                let node: Value = self.client.get(&format!("/api/v1/nodes/{}", self.node)).await?;
                node["metadata"]["uid"].as_str().unwrap_or_default().to_owned()
            }
        };
        let lease = first(&self.node, &uid, now);
        self.latest = Some(kept(self.client.create(&target(""), &lease).await?)?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use http::{Request, Response};
    use http_body_util::BodyExt;
    use kube::client::Body;
    use std::{
        collections::VecDeque,
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    /// A client with these answers to its requests, which are written down.
    fn client(answers: &[(u16, Value)]) -> (Client, Arc<Mutex<String>>) {
        let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
        let log = Arc::new(Mutex::new(String::new()));
        let requests = log.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (answers, requests) = (answers.clone(), requests.clone());
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                let line = format!("{} {} {}", head.method, head.uri.path(), String::from_utf8_lossy(&body));
                *requests.lock().unwrap() += &format!("{}\n", line.trim_end());
                let (code, body) = answers.lock().unwrap().pop_front().unwrap_or((500, json!({})));
                let response =
                    Response::builder().status(code).body(Body::from(body.to_string().into_bytes()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        (Client::new(kube::Client::new(service, "default"), "kubelet"), log)
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    fn lease(revision: &str) -> Value {
        let mut lease = first("n", "u", at(0));
        lease["metadata"]["resourceVersion"] = revision.into();
        lease["metadata"]["annotations"] = json!({"of": "another client"});
        lease["metadata"]["managedFields"] = json!([{"manager": "kubelet"}]);
        lease
    }

    fn status(code: u16) -> (u16, Value) {
        (
            code,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no"}),
        )
    }

    #[tokio::test]
    async fn a_renewal_is_one_update_of_what_the_server_returned() {
        let (client, log) = client(&[status(404), (201, lease("1")), (200, lease("2")), (200, lease("3"))]);
        let mut renewer = Renewer::new(client, "n".to_owned());
        for turn in 0..3 {
            renewer.renew(Some("u"), at(turn * 10)).await.unwrap();
        }
        expect![[r#"
            GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n
            POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases {"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":"n","namespace":"kube-node-lease","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]},"spec":{"holderIdentity":"n","leaseDurationSeconds":40,"renewTime":"2023-11-14T22:13:20.000000Z"}}
            PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n {"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"annotations":{"of":"another client"},"name":"n","namespace":"kube-node-lease","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}],"resourceVersion":"1"},"spec":{"holderIdentity":"n","leaseDurationSeconds":40,"renewTime":"2023-11-14T22:13:30.000000Z"}}
            PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n {"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"annotations":{"of":"another client"},"name":"n","namespace":"kube-node-lease","ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}],"resourceVersion":"2"},"spec":{"holderIdentity":"n","leaseDurationSeconds":40,"renewTime":"2023-11-14T22:13:40.000000Z"}}
        "#]].assert_eq(&log.lock().unwrap());
    }

    #[tokio::test]
    async fn a_lease_that_was_changed_or_deleted_is_read_again() {
        let answers = [
            (200, lease("5")),
            status(409),
            (200, lease("6")),
            status(409),
            status(404),
            // The node's uid.
            (200, json!({"metadata": {"uid": "u"}})),
            (201, lease("7")),
        ];
        let (client, log) = client(&answers);
        Renewer::new(client, "n".to_owned()).renew(None, at(0)).await.unwrap();
        let text = log.lock().unwrap().clone();
        let calls: Vec<&str> = text.lines().map(|line| line.split('{').next().unwrap().trim()).collect();
        expect![[r#"
            GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n
            PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n
            GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n
            PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n
            GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n
            GET /api/v1/nodes/n
            POST /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"#]]
        .assert_eq(&calls.join("\n"));
    }

    #[tokio::test]
    async fn a_renewal_ends_after_so_many_attempts() {
        let (client, log) = client(&[]);
        let mut renewer = Renewer::new(client, "n".to_owned());
        assert!(renewer.renew(Some("u"), at(0)).await.is_err());
        assert_eq!(log.lock().unwrap().lines().count(), ATTEMPTS);
    }

    #[tokio::test]
    async fn answers_that_are_no_leases_are_refused() {
        let all =
            [json!(null), json!([]), json!("x"), json!({"metadata": 5}), json!({"metadata": {}, "spec": []})];
        for garbage in all {
            let (client, log) = client(&vec![(200, garbage.clone()); ATTEMPTS]);
            let renewed = Renewer::new(client, "n".to_owned()).renew(Some("u"), at(0)).await;
            assert!(matches!(renewed, Err(Error::Decode(_))), "{garbage}: {renewed:?}");
            assert!(!log.lock().unwrap().contains("PUT"), "{garbage}");
        }
        // A lease that another client made without a spec, or an owner, gets them.
        let bare = renewed(json!({"metadata": {"name": "n"}}), "n", Some("u"), at(0));
        assert_eq!(
            (bare["metadata"]["ownerReferences"][0]["uid"].as_str(), bare["spec"].is_object()),
            (Some("u"), true)
        );
    }
}
