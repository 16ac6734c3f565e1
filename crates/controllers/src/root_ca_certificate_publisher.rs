//! The certificates that pods trust when they talk to the API server: a config map in every active namespace.
//!
//! Invariants:
//! - Keys are namespaces. The data is put back when it was changed or deleted; the annotation only when it is empty.

use crate::{
    Descriptor, Start,
    serviceaccount::active,
    shared::{pods::namespace_terminating, publishing::outcome_code},
};
use kaji_runtime::{
    Buckets, Change, Controller, Cx, Failure, Informers, Key, Metric, PatchKind, Plan, Projection,
    Reconciler, Sample, View, Write,
    client::Target,
    objects::{ConfigMap, Namespace},
};
use serde_json::{Map, Value, json};
use std::sync::Arc;

const NAME: &str = "kube-root-ca.crt";
const DATA_KEY: &str = "ca.crt";
const ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";

const COMPONENT: &str = "root-ca-cert-publisher";

// Upstream's text of help is the same for both.
static SYNCS: Metric = Metric::counter(
    "root_ca_cert_publisher_sync_total",
    "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
    &["code"],
);
static SYNC_DURATION: Metric = Metric::histogram(
    "root_ca_cert_publisher_sync_duration_seconds",
    "[ALPHA] Number of namespace syncs happened in root ca cert publisher.",
    &["code"],
    Buckets::exponential(0.001, 2.0, 15),
);
/// The metrics of the controller.
pub static METRICS: [&Metric; 2] = [&SYNCS, &SYNC_DURATION];

/// The controller's line in the table.
pub const CONTROLLER: Descriptor = Descriptor {
    name: "root-ca-certificate-publisher-controller",
    components: &[COMPONENT],
    service_account: Some("root-ca-cert-publisher"),
    workers: None,
    start: Start::Reconcilers(|informers, config| {
        config.root_ca().map(|ca| controller(informers, ca)).into_iter().collect()
    }),
};

/// The publisher of `root_ca`, PEM.
fn controller(informers: &Arc<Informers>, root_ca: &str) -> Controller {
    Controller::new(Publisher { root_ca: root_ca.to_owned() }, informers)
        .reads::<Namespace>(|change, _| vec![change.any().metadata.key()])
        .reads::<ConfigMap>(|change: &Change<ConfigMap>, _| {
            let map = &change.any().metadata;
            if map.name == NAME { vec![Key::new("", map.namespace.as_str())] } else { vec![] }
        })
}

/// Whether nothing is to be published there, as the namespace is gone or going: what failed was a create.
fn settled(failure: &Failure) -> bool {
    let Failure { target, error } = failure;
    target.name.is_empty() && (error.not_found() || namespace_terminating(error))
}

struct Publisher {
    root_ca: String,
}

