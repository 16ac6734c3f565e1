//! The history of pod templates that daemon sets and stateful sets keep as controller revisions.
//!
//! Invariants:
//! - The revision of the present template has the highest number.
//! - Revisions are compared by what their templates mean, not by their bytes.

use crate::shared::{
    controller_ref::{claim, quiet, unchanged},
    template_hash::template_hash,
};
use kaji_runtime::{
    Meta, PatchKind, Plan, Projection, Step, View, Write, client::Target, objects::ControllerRevision,
};
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc};

/// On pods and revisions: which revision.
pub const HASH_LABEL: &str = "controller-revision-hash";

/// The owner of the revisions.
pub struct Subject<'a> {
    /// ObjectMeta.
    pub meta: &'a Meta,
    /// The controller reference that its revisions carry.
    pub reference: Value,
    /// The present template.
    pub template: &'a Value,
    /// Collisions of hashes so far.
    pub collisions: Option<i64>,
    /// The label that carries a revision's hash.
    pub hash_label: &'static str,
}

/// A history, looked at.
pub enum History {
    /// The present template's revision, and all others from the oldest to the newest.
    Settled {
        /// Of the present template.
        current: Arc<ControllerRevision>,
        /// The others.
        old: Vec<Arc<ControllerRevision>>,
    },
    /// This must be written first.
    Open(Plan),
    /// Another revision has the name that the present template's should have.
    Collision,
}

impl Subject<'_> {
    /// Looks at the history of a `T`.
    pub fn history<T: Projection>(&self, view: &View, selects: impl Fn(&Meta) -> bool) -> History {
        let all = view.get::<ControllerRevision>();
        let candidates = all.owned_by(&self.meta.uid).chain(all.orphans(&self.meta.namespace)).cloned();
        let claimed = claim(self.meta, &self.reference, selects, candidates);
        let (mut revisions, plan) = claimed.into_plan(unchanged::<T>(self.meta));
        if !plan.is_empty() {
            return History::Open(plan);
        }
        revisions.sort_by(|a, b| {
            let rank = |r: &ControllerRevision| (r.revision, r.metadata.creation_timestamp);
            rank(a).cmp(&rank(b)).then_with(|| a.metadata.name.cmp(&b.metadata.name))
        });
        let Some(place) = revisions.iter().rposition(|r| same(template_of(r), self.template)) else {
            let next = revisions.last().map_or(0, |r| r.revision) + 1;
            let name = self.name();
            return match all.get(&self.meta.namespace, &name) {
                Some(_) => History::Collision,
                None => History::Open(Plan::nothing().then(self.create(&name, next))),
            };
        };
        let current = revisions.remove(place);
        let next = revisions.last().map_or(0, |r| r.revision) + 1;
        if current.revision < next && !revisions.is_empty() {
            return History::Open(Plan::nothing().then(renumber(&current.metadata, next)));
        }
        History::Settled { current, old: revisions }
    }

    /// Old revisions that keep the present template as well.
    pub fn twins<'r>(&self, old: &'r [Arc<ControllerRevision>]) -> Vec<&'r Arc<ControllerRevision>> {
        old.iter().filter(|r| same(template_of(r), self.template)).collect()
    }

    fn hash(&self) -> String {
        template_hash(self.template, self.collisions)
    }

    /// Longest part of a revision's name before its hash.
    fn name(&self) -> String {
        let prefix: String = self.meta.name.chars().take(223).collect();
        format!("{prefix}-{}", self.hash())
    }

    fn create(&self, name: &str, revision: i64) -> Write {
        let mut template = self.template.clone();
        template["$patch"] = "replace".into();
        let labels = self.template.pointer("/metadata/labels").filter(|l| l.is_object());
        let mut labels = labels.cloned().unwrap_or_else(|| json!({}));
        labels[self.hash_label] = self.hash().into();
        Write::Create {
            target: Target::of::<ControllerRevision>(&self.meta.namespace, ""),
            body: json!({
                "apiVersion": ControllerRevision::api_version(),
                "kind": ControllerRevision::KIND,
                "metadata": {
                    "name": name,
                    "namespace": self.meta.namespace,
                    "labels": labels,
                    "annotations": self.meta.annotations,
                    "ownerReferences": [self.reference],
                },
                "data": {"spec": {"template": template}},
                "revision": revision,
            }),
        }
    }
}

fn renumber(meta: &Meta, revision: i64) -> Write {
    Write::Patch {
        target: Target::of::<ControllerRevision>(&meta.namespace, &meta.name),
        kind: PatchKind::Merge,
        body: json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}, "revision": revision}),
    }
}

/// The step that deletes a revision.
pub fn delete(revision: &Arc<ControllerRevision>) -> Step {
    quiet(Write::Delete {
        target: Target::of::<ControllerRevision>(&revision.metadata.namespace, &revision.metadata.name),
        options: json!({"preconditions": {"uid": revision.metadata.uid}}),
    })
}

/// The template that a revision keeps.
pub fn template_of(revision: &ControllerRevision) -> &Value {
    revision.data.pointer("/spec/template").unwrap_or(&Value::Null)
}

/// Whether a kept template (with its patch directive) means the same as another.
fn same(kept: &Value, template: &Value) -> bool {
    let part = |t: &Value, name: &str| t.get(name).cloned().unwrap_or(Value::Null);
    ["metadata", "spec"]
        .iter()
        .all(|name| kaji_meta::equality::semantic_equal(&part(kept, name), &part(template, name)))
}

/// What is deleted of a history: the oldest revisions that no pod has.
pub struct Retention<'a> {
    /// Old revisions that are kept.
    pub limit: i64,
    /// The names or hashes of revisions that pods have.
    pub live: &'a HashSet<&'a str>,
    /// The label that carries a revision's hash.
    pub label: &'static str,
}

impl Retention<'_> {
    /// The limit counts all old revisions (daemon sets).
    pub fn of_all(&self, old: &[Arc<ControllerRevision>]) -> Vec<Step> {
        self.oldest(old, old.len())
    }

    /// The limit counts the revisions that no pod has (stateful sets).
    pub fn of_unused(&self, old: &[Arc<ControllerRevision>]) -> Vec<Step> {
        self.oldest(old, old.iter().filter(|r| !self.used(r)).count())
    }

    fn used(&self, revision: &ControllerRevision) -> bool {
        let hash = revision.metadata.labels.get(self.label).map_or("", String::as_str);
        self.live.contains(hash) || self.live.contains(revision.metadata.name.as_str())
    }

    fn oldest(&self, old: &[Arc<ControllerRevision>], counted: usize) -> Vec<Step> {
        let surplus = counted.saturating_sub(usize::try_from(self.limit).unwrap_or(usize::MAX));
        old.iter().filter(|r| !self.used(r)).take(surplus).map(delete).collect()
    }
}
