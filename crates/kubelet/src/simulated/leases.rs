//! The leases of simulated nodes, which are renewed by the plans of their nodes: [`crate::node_lease`] without its own loop.
//!
//! Invariant: what is known of a lease is what the server returned to the last write or read; a write that failed makes it unknown.

use crate::node_lease::{RENEWAL, first, kept, renewed, target};
use jiff::Timestamp;
use kaji_runtime::{Client, Projection, Write, objects::Lease, objects::Node};
use serde_json::Value;
use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// The wait before a lease that could not be read is read again.
const RETRY: Duration = Duration::from_secs(1);

/// What is known of a lease.
enum Known {
    /// There is none.
    Absent,
    /// As JSON, which takes less memory than a tree; when this process renewed it the last time.
    Present(Box<[u8]>, Option<Timestamp>),
}

/// The leases of a fleet, by node; of its size.
#[derive(Default)]
pub struct Leases(Mutex<HashMap<String, Known>>);

impl Leases {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Of one node that has none.
    #[cfg(test)]
    pub fn absent(node: &str) -> Leases {
        Leases(Mutex::new([(node.to_owned(), Known::Absent)].into()))
    }

    /// Reads a lease that is not known.
    pub async fn read(&self, node: &str, client: &Client) {
        if self.lock().contains_key(node) {
            return;
        }
        match client.get::<Value>(&target(node).path()).await {
            Ok(found) => self.keep(node, &found, None),
            Err(error) if error.not_found() => drop(self.lock().insert(node.to_owned(), Known::Absent)),
            Err(error) => tracing::debug!(node, %error, "a lease could not be read"),
        }
    }

    fn keep(&self, node: &str, lease: &Value, renewed: Option<Timestamp>) {
        match kept(lease.clone()) {
            Ok(lease) => {
                let lease = lease.to_string().into_bytes().into_boxed_slice();
                self.lock().insert(node.to_owned(), Known::Present(lease, renewed));
            }
            Err(error) => {
                tracing::debug!(node, %error, "a lease could not be read");
                self.lock().remove(node);
            }
        }
    }

    /// Takes notice of a write: the object as it is now, or nothing if it failed.
    pub fn written(&self, node: &str, write: &Write, outcome: Option<&Value>) {
        if write.target().resource != Lease::RESOURCE {
            return;
        }
        let (Write::Create { body, .. } | Write::Update { body, .. }, Some(lease)) = (write, outcome) else {
            self.lock().remove(node);
            return;
        };
        let time = body["spec"]["renewTime"].as_str().and_then(|time| time.parse().ok());
        self.keep(node, lease, time);
    }

    /// What renews a node's lease, if it is due, and when to look again.
    pub fn next(&self, node: &Node, now: Timestamp) -> (Option<Write>, Duration) {
        let (name, uid) = (&node.metadata.name, &node.metadata.uid);
        match self.lock().get(name.as_str()) {
            None => (None, RETRY),
            Some(Known::Absent) => {
                let create = Write::Create { target: target(""), body: first(name, uid, now) };
                (Some(create), RENEWAL)
            }
            Some(Known::Present(lease, last)) => {
                // A clock that was set back makes no renewal late.
                let since = last.and_then(|last| Duration::try_from(now.duration_since(last)).ok());
                if let Some(since) = since.filter(|since| *since < RENEWAL) {
                    return (None, RENEWAL - since);
                }
                let lease = serde_json::from_slice(lease).unwrap_or_default();
                let body = renewed(lease, name, Some(uid), now);
                (Some(Write::Update { target: target(name), body }), RENEWAL)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node() -> Node {
        serde_json::from_value(json!({"metadata": {"name": "sim-1", "uid": "u"}})).unwrap()
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_700_000_000 + seconds).unwrap()
    }

    /// The write and the wait.
    fn show(leases: &Leases, seconds: i64) -> String {
        let (write, wait) = leases.next(&node(), at(seconds));
        let write = match &write {
            None => "-".to_owned(),
            Some(Write::Create { target, .. }) => format!("create {}", target.path()),
            Some(Write::Update { body, .. }) => {
                format!("update {}", body["metadata"]["resourceVersion"].as_str().unwrap_or("?"))
            }
            Some(_) => "?".to_owned(),
        };
        format!("{write} {wait:?}")
    }

    #[test]
    fn a_lease_is_created_and_renewed_when_it_is_due() {
        let leases = Leases::default();
        assert_eq!(show(&leases, 0), "- 1s", "it is not known");
        let leases = Leases::absent("sim-1");
        assert_eq!(
            show(&leases, 0),
            "create /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases 10s"
        );
        let answer = |seconds: i64, revision: &str| {
            let (write, _) = leases.next(&node(), at(seconds));
            let write = write.unwrap();
            let (Write::Create { body, .. } | Write::Update { body, .. }) = &write else {
                panic!("{write:?}")
            };
            let mut lease = body.clone();
            lease["metadata"]["resourceVersion"] = revision.into();
            lease["metadata"]["managedFields"] = json!([{"manager": "kubelet"}]);
            leases.written("sim-1", &write, Some(&lease));
        };
        answer(0, "7");
        assert_eq!(show(&leases, 4), "- 6s", "other changes of the node renew nothing");
        assert_eq!(show(&leases, 10), "update 7 10s");
        assert_eq!(show(&leases, -60), "update 7 10s", "the clock was set back");
        answer(10, "8");
        assert_eq!(show(&leases, 20), "update 8 10s");
        let (write, _) = leases.next(&node(), at(20));
        let Some(Write::Update { body, .. }) = &write else { panic!("{write:?}") };
        assert!(body["metadata"].get("managedFields").is_none());
        assert_eq!(body["spec"]["renewTime"], "2023-11-14T22:13:40.000000Z");
        // A conflict: it is read again first.
        leases.written("sim-1", &write.unwrap(), None);
        assert_eq!(show(&leases, 21), "- 1s");
    }

    #[test]
    fn an_answer_that_is_no_lease_is_not_kept() {
        let leases = Leases::default();
        for garbage in [json!(null), json!(7), json!({"metadata": []}), json!({"metadata": {}, "spec": "x"})]
        {
            let write = Write::Update { target: target("sim-1"), body: garbage.clone() };
            leases.written("sim-1", &write, Some(&garbage));
            assert_eq!(show(&leases, 0), "- 1s", "{garbage}");
        }
    }
}