impl Reconciler for Publisher {
    fn name(&self) -> &'static str {
        COMPONENT
    }

    fn queue_name(&self) -> &'static str {
        "root_ca_cert_publisher"
    }

    fn metrics(&self) -> &'static [&'static Metric] {
        &METRICS
    }

    fn ended(&self, failures: &[Failure], seconds: f64) -> Vec<Sample> {
        let code = outcome_code(failures, settled);
        vec![SYNCS.one([code.clone()]), SYNC_DURATION.sample([code], seconds)]
    }

    fn reconcile(&self, view: &View, key: &Key, cx: &Cx<'_>) -> Plan {
        let namespace = key.name.as_str();
        if cx.failures.iter().any(|f| namespace_terminating(&f.error)) || !active(view, namespace) {
            return Plan::nothing();
        }
        let maps = view.get::<ConfigMap>();
        let Some(map) = maps.get(namespace, NAME) else {
            return Plan::nothing().then(Write::Create {
                target: Target::of::<ConfigMap>(namespace, ""),
                body: json!({
                    "apiVersion": ConfigMap::api_version(),
                    "kind": ConfigMap::KIND,
                    "metadata": {"name": NAME, "namespace": namespace, "annotations": {ANNOTATION: DESCRIPTION}},
                    "data": {DATA_KEY: self.root_ca},
                }),
            });
        };
        let described = map.metadata.annotations.get(ANNOTATION).is_some_and(|a| !a.is_empty());
        if map.metadata.deleting()
            || described && map.data.len() == 1 && map.data.get(DATA_KEY) == Some(&self.root_ca)
        {
            return Plan::nothing();
        }
        let mut data: Map<String, Value> = map.data.keys().map(|k| (k.clone(), Value::Null)).collect();
        data.insert(DATA_KEY.into(), self.root_ca.as_str().into());
        Plan::nothing().then(Write::Patch {
            target: Target::of::<ConfigMap>(namespace, NAME),
            kind: PatchKind::Merge,
            body: json!({
                "metadata": {
                    "uid": map.metadata.uid,
                    "resourceVersion": map.metadata.resource_version,
                    "annotations": {ANNOTATION: DESCRIPTION},
                },
                "data": data,
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{reconcile, sample, snapshot, text};
    use expect_test::expect;
    use kaji_meta::Status;
    use kaji_runtime::Error;

    fn plan(phase: &str, maps: Vec<Value>) -> String {
        let view = View::default()
            .with(snapshot::<Namespace>([json!({"metadata": {"name": "ns"}, "status": {"phase": phase}})]))
            .with(snapshot::<ConfigMap>(maps));
        text(&reconcile(&Publisher { root_ca: "PEM".into() }, &view, "", "ns", &[]))
    }

    fn map(data: Value, description: &str) -> Value {
        json!({"metadata": {"name": NAME, "namespace": "ns", "uid": "u", "resourceVersion": "5",
            "annotations": {ANNOTATION: description}}, "data": data})
    }

    #[test]
    fn publishes_the_certificates() {
        expect![[r#"
            create /api/v1/namespaces/ns/configmaps {"apiVersion":"v1","data":{"ca.crt":"PEM"},"kind":"ConfigMap","metadata":{"annotations":{"kubernetes.io/description":"Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across distributions of Kubernetes clusters."},"name":"kube-root-ca.crt","namespace":"ns"}}
        "#]]
        .assert_eq(&plan("Active", vec![]));
        expect![""].assert_eq(&plan("Terminating", vec![]));
    }

    #[test]
    fn syncs_are_counted_by_code() {
        let count = |codes: &[u16]| {
            let failure = |code: &u16| Failure {
                target: Target::of::<ConfigMap>("ns", ""),
                error: Error::Api(Box::new(Status { code: *code, ..Status::internal("refused") })),
            };
            let failures: Vec<Failure> = codes.iter().map(failure).collect();
            let samples = Publisher { root_ca: "PEM".into() }.ended(&failures, 0.25);
            samples.iter().map(sample).collect::<Vec<_>>().join(", ")
        };
        expect![[r#"
            root_ca_cert_publisher_sync_total "200" = 1, root_ca_cert_publisher_sync_duration_seconds "200" = 0.25
            root_ca_cert_publisher_sync_total "403" = 1, root_ca_cert_publisher_sync_duration_seconds "403" = 0.25
            root_ca_cert_publisher_sync_total "200" = 1, root_ca_cert_publisher_sync_duration_seconds "200" = 0.25"#]]
        .assert_eq(&[&[][..], &[403], &[404]].map(count).join("\n"));
    }

    #[test]
    fn restores_changed_content() {
        expect![""].assert_eq(&plan("Active", vec![map(json!({"ca.crt": "PEM"}), "mine")]));
        let text = plan("Active", vec![map(json!({"ca.crt": "other", "x": "y"}), "mine")]);
        assert!(text.contains(r#""data":{"ca.crt":"PEM","x":null}"#), "{text}");
        let text = plan("Active", vec![map(json!({"ca.crt": "PEM"}), "")]);
        assert!(text.starts_with("merge /api/v1/namespaces/ns/configmaps/kube-root-ca.crt "), "{text}");
    }
}
