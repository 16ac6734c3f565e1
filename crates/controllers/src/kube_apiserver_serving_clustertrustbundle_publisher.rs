//! The trust bundle of `kubernetes.io/kube-apiserver-serving`: what verifies the API server, for pods to mount.
//!
//! Invariant: the bundle's name is made of its content, so a new authority makes a new object; other objects of the
//! signer are deleted after the right one is there.

use crate::{Descriptor, Start, shared::publishing::outcome_code};
use kaji_runtime::{
    Buckets, Controller, Cx, Failure, Informers, Key, Metric, PatchKind, Plan, Projection, Reconciler,
    Sample, Step, View, Write, client::Target, objects::ClusterTrustBundle,
};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::sync::Arc;

const SIGNER: &str = "kubernetes.io/kube-apiserver-serving";

const COMPONENT: &str = "kube-apiserver-serving-clustertrustbundle-publisher";

static SYNCS: Metric = Metric::counter(
    "clustertrustbundle_publisher_sync_total",
    "[ALPHA] Number of syncs that occurred in cluster trust bundle publisher.",
    &["code"],
);
static SYNC_DURATION: Metric = Metric::histogram(
    "clustertrustbundle_publisher_sync_duration_seconds",
    "[ALPHA] The time it took to sync a cluster trust bundle.",
    &["code"],
    Buckets::exponential(0.001, 2.0, 15),
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&SYNCS, &SYNC_DURATION];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "kube-apiserver-serving-clustertrustbundle-publisher-controller",
    components: &[COMPONENT],
    service_account: Some("kube-apiserver-serving-clustertrustbundle-publisher"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        config.root_ca().map(|ca| controller(informers, ca)).into_iter().collect()
    }),
};

/// The publisher of `root_ca`, PEM.
fn controller(informers: &Arc<Informers>, root_ca: &str) -> Controller {
    Controller::new(Publisher { bundle: root_ca.to_owned() }, informers)
        .reads::<ClusterTrustBundle>(|change, _| {
            if change.any().spec.signer_name == SIGNER { vec![Key::default()] } else { vec![] }
        })
        .seed(Key::default())
}

struct Publisher {
    bundle: String,
}

fn name(bundle: &str) -> String {
    format!("{}:{}", SIGNER.replace('/', ":"), kaji_meta::text::hex(&Sha256::digest(bundle)[..12]))
}

impl Reconciler for Publisher {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "ca_cert_publisher_cluster_trust_bundles"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn ended(&self, failures: &[Failure], seconds: f64) -> Vec<Sample> {
        let code = outcome_code(failures, |_| false);
        vec![SYNCS.one([code.clone()]), SYNC_DURATION.sample([code], seconds)]
    }

    fn reconcile(&self, view: &View, _: &Key, _: &Cx<'_>) -> Plan {
        let bundles = view.get::<ClusterTrustBundle>();
        let name = name(&self.bundle);
        let mut plan = Plan::nothing();
        match bundles.get("", &name) {
            None => {
                plan = plan.then(Write::Create {
                    target: Target::of::<ClusterTrustBundle>("", ""),
                    body: json!({
                        "apiVersion": ClusterTrustBundle::api_version(),
                        "kind": ClusterTrustBundle::KIND,
                        "metadata": {"name": name},
                        "spec": {"signerName": SIGNER, "trustBundle": self.bundle},
                    }),
                });
            }
            Some(found) if found.spec.trust_bundle != self.bundle => {
                plan = plan.then(Write::Patch {
                    target: Target::of::<ClusterTrustBundle>("", &name),
                    kind: PatchKind::Merge,
                    body: json!({
                        "metadata": {"uid": found.metadata.uid, "resourceVersion": found.metadata.resource_version},
                        "spec": {"trustBundle": self.bundle},
                    }),
                });
            }
            Some(_) => {}
        }
        let others = bundles
            .iter()
            .filter(|b| b.spec.signer_name == SIGNER && b.metadata.name != name && !b.metadata.deleting());
        let deletions = others.map(|b| Step {
            write: Write::Delete {
                target: Target::of::<ClusterTrustBundle>("", &b.metadata.name),
                options: json!({"preconditions": {"uid": b.metadata.uid}}),
            },
            on_success: None,
            on_failure: None,
        });
        plan.stage(deletions.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, sample, snapshot, text};
    use expect_test::expect;
    use kaji_runtime::Error;
    use serde_json::Value;

    fn plan(bundles: Vec<Value>) -> String {
        let view = View::default().with(snapshot::<ClusterTrustBundle>(bundles));
        text(&reconcile(&Publisher { bundle: "PEM".into() }, &view, "", "", &[]))
    }

    fn bundle(name: &str, signer: &str, content: &str) -> Value {
        json!({"metadata": {"name": name, "uid": "u", "resourceVersion": "5"},
            "spec": {"signerName": signer, "trustBundle": content}})
    }

    #[test]
    fn syncs_are_counted_by_code() {
        let count = |failures: &[Failure]| {
            let samples = Publisher { bundle: "PEM".into() }.ended(failures, 0.5);
            samples.iter().map(sample).collect::<Vec<_>>().join(", ")
        };
        // A server that does not answer gives no code.
        let target = Target::of::<ClusterTrustBundle>("", "");
        let lost = Failure { target, error: Error::Transport("closed".into()) };
        expect![[r#"
            clustertrustbundle_publisher_sync_total "200" = 1, clustertrustbundle_publisher_sync_duration_seconds "200" = 0.5
            clustertrustbundle_publisher_sync_total "500" = 1, clustertrustbundle_publisher_sync_duration_seconds "500" = 0.5"#]]
        .assert_eq(&[count(&[]), count(&[lost])].join("\n"));
    }

    #[test]
    fn keeps_one_bundle_of_the_signer() {
        expect![[r#"
            create /apis/certificates.k8s.io/v1/clustertrustbundles {"apiVersion":"certificates.k8s.io/v1","kind":"ClusterTrustBundle","metadata":{"name":"kubernetes.io:kube-apiserver-serving:384fb9a44fabe158be2757b9"},"spec":{"signerName":"kubernetes.io/kube-apiserver-serving","trustBundle":"PEM"}}
            --
            delete /apis/certificates.k8s.io/v1/clustertrustbundles/kubernetes.io%3Akube-apiserver-serving%3Aold {"preconditions":{"uid":"u"}}
        "#]]
        .assert_eq(&plan(vec![
            bundle("kubernetes.io:kube-apiserver-serving:old", SIGNER, "OLD"),
            bundle("other", "example.com/x", "OLD"),
        ]));
        assert_eq!(plan(vec![bundle(&name("PEM"), SIGNER, "PEM")]), "");
        assert!(plan(vec![bundle(&name("PEM"), SIGNER, "x")]).starts_with("merge /apis/certificates.k8s.io"));
    }
}
