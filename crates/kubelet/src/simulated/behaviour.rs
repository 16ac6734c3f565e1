//! The behaviour of simulated pods, by annotations below `sim.kaji.dev/`:
//!
//! | annotation | meaning |
//! |---|---|
//! | `start-after: 2s` | stay Pending that long |
//! | `ready: "false"` | run, but never become Ready |
//! | `exit-after: 5s` | containers end that long after their start |
//! | `exit-code: "1"` | with this code (default 0) |
//! | `stop-after: 5s` | containers take that long to stop (default 1 s) |
//! | `waiting: ImagePullBackOff` | stay Pending with this reason |
//! | `cpu-usage: 250m` | each container uses so much, as metrics show it (default: a share of its requests) |
//! | `memory-usage: 64Mi` | the same of memory |
//!
//! Pods of a Job and pods that are hooks of a Helm release end at once with code 0 by default, since
//! clients wait for their end. A pod without an owner runs on, also with `restartPolicy: Never`: upstream's
//! conformance tests make such pods and wait until they are ready.

use kaji_runtime::objects::Pod;
use std::time::Duration;

const PREFIX: &str = "sim.kaji.dev/";
/// Says when in a release's life Helm makes a pod, and waits until it has succeeded (also for tests).
const HELM_HOOK: &str = "helm.sh/hook";

/// What a pod does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Pending for so long.
    pub start_after: Duration,
    /// Never becomes Ready.
    pub unready: bool,
    /// Ends so long after its start; `None` runs on.
    pub exit_after: Option<Duration>,
    /// With this code.
    pub exit_code: i64,
    /// Takes so long to stop.
    pub stop_after: Duration,
    /// Never starts, for this reason.
    pub waiting: Option<String>,
}

/// An annotation of a pod by its name below the prefix.
pub fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.get(&format!("{PREFIX}{name}")).map(String::as_str)
}

/// Reads a pod's annotations.
pub fn of(pod: &Pod) -> Behaviour {
    let get = |name: &str| annotation(pod, name);
    let exit_code: i64 = get("exit-code").and_then(|c| c.parse().ok()).unwrap_or_default();
    let job = pod.metadata.controller().is_some_and(|o| o.kind == "Job");
    let hook = pod.metadata.annotations.contains_key(HELM_HOOK) && pod.spec.restart_policy != "Always";
    let implied = (job || hook || exit_code != 0).then_some(Duration::ZERO);
    Behaviour {
        start_after: get("start-after").and_then(duration).unwrap_or_default(),
        unready: get("ready") == Some("false"),
        exit_after: get("exit-after").and_then(duration).or(implied),
        exit_code,
        stop_after: get("stop-after").and_then(duration).unwrap_or(Duration::from_secs(1)),
        waiting: get("waiting").map(str::to_owned),
    }
}

/// `1m30s`, `500ms`, `2s`, `1h`
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut total = Duration::ZERO;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let amount: u64 = rest[..digits].parse().ok()?;
        let unit_end = rest[digits..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |i| digits + i);
        let unit = match &rest[digits..unit_end] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(Duration::from_millis(amount.checked_mul(unit)?))?;
        rest = &rest[unit_end..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn annotations() {
        let pod = |annotations: serde_json::Value, owner: &str| -> Pod {
            serde_json::from_value(json!({"metadata": {
                "annotations": annotations, "ownerReferences": [{"kind": owner, "controller": true}]}}))
            .unwrap()
        };
        assert_eq!(
            of(&pod(json!({}), "ReplicaSet")),
            Behaviour { stop_after: Duration::from_secs(1), ..Behaviour::default() }
        );
        assert_eq!(of(&pod(json!({}), "Job")).exit_after, Some(Duration::ZERO));
        let annotations = json!({"sim.kaji.dev/exit-after": "1m30s", "sim.kaji.dev/exit-code": "3", "sim.kaji.dev/ready": "false"});
        let behaviour = of(&pod(annotations, "Job"));
        assert_eq!(
            (behaviour.exit_after, behaviour.exit_code, behaviour.unready),
            (Some(Duration::from_secs(90)), 3, true)
        );
        let hook = |policy: &str, annotations: serde_json::Value| -> Pod {
            let mut pod = pod(annotations, "none");
            pod.metadata.annotations.modify(|all| drop(all.insert("helm.sh/hook".into(), "test".into())));
            pod.spec.modify(|spec| spec.restart_policy = policy.into());
            pod
        };
        for policy in ["Never", "OnFailure"] {
            assert_eq!(of(&hook(policy, json!({}))).exit_after, Some(Duration::ZERO));
        }
        assert_eq!(of(&hook("Always", json!({}))).exit_after, None);
        let late = hook("Never", json!({"sim.kaji.dev/exit-after": "5s", "sim.kaji.dev/exit-code": "1"}));
        assert_eq!((of(&late).exit_after, of(&late).exit_code), (Some(Duration::from_secs(5)), 1));
        let mut alone = hook("Never", json!({}));
        alone.metadata.annotations.modify(std::collections::BTreeMap::clear);
        assert_eq!(of(&alone).exit_after, None);
        for bad in ["", "5", "s", "5x", "99999999999999999999s", "é"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
