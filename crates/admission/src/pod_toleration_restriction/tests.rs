//! Fixtures: tolerations of pods, namespaces and the configuration.

use super::*;
use crate::test_support::Request;
use expect_test::expect;
use kaji_resource::Scope;
use serde_json::json;

/// `key operator value effect seconds`, `-` for what is not set.
fn toleration(text: &str) -> Toleration {
    let words: Vec<&str> = text.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
    let word = |i: usize| words.get(i).copied().unwrap_or_default().to_owned();
    Toleration {
        key: word(0),
        operator: word(1),
        value: word(2),
        effect: word(3),
        toleration_seconds: word(4).parse().ok(),
    }
}

#[test]
fn wider_tolerations_cover_narrower_ones() {
    const ALL: [&str; 11] = [
        "- Exists",
        "- Exists - NoExecute",
        "a Exists",
        "a Equal x",
        "a Exists - NoSchedule",
        "a Equal x NoSchedule",
        "b Exists - NoExecute",
        "b Equal x NoExecute",
        "b Exists - NoExecute 10",
        "b Exists - NoExecute 5",
        "b Equal x NoExecute 10",
    ];
    let covered = |text: &str| {
        let wide = toleration(text);
        let narrower = ALL.into_iter().filter(|other| *other != text && wide.covers(&toleration(other)));
        narrower.collect::<Vec<_>>().join(", ")
    };
    let table: Vec<String> = ALL.iter().map(|text| format!("{text}: [{}]", covered(text))).collect();
    expect![[r#"
        - Exists: [- Exists - NoExecute, a Exists, a Equal x, a Exists - NoSchedule, a Equal x NoSchedule, b Exists - NoExecute, b Equal x NoExecute, b Exists - NoExecute 10, b Exists - NoExecute 5, b Equal x NoExecute 10]
        - Exists - NoExecute: [b Exists - NoExecute, b Equal x NoExecute, b Exists - NoExecute 10, b Exists - NoExecute 5, b Equal x NoExecute 10]
        a Exists: [a Equal x, a Exists - NoSchedule, a Equal x NoSchedule]
        a Equal x: [a Equal x NoSchedule]
        a Exists - NoSchedule: [a Equal x NoSchedule]
        a Equal x NoSchedule: []
        b Exists - NoExecute: [b Equal x NoExecute, b Exists - NoExecute 10, b Exists - NoExecute 5, b Equal x NoExecute 10]
        b Equal x NoExecute: [b Equal x NoExecute 10]
        b Exists - NoExecute 10: [b Exists - NoExecute 5, b Equal x NoExecute 10]
        b Exists - NoExecute 5: []
        b Equal x NoExecute 10: []"#]].assert_eq(&table.join("\n"));
    // No operator means Equal, but only what says Equal is covered by it.
    assert!(toleration("a - x").covers(&toleration("a Equal x NoSchedule")));
    assert!(!toleration("a Equal x").covers(&toleration("a - x NoSchedule")));
    assert!(!toleration("a Gt 1").covers(&toleration("a Gt 1 NoSchedule")));
}

#[test]
fn what_others_cover_is_left_out() {
    let list = |texts: &[&str]| texts.iter().map(|text| toleration(text)).collect::<Vec<_>>();
    let merged = |first: &[&str], second: &[&str]| merge(list(first), list(second));
    assert_eq!(merged(&["a Exists"], &["a Exists"]), list(&["a Exists"]));
    assert_eq!(merged(&["a Equal x", "b Exists"], &["a Exists"]), list(&["b Exists", "a Exists"]));
    assert_eq!(merged(&["- Exists"], &["a Exists", "b Equal x NoExecute 3"]), list(&["- Exists"]));
    assert_eq!(merged(&[], &[]), list(&[]));
}

/// A write of a pod: the cluster's lists, annotations of the namespace, what the pod tolerates and requests.
struct Case {
    plugin: PodTolerationRestriction,
    annotations: Value,
    old: Option<Value>,
    requests: Value,
}

impl Case {
    fn new(annotations: Value) -> Case {
        let plugin = PodTolerationRestriction {
            defaults: vec![toleration("cluster Exists")],
            listed: vec![
                toleration("cluster Exists"),
                toleration("node.kubernetes.io/memory-pressure Exists"),
            ],
        };
        Case { plugin, annotations, old: None, requests: Value::Null }
    }

    async fn written(self, tolerations: Value) -> String {
        let mut request = Request::of("", "v1", "Pod", "pods", Scope::Namespaced);
        let namespace = json!({"metadata": {"name": "n", "annotations": self.annotations}});
        request.api.put(&GroupResource::new("", "namespaces"), namespace);
        request.operation = if self.old.is_some() { Operation::Update } else { Operation::Create };
        request.old = self.old;
        request.object = Some(json!({"metadata": {"name": "p"}, "spec": {"tolerations": tolerations,
            "containers": [{"resources": {"requests": self.requests}}]}}));
        let result = request.with(async |a| self.plugin.admit(a).await).await;
        let valid = request.with(async |a| self.plugin.validate(a).await).await;
        assert_eq!(result, valid);
        let pod = request.object.unwrap();
        result.map_or_else(
            |status| format!("{} {:?} {status}", status.code, status.reason),
            |()| {
                let texts = of_pod(&pod).into_iter().map(|t| {
                    let seconds = t.toleration_seconds.map(|s| s.to_string()).unwrap_or_default();
                    [t.key, t.operator, t.value, t.effect, seconds].join(" ").trim().to_owned()
                });
                texts.collect::<Vec<_>>().join(", ")
            },
        )
    }
}

#[tokio::test]
async fn defaults_are_the_namespaces_or_the_clusters() {
    let mine = r#"[{"key": "mine", "operator": "Exists"}]"#;
    let cpu = || json!({"cpu": "1"});
    let seen = [
        Case::new(Value::Null).written(Value::Null).await,
        Case { requests: cpu(), ..Case::new(Value::Null) }.written(Value::Null).await,
        Case::new(json!({DEFAULTS: mine, LISTED: ""}))
            .written(json!([{"key": "x", "operator": "Exists"}]))
            .await,
        Case::new(json!({DEFAULTS: ""})).written(Value::Null).await,
        Case::new(json!({DEFAULTS: "null"})).written(Value::Null).await,
        // Defaults are for new pods, memory pressure for every write.
        Case { old: Some(json!({})), requests: cpu(), ..Case::new(json!({DEFAULTS: mine})) }
            .written(Value::Null)
            .await,
    ];
    expect![[r#"
        cluster Exists
        cluster Exists, node.kubernetes.io/memory-pressure Exists  NoSchedule
        x Exists, mine Exists


        node.kubernetes.io/memory-pressure Exists  NoSchedule"#]]
    .assert_eq(&seen.join("\n"));
}

#[tokio::test]
async fn only_listed_tolerations_are_admitted() {
    let x = || json!([{"key": "x", "operator": "Exists"}]);
    let listed = r#"[{"key": "x", "operator": "Exists"}, {"key": "cluster", "operator": "Exists"}]"#;
    let seen = [
        Case::new(Value::Null).written(x()).await,
        Case::new(json!({LISTED: listed})).written(x()).await,
        Case::new(json!({LISTED: listed})).written(json!([{"key": "y", "operator": "Exists"}])).await,
        Case::new(json!({LISTED: "[]"})).written(json!([{"key": "y", "operator": "Exists"}])).await,
        Case { old: Some(json!({})), ..Case::new(Value::Null) }.written(x()).await,
        Case::new(json!({LISTED: "x"})).written(x()).await,
    ];
    expect![[r#"
        500 Unknown pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster whitelist
        x Exists, cluster Exists
        500 Unknown pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist
        y Exists, cluster Exists
        500 Unknown pod tolerations (possibly merged with namespace default tolerations) conflict with its cluster whitelist
        500 Unknown expected value at line 1 column 1"#]].assert_eq(&seen.join("\n"));
}

#[test]
fn configurations_are_validated() {
    let read = |fields: Value| {
        let mut value = json!({"apiVersion": "podtolerationrestriction.admission.k8s.io/v1alpha1", "kind": "Configuration"});
        value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let made = PodTolerationRestriction::configured(Some(Configuration::of(value)));
        made.map_or_else(|error| error, |plugin| format!("{} {}", plugin.defaults.len(), plugin.listed.len()))
    };
    let seen = [
        read(json!({"default": [{"key": "a", "operator": "Exists"}], "whitelist": null})),
        read(json!({"default": [{"key": "a", "operator": "Huh"}, {"value": "x"}],
            "whitelist": [{"key": "a", "operator": "Exists", "effect": "Never"}]})),
        read(json!({"default": [{"key": 1}]})),
        read(json!({"huh": []})),
        read(json!({"kind": "Other"})),
    ];
    expect![[r#"
        1 0
        invalid config: [podtolerationrestriction.default[0].operator: Unsupported value: "Huh": supported values: "Equal", "Exists" podtolerationrestriction.default[1].operator: Invalid value: "": operator must be Exists when `key` is empty, which means "match all values and all keys" podtolerationrestriction.whitelist[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"]
        default: invalid type: integer `1`, expected a string
        unknown field `huh`, expected `default` or `whitelist`
        no kind "Other" is registered for version "podtolerationrestriction.admission.k8s.io/v1alpha1""#]].assert_eq(&seen.join("\n"));
    assert!(PodTolerationRestriction::configured(None).unwrap().listed.is_empty());
}
