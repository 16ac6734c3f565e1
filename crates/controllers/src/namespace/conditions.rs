//! What a pass over a namespace's content found, and how its conditions and the next pass follow from that.
//! Source: the condition types of `NamespaceStatus`; reasons and texts are those that kubectl users see upstream.

use crate::shared::conditions::seconds;
use kaji_runtime::objects::Condition;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// How long finalizers are given, seconds.
pub const FINALIZER_ESTIMATE: i64 = 15;

/// Types, with reason and text when all is well.
const TYPES: [(&str, &str, &str); 5] = [
    ("NamespaceDeletionDiscoveryFailure", "ResourcesDiscovered", "All resources successfully discovered"),
    (
        "NamespaceDeletionGroupVersionParsingFailure",
        "ParsedGroupVersions",
        "All legacy kube types successfully parsed",
    ),
    (
        "NamespaceDeletionContentFailure",
        "ContentDeleted",
        "All content successfully deleted, may be waiting on finalization",
    ),
    ("NamespaceContentRemaining", "ContentRemoved", "All content successfully removed"),
    ("NamespaceFinalizersRemaining", "ContentHasNoFinalizers", "All content-preserving finalizers finished"),
];

/// The content left of one resource.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Left {
    /// Objects.
    pub objects: usize,
    /// Objects by the finalizer they have.
    pub finalizers: BTreeMap<String, usize>,
    /// Seconds that graceful deletion may still take.
    pub estimate: i64,
}

/// What a pass found.
#[derive(Clone, Debug, Default)]
pub struct Pass {
    /// Group versions that discovery could not read, and what it said.
    undiscovered: Option<(usize, String)>,
    /// Objects by `resource.group`.
    left: BTreeMap<String, usize>,
    finalizers: BTreeMap<String, usize>,
    errors: Vec<String>,
    estimate: i64,
}

impl Pass {
    /// A pass over what discovery found; `undiscovered` is how many group versions it could not read, and its words.
    pub fn new(undiscovered: Option<(usize, String)>) -> Self {
        Pass { undiscovered, ..Pass::default() }
    }

    /// Adds what is left of one resource. Objects that neither grace nor a finalizer holds are a failure.
    pub fn add(&mut self, namespace: &str, group: &str, version: &str, resource: &str, left: Left) {
        let mut estimate = left.estimate;
        if left.objects > 0 {
            *self.left.entry(format!("{resource}.{group}")).or_default() += left.objects;
            if estimate == 0 && left.finalizers.is_empty() {
                self.errors.push(format!(
                    "unexpected items still remain in namespace: {namespace} for gvr: {group}/{version}, Resource={resource}"
                ));
            } else if estimate == 0 {
                estimate = FINALIZER_ESTIMATE;
            }
        } else {
            estimate = 0;
        }
        for (finalizer, count) in left.finalizers {
            *self.finalizers.entry(finalizer).or_default() += count;
        }
        self.estimate = self.estimate.max(estimate);
    }

    /// Adds a failure.
    pub fn fail(&mut self, error: String) {
        self.errors.push(error);
    }

    /// Whether anything is left.
    pub fn remains(&self) -> bool {
        !self.left.is_empty()
    }

    /// Whether no content is left, and all resources could be listed.
    pub fn clean(&self) -> bool {
        !self.remains() && self.errors.is_empty() && self.undiscovered.is_none()
    }

    /// How long to wait for the next pass at most.
    pub fn wait(&self) -> Duration {
        let seconds = if self.estimate > 0 { self.estimate / 2 + 1 } else { 60 };
        Duration::from_secs(u64::try_from(seconds).unwrap_or(1))
    }

