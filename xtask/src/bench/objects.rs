//! The objects that are made: bodies encoded once, with a hole for the name. Pure.

use super::client::Call;
use serde_json::{Value, json};

/// Where a template's name goes.
pub(super) const HOLE: &str = "@name@";
/// Marks what this program makes in the cluster's scope.
pub const LABEL: &str = "bench.kaji.example/run";
/// A scheduler that does not run: its pods stay unbound, and no node touches them.
const ABSENT_SCHEDULER: &str = "bench.kaji.example/nobody";

/// An object's JSON in pieces, between which its name belongs.
#[derive(Clone)]
pub struct Template(Vec<String>);

impl Template {
    /// Encodes an object in which `HOLE` stands for the name.
    pub fn new(object: &Value) -> Template {
        Template(object.to_string().split(HOLE).map(str::to_owned).collect())
    }

    /// The object's JSON with this name.
    pub fn named(&self, name: &str) -> String {
        self.0.join(name)
    }

    /// A request that creates it.
    pub fn create(&self, collection: &str, name: &str) -> Call {
        Call::post(collection, self.named(name))
    }
}

/// A pod of about 4 kB as the server stores and lists it, such as a Deployment of a web service has: never scheduled.
/// `owner` is the uid of the ConfigMap `owner` in the same namespace (garbage collection would remove orphans).
pub fn big_pod(owner: &str) -> Template {
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let probe = |path: &str| json!({"httpGet": {"path": path, "port": "http"}, "periodSeconds": 10, "failureThreshold": 3});
    Template::new(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": HOLE,
            "labels": {
                "app.kubernetes.io/name": "storefront",
                "app.kubernetes.io/instance": "storefront-production",
                "app.kubernetes.io/component": "web",
                "pod-template-hash": "5d9f7c6b4",
            },
            "ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner}],
        },
        "spec": {
            "schedulerName": ABSENT_SCHEDULER,
            "automountServiceAccountToken": false,
            "containers": [
                {
                    "name": "web",
                    "image": "registry.example/shop/storefront:2.41.0",
                    "args": ["--listen=:8080", "--log-format=json"],
                    "ports": [{"name": "http", "containerPort": 8080}],
                    "env": [
                        field("POD_NAME", "metadata.name"),
                        {"name": "CATALOG_URL", "value": "http://catalog.shop.svc.cluster.local:8080/v2"},
                    ],
                    "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
                    "readinessProbe": probe("/ready"),
                    "volumeMounts": [
                        {"name": "settings", "mountPath": "/etc/storefront", "readOnly": true},
                    ],
                },
                {
                    "name": "metrics",
                    "image": "registry.example/infra/exporter:1.9.3",
                    "env": [{"name": "TARGET", "value": "http://127.0.0.1:8080/metrics"}],
                    "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
                },
            ],
            "volumes": [
                {"name": "settings", "configMap": {"name": "owner"}},
            ],
        },
    }))
}

/// A small pod for the cluster's scheduler, to be placed on this run's nodes only.
pub fn small_pod(run: &str) -> Template {
    Template::new(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": HOLE, "labels": {"app": "bound"}},
        "spec": {
            "nodeSelector": {LABEL: run},
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "main",
                "image": "registry.example/pause:3.10",
                "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
            }],
        },
    }))
}

/// A pod that runs until it is asked to end, at once then.
pub fn sleeping_pod(image: &str, label: &str) -> Template {
    running_pod(image, (label, "no"), "trap 'exit 0' TERM; sleep 100000 & wait")
}

/// A pod that answers requests at port 80.
pub fn answering_pod(image: &str, label: &str) -> Template {
    running_pod(
        image,
        (label, "yes"),
        "trap 'exit 0' TERM; echo yes > /tmp/index.html; httpd -f -p 80 -h /tmp & wait",
    )
}

fn running_pod(image: &str, (label, value): (&str, &str), script: &str) -> Template {
    Template::new(&json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": HOLE, "labels": {label: value}},
        "spec": {
            "terminationGracePeriodSeconds": 5,
            "containers": [{
                "name": "main",
                "image": image,
                "imagePullPolicy": "Never",
                "command": ["sh", "-c", script],
            }],
        },
    }))
}

/// A ConfigMap of about 1 kB.
pub fn config_map() -> Template {
    Template::new(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": HOLE, "labels": {"app": "bench"}},
        "data": {"settings": "key = value, and so on\n".repeat(32)},
    }))
}

/// A ConfigMap that says little: what counts is how often it is sent, not how long it is.
pub fn small_config_map() -> Template {
    Template::new(&json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": HOLE},
        "data": {"state": "changed"},
    }))
}

/// A Secret of a few bytes, which no control loop has a use for.
pub fn small_secret() -> Template {
    Template::new(&json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": HOLE},
        "data": {"k": "dg=="},
    }))
}

/// A namespace.
pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
}

/// A node that no kubelet serves.
pub fn node(name: &str, run: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            LABEL: run,
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
        }},
    })
}

