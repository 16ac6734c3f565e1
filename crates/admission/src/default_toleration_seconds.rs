//! `DefaultTolerationSeconds`: a pod tolerates a node that is not ready or unreachable for five minutes, unless it says
//! otherwise.

use kaji_engine::{Admission, Attributes, Operation, Phases};
use kaji_meta::{Status, object};
use kaji_resource::BoxFuture;
use serde_json::{Value, json};

/// The plugin.
pub(super) struct DefaultTolerationSeconds(pub DefaultTolerations);

/// How long a pod stays on a node that is not ready or out of reach, unless it says otherwise. Seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DefaultTolerations {
    /// Of nodes that are not ready.
    pub not_ready: i64,
    /// Of nodes that are out of reach.
    pub unreachable: i64,
}

impl Default for DefaultTolerations {
    /// Five minutes.
    fn default() -> Self {
        DefaultTolerations { not_ready: 300, unreachable: 300 }
    }
}

impl Admission for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn phases(&self, group: &str, resource: &str, operation: Operation) -> Phases {
        Phases::MUTATING.when(
            matches!(operation, Operation::Create | Operation::Update) && (group, resource) == ("", "pods"),
        )
    }

    fn handles(&self, a: &Attributes<'_>) -> bool {
        a.subresource.is_empty()
    }

    fn admit<'a>(&'a self, a: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        if let Some(pod) = a.object.as_deref_mut() {
            tolerate(pod, self.0);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}

fn tolerate(pod: &mut Value, seconds: DefaultTolerations) {
    let mut list = object::arr_at(pod, &["spec", "tolerations"]).to_vec();
    let given = list.len();
    let keys = [
        ("node.kubernetes.io/not-ready", seconds.not_ready),
        ("node.kubernetes.io/unreachable", seconds.unreachable),
    ];
    for (key, seconds) in keys {
        let either = |t: &Value, field: &str, wanted: &str| {
            matches!(t[field].as_str(), None | Some("")) || t[field] == wanted
        };
        if !list[..given].iter().any(|t| either(t, "key", key) && either(t, "effect", "NoExecute")) {
            list.push(
                json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}),
            );
        }
    }
    if list.len() > given {
        object::set_at(pod, &["spec", "tolerations"], list);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    fn keys(pod: &Value) -> String {
        let list = object::arr_at(pod, &["spec", "tolerations"]);
        list.iter().map(|t| format!("{}:{}", t["key"], t["tolerationSeconds"])).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn adds_default_toleration_seconds() {
        let mut pod = json!({"spec": {}});
        tolerate(&mut pod, DefaultTolerations::default());
        expect![[r#""node.kubernetes.io/not-ready":300 "node.kubernetes.io/unreachable":300"#]]
            .assert_eq(&keys(&pod));
        let once = pod.clone();
        tolerate(&mut pod, DefaultTolerations::default());
        assert_eq!(pod, once);
        let mut all = json!({"spec": {"tolerations": [{"operator": "Exists"}]}});
        tolerate(&mut all, DefaultTolerations::default());
        assert_eq!(keys(&all), "null:null");
        let mut other = json!({"spec": {"tolerations": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unreachable", "tolerationSeconds": 1}]}});
        tolerate(&mut other, DefaultTolerations::default());
        expect![[r#""node.kubernetes.io/not-ready":null "node.kubernetes.io/unreachable":1 "node.kubernetes.io/not-ready":300"#]]
            .assert_eq(&keys(&other));
        let mut pod = json!({"spec": {}});
        tolerate(&mut pod, DefaultTolerations { not_ready: 1, unreachable: -1 });
        expect![[r#""node.kubernetes.io/not-ready":1 "node.kubernetes.io/unreachable":-1"#]]
            .assert_eq(&keys(&pod));
    }
}
