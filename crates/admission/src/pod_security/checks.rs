//! Evaluates the checks of a level, with the helpers that checks share.

use super::{
    baseline,
    policy::{Level, LevelVersion, Version},
    restricted,
};
use crate::pod_spec::{LISTS, containers};
use kaji_meta::object;
use serde_json::Value;
use std::collections::BTreeSet;

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// In a few words; also said of whole namespaces.
    pub reason: &'static str,
    /// Which containers, which values.
    pub detail: String,
}

/// A check of a pod (or a pod template) at a version; `None` when all is well.
type Check = fn(&Value, Version) -> Option<Found>;

/// Baseline checks by upstream's ids, in their order. The restricted check beside one replaces it from a version on.
const BASELINE: [(Check, Option<u32>); 12] = [
    (baseline::app_armor, None),
    (baseline::capabilities, Some(22)),
    (baseline::host_namespaces, None),
    (baseline::host_path_volumes, Some(0)),
    (baseline::host_ports, None),
    (baseline::host_probes, None),
    (baseline::privileged, None),
    (baseline::proc_mount, Some(35)),
    (baseline::se_linux, None),
    (baseline::seccomp, Some(19)),
    (baseline::sysctls, None),
    (baseline::windows_host_process, None),
];

/// What the restricted level adds.
const RESTRICTED: [Check; 7] = [
    restricted::privilege_escalation,
    restricted::capabilities,
    restricted::proc_mount,
    restricted::volumes,
    restricted::non_root,
    restricted::user,
    restricted::seccomp,
];

/// Everything about a pod that a level does not allow.
pub(super) fn evaluate(policy: LevelVersion, pod: &Value) -> Vec<Found> {
    let (level, version) = (policy.level, policy.version);
    if level == Level::Privileged {
        return vec![];
    }
    let strict = level == Level::Restricted;
    let applies = |replaced: &Option<u32>| !(strict && replaced.is_some_and(|minor| version.since(minor)));
    let first = BASELINE.iter().filter(|(_, replaced)| applies(replaced)).map(|(check, _)| *check);
    let more = RESTRICTED.iter().filter(|_| strict).copied();
    first.chain(more).filter_map(|check| check(pod, version)).collect()
}

/// All containers, in the order in which texts name them.
pub(super) fn all(pod: &Value) -> impl Iterator<Item = &Value> {
    [LISTS[1], LISTS[0], LISTS[2]].into_iter().flat_map(move |list| containers(pod, list))
}

/// A field of the security context of a container or, with the pod itself, of its spec; null without.
pub(super) fn context<'a>(of: &'a Value, path: &[&str]) -> &'a Value {
    let at = |prefix: &[&str]| {
        let whole: Vec<&str> = prefix.iter().chain(["securityContext"].iter()).chain(path).copied().collect();
        object::at(of, &whole)
    };
    let found = if of.get("spec").is_some() { at(&["spec"]) } else { at(&[]) };
    found.unwrap_or(&Value::Null)
}

/// The name of a container.
pub(super) fn name(container: &Value) -> &str {
    object::str_at(container, &["name"])
}

/// `"a", "b"`
pub(super) fn quoted<S: AsRef<str>>(items: impl IntoIterator<Item = S>) -> String {
    let items: Vec<String> = items.into_iter().map(|i| format!("\"{}\"", i.as_ref())).collect();
    items.join(", ")
}

/// One or many.
pub(super) fn plural<'a>(one: &'a str, many: &'a str, count: usize) -> &'a str {
    if count == 1 { one } else { many }
}

/// `container "c"` or `containers "a", "b"`
pub(super) fn containers_text(names: &[&str]) -> String {
    format!("{} {}", plural("container", "containers", names.len()), quoted(names))
}

/// What sets a field: the pod, containers, or both, in words; `None` if neither does.
pub(super) fn setters(pod: bool, names: &[&str]) -> Option<String> {
    let containers = (!names.is_empty()).then(|| containers_text(names));
    let all: Vec<String> = pod.then(|| "pod".to_owned()).into_iter().chain(containers).collect();
    (!all.is_empty()).then(|| all.join(" and "))
}

/// Whether a pod says that it runs on Windows.
pub(super) fn windows(pod: &Value) -> bool {
    object::str_at(pod, &["spec", "os", "name"]) == "windows"
}

/// Whether a pod has a dedicated user namespace, which makes some of its rights harmless.
pub(super) fn own_users(pod: &Value) -> bool {
    object::bool_at(pod, &["spec", "hostUsers"]) == Some(false)
}

/// Seccomp and AppArmor profiles that are no danger.
pub(super) fn safe_profile(profile: &Value) -> bool {
    matches!(profile["type"].as_str(), Some("RuntimeDefault" | "Localhost"))
}

/// Whether the pod and which containers set profiles that are forbidden, and the types of these.
pub(super) fn bad_profiles<'a>(pod: &'a Value, field: &str) -> (bool, Vec<&'a str>, BTreeSet<&'a str>) {
    let bad = |of: &'a Value| {
        let profile = context(of, &[field]);
        (profile.is_object() && !safe_profile(profile)).then(|| object::str_at(profile, &["type"]))
    };
    let mut values = BTreeSet::new();
    let whole = bad(pod);
    values.extend(whole);
    let mut names = vec![];
    for container in all(pod) {
        if let Some(value) = bad(container) {
            names.push(name(container));
            values.insert(value);
        }
    }
    (whole.is_some(), names, values)
}