/// The status of such a node, for `nodes/status`: room for `pods` pods, and ready at `now` (RFC 3339).
pub fn node_status(pods: usize, now: &str) -> Value {
    let room = json!({"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": pods.to_string()});
    let condition = |kind: &str, status: &str, reason: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": "",
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    json!({"status": {
        "capacity": room,
        "allocatable": room,
        "conditions": [
            condition("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            condition("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            condition("PIDPressure", "False", "KubeletHasSufficientPID"),
            condition("Ready", "True", "KubeletReady"),
        ],
    }})
}

/// A node's heartbeat; `now` is RFC 3339 with microseconds.
pub fn lease(name: &str, now: &str) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now},
    })
}

/// Kinds of one API group.
pub const KINDS_PER_GROUP: usize = 20;

/// Group and plural of a custom resource.
pub fn custom(run: &str, index: usize) -> (String, String) {
    (format!("g{}.{run}.bench.kaji.example", index / KINDS_PER_GROUP), format!("widget{index}s"))
}

/// A schema such as operators have: some sixty fields, nested, with limits and defaults.
fn schema() -> Value {
    let text = |description: &str| json!({"type": "string", "description": description, "maxLength": 253});
    let number =
        |least: i64| json!({"type": "integer", "format": "int32", "minimum": least, "default": least});
    let quantities = json!({
        "type": "object",
        "additionalProperties": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true},
    });
    let part = json!({
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": text("The name of the part; unique among the parts."),
            "image": text("The container image, with tag or digest."),
            "command": {"type": "array", "items": {"type": "string"}},
            "replicas": number(1),
            "port": number(0),
            "mode": {"type": "string", "enum": ["Active", "Standby", "Off"], "default": "Active"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
            "resources": {"type": "object", "properties": {"requests": quantities, "limits": quantities}},
        },
    });
    let condition = json!({
        "type": "object",
        "required": ["type", "status"],
        "properties": {
            "type": text("What the condition is about."),
            "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
            "reason": text("One word in CamelCase."),
            "message": {"type": "string"},
            "lastTransitionTime": {"type": "string", "format": "date-time"},
            "observedGeneration": {"type": "integer", "format": "int64"},
        },
    });
    let role = json!({"type": "object", "properties": {
        "parts": {"type": "array", "items": part, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        "storage": {"type": "object", "properties": {
            "className": text("The StorageClass."), "size": text("A quantity."), "retain": {"type": "boolean"},
        }},
        "schedule": text("When to back up, as cron has it."),
        "timeoutSeconds": number(1),
    }});
    json!({"type": "object", "description": "A widget.", "properties": {
        "spec": {"type": "object", "properties": {"primary": role, "replica": role, "paused": {"type": "boolean"}}},
        "status": {"type": "object", "properties": {
            "phase": {"type": "string"},
            "readyReplicas": {"type": "integer", "format": "int32"},
            "conditions": {
                "type": "array", "items": condition,
                "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
            },
        }},
    }})
}

/// A definition with such a schema and columns.
pub fn definition(run: &str, index: usize) -> Value {
    let (group, plural) = custom(run, index);
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "labels": {LABEL: run}},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "plural": plural, "singular": format!("widget{index}"),
                "kind": format!("Widget{index}"), "listKind": format!("Widget{index}List"),
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema()},
                "subresources": {"status": {}},
                "additionalPrinterColumns": [{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}],
            }],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn templates_take_any_name() {
        let template = Template::new(&json!({"metadata": {"name": HOLE}, "x": format!("{HOLE}-{HOLE}")}));
        assert_eq!(template.named("a"), r#"{"metadata":{"name":"a"},"x":"a-a"}"#);
        let pod: Value = serde_json::from_str(&big_pod("u1").named("p1")).unwrap();
        assert_eq!(pod["metadata"]["name"], "p1");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "u1");
    }

    #[test]
    fn sizes_are_as_promised() {
        let sizes = [
            (
                "big pod, before defaults and managed fields",
                big_pod("00000000-0000-0000-0000-000000000000").named("web-00001").len(),
            ),
            ("small pod", small_pod("r").named("web-00001").len()),
            ("ConfigMap", config_map().named("c-00001").len()),
            ("definition", definition("r", 0).to_string().len()),
        ];
        let shown: Vec<String> =
            sizes.iter().map(|(name, size)| format!("{name}: {} bytes", size / 100 * 100)).collect();
        expect![[r#"
            big pod, before defaults and managed fields: 1200 bytes
            small pod: 300 bytes
            ConfigMap: 800 bytes
            definition: 4200 bytes"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn definitions_are_consistent() {
        let definition = definition("r7", 21);
        let (group, plural) = custom("r7", 21);
        assert_eq!(group, "g1.r7.bench.kaji.example");
        assert_eq!(definition["metadata"]["name"], format!("{plural}.{group}"));
        assert_eq!(definition["spec"]["names"]["kind"], "Widget21");
    }
}