    fn failing(&self) -> BTreeMap<&'static str, (&'static str, String)> {
        let mut failing = BTreeMap::new();
        if let Some((count, text)) = &self.undiscovered {
            let text = format!("Discovery failed for some groups, {count} failing: {text}");
            failing.insert("NamespaceDeletionDiscoveryFailure", ("DiscoveryFailed", text));
        }
        let errors: BTreeSet<&str> = self.errors.iter().map(String::as_str).collect();
        if !errors.is_empty() {
            let list = errors.into_iter().collect::<Vec<_>>().join(", ");
            let text =
                format!("Failed to delete all resource types, {} remaining: {list}", self.errors.len());
            failing.insert("NamespaceDeletionContentFailure", ("ContentDeletionFailed", text));
        }
        if !self.left.is_empty() {
            let mut list: Vec<_> =
                self.left.iter().map(|(r, n)| format!("{r} has {n} resource instances")).collect();
            list.sort();
            let text = format!("Some resources are remaining: {}", list.join(", "));
            failing.insert("NamespaceContentRemaining", ("SomeResourcesRemain", text));
        }
        if !self.finalizers.is_empty() {
            let mut list: Vec<_> =
                self.finalizers.iter().map(|(f, n)| format!("{f} in {n} resource instances")).collect();
            list.sort();
            let text = format!("Some content in the namespace has finalizers remaining: {}", list.join(", "));
            failing.insert("NamespaceFinalizersRemaining", ("SomeFinalizersRemain", text));
        }
        failing
    }

    /// The conditions to write, unless the present ones say the same.
    pub fn conditions(&self, present: &[Condition], now: jiff::Timestamp) -> Option<Vec<Condition>> {
        let mut failing = self.failing();
        let mut conditions = present.to_vec();
        for (kind, well, text) in TYPES {
            let (status, reason, message) = match failing.remove(kind) {
                Some((reason, message)) => ("True", reason, message),
                None => ("False", well, text.to_owned()),
            };
            let new = Condition {
                kind: kind.into(),
                status: status.into(),
                last_transition_time: Some(seconds(now)),
                last_update_time: None,
                reason: reason.into(),
                message,
            };
            match conditions.iter_mut().find(|c| c.kind == kind) {
                None => conditions.push(new),
                Some(old) if old.status == status => {
                    *old = Condition { last_transition_time: old.last_transition_time, ..new };
                }
                Some(old) => *old = new,
            }
        }
        (conditions != present).then_some(conditions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::now;
    use expect_test::expect;

    fn show(pass: &Pass) -> String {
        let conditions = pass.conditions(&[], now()).unwrap_or_default();
        let lines = conditions.iter().map(|c| format!("{}={} {}: {}", c.kind, c.status, c.reason, c.message));
        let lines: Vec<String> = lines.collect();
        format!("{}\nclean {}, again within {:?}", lines.join("\n"), pass.clean(), pass.wait())
    }

    #[test]
    fn reports_deleted_content() {
        expect![[r#"
            NamespaceDeletionDiscoveryFailure=False ResourcesDiscovered: All resources successfully discovered
            NamespaceDeletionGroupVersionParsingFailure=False ParsedGroupVersions: All legacy kube types successfully parsed
            NamespaceDeletionContentFailure=False ContentDeleted: All content successfully deleted, may be waiting on finalization
            NamespaceContentRemaining=False ContentRemoved: All content successfully removed
            NamespaceFinalizersRemaining=False ContentHasNoFinalizers: All content-preserving finalizers finished
            clean true, again within 60s"#]].assert_eq(&show(&Pass::default()));
    }

    #[test]
    fn reports_remaining_content() {
        let mut pass = Pass::new(Some((1, "a/v1: down".into())));
        let held = Left { objects: 2, finalizers: BTreeMap::from([("f/g".into(), 2)]), estimate: 0 };
        pass.add("ns", "apps", "v1", "deployments", held);
        pass.add("ns", "", "v1", "pods", Left { objects: 3, estimate: 30, ..Left::default() });
        pass.add("ns", "", "v1", "secrets", Left { objects: 1, ..Left::default() });
        pass.fail("no".into());
        expect![[r#"
            NamespaceDeletionDiscoveryFailure=True DiscoveryFailed: Discovery failed for some groups, 1 failing: a/v1: down
            NamespaceDeletionGroupVersionParsingFailure=False ParsedGroupVersions: All legacy kube types successfully parsed
            NamespaceDeletionContentFailure=True ContentDeletionFailed: Failed to delete all resource types, 2 remaining: no, unexpected items still remain in namespace: ns for gvr: /v1, Resource=secrets
            NamespaceContentRemaining=True SomeResourcesRemain: Some resources are remaining: deployments.apps has 2 resource instances, pods. has 3 resource instances, secrets. has 1 resource instances
            NamespaceFinalizersRemaining=True SomeFinalizersRemain: Some content in the namespace has finalizers remaining: f/g in 2 resource instances
            clean false, again within 16s"#]].assert_eq(&show(&pass));
    }

    #[test]
    fn writes_changed_conditions_only() {
        let first = Pass::default().conditions(&[], now()).unwrap();
        assert_eq!(Pass::default().conditions(&first, "2026-01-01T00:00:00Z".parse().unwrap()), None);
        let mut pass = Pass::default();
        pass.fail("no".into());
        let changed = pass.conditions(&first, "2026-01-01T00:00:00Z".parse().unwrap()).unwrap();
        let times: Vec<bool> =
            changed.iter().map(|c| c.last_transition_time == first[0].last_transition_time).collect();
        assert_eq!(times, [true, true, false, true, true]);
    }
}
