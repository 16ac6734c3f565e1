//! Decides the next step of a deployment: which replica set is the new one, and how each is scaled now, by rolling update
//! (`Rollout::rolling_update`) or recreation (`Rollout::recreate`).

use super::{
    API_VERSION, HASH_LABEL, equal_ignoring_hash, rollback,
    sets::{Bounds, REVISION, Set, rolls},
    status, template_hash,
};
use crate::shared::{conditions, controller_ref::quiet};
use kaji_runtime::{
    EventRecord, PatchKind, Plan, Projection, Step, Write,
    client::Target,
    objects::{Condition, Deployment, DeploymentStatus, ReplicaSet, ReplicaSetSpec},
};
use serde_json::{Value, json};
use std::{cmp::Ordering, sync::Arc};

/// Reason of a failed creation.
pub const CREATE_ERROR: &str = "ReplicaSetCreateError";
/// Longest object name.
const NAME_LIMIT: usize = 253;

/// A replica set's name.
pub fn set_name(deployment: &str, hash: &str) -> String {
    let limit = NAME_LIMIT - 1 - hash.len();
    let mut end = deployment.len().min(limit);
    while !deployment.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}-{hash}", &deployment[..end])
}

/// A deployment, its replica sets, and what becomes of them.
pub struct Rollout<'a> {
    d: &'a Deployment,
    now: jiff::Timestamp,
    bounds: Bounds,
    /// All sets, oldest first; one to be created last.
    sets: Vec<Set>,
    /// Which of them is the new one.
    new: Option<usize>,
    create: Option<Value>,
    cleanup: Vec<Step>,
    conditions: Vec<Condition>,
    revision: Option<String>,
    status: Option<DeploymentStatus>,
    /// The revision to go back to, before anything else is done.
    rollback: Option<i64>,
    /// Whether a stuck rollout is to be noticed.
    watched: bool,
}

impl<'a> Rollout<'a> {
    /// Of a deployment and the sets it manages.
    pub fn new(d: &'a Deployment, owned: Vec<Arc<ReplicaSet>>, now: jiff::Timestamp) -> Self {
        let mut sets: Vec<Set> = owned.into_iter().map(Set::new).collect();
        sets.sort_by(Set::by_age);
        let new = sets.iter().position(|s| equal_ignoring_hash(&s.seen.spec.template, &d.spec.template));
        Rollout {
            d,
            now,
            bounds: Bounds::of(d),
            sets,
            new,
            create: None,
            cleanup: vec![],
            conditions: d.status.conditions.clone(),
            revision: None,
            status: None,
            rollback: None,
            watched: false,
        }
    }

    /// Plans the next step. `old_pods_running` returns whether sets with these uids still have pods.
    pub fn decide(&mut self, old_pods_running: impl Fn(&[&str]) -> bool) {
        if self.d.metadata.deleting() {
            self.sync_revision();
            return self.sync_status();
        }
        self.note_pause();
        self.sync_revision();
        self.rollback = rollback::revision(self.d).filter(|_| !self.d.spec.paused);
        if self.rollback.is_some() {
            // The present template has a revision, too.
            self.new_set();
            return;
        }
        if self.d.spec.paused || self.scaled_by_user() {
            self.scale();
            if self.d.spec.paused {
                self.clean_up();
            }
            return self.sync_status();
        }
        if rolls(self.d) {
            self.rolling_update();
        } else if self.d.spec.strategy.kind == "Recreate" {
            self.recreate(old_pods_running);
        } else {
            return;
        }
        self.sync_rollout_status();
    }

    fn old(&self) -> impl Iterator<Item = usize> + use<> {
        let new = self.new;
        (0..self.sets.len()).filter(move |i| Some(*i) != new)
    }

    fn total(&self) -> i64 {
        self.sets.iter().map(|s| s.replicas).sum()
    }

    fn note_pause(&mut self) {
        if status::deadline(self.d).is_none() {
            return;
        }
        let current = conditions::get(&self.conditions, status::PROGRESSING).map(|c| c.reason.as_str());
        let (reason, text) = match (self.d.spec.paused, current) {
            // A failed rollout stays reported.
            (_, Some(status::TIMED_OUT)) => return,
            (true, reason) if reason != Some(status::PAUSED) => (status::PAUSED, "Deployment is paused"),
            (false, Some(status::PAUSED)) => (status::RESUMED, "Deployment is resumed"),
            _ => return,
        };
        self.set_progressing("Unknown", reason, text.into());
    }

    fn set_progressing(&mut self, state: &str, reason: &str, text: String) {
        let condition = status::condition(status::PROGRESSING, state, reason, text, self.now);
        conditions::set(&mut self.conditions, condition);
    }

    fn next_revision(&self) -> i64 {
        self.old().filter_map(|i| self.sets[i].revision()).fold(0, i64::max) + 1
    }

    /// Brings annotations and `minReadySeconds` of an existing new set up to date.
    fn sync_revision(&mut self) {
        let revision = self.next_revision();
        let Some(new) = self.new else { return };
        let set = &mut self.sets[new];
        set.promote(self.d, revision);
        set.min_ready_seconds = self.d.spec.min_ready_seconds;
        self.revision = set.annotations.get(REVISION).cloned();
        if status::deadline(self.d).is_some()
            && conditions::get(&self.conditions, status::PROGRESSING).is_none()
        {
            let text = format!("Found new replica set \"{}\"", self.sets[new].name());
            self.set_progressing("True", "FoundNewReplicaSet", text);
        }
    }

    /// The new set; made if there is none.
    fn new_set(&mut self) -> usize {
        if let Some(new) = self.new {
            return new;
        }
        let d = self.d;
        let hash = template_hash(&d.spec.template, d.status.collision_count);
        let revision = self.next_revision();
        let mut seen = ReplicaSet {
            spec: ReplicaSetSpec {
                replicas: Some(0),
                min_ready_seconds: d.spec.min_ready_seconds,
                ..Default::default()
            },
            ..Default::default()
        };
        seen.metadata.name = set_name(&d.metadata.name, &hash);
        seen.metadata.namespace.clone_from(&d.metadata.namespace);
        let mut set = Set::new(Arc::new(seen));
        set.promote(d, revision);
        set.annotate(self.bounds);
        let replicas = self.new_replica_set_size(0);
        set.scale(replicas, self.bounds, false);
        self.create = Some(body(d, &set, &hash));
        self.revision = Some(revision.to_string());
        if status::deadline(d).is_some() {
            self.set_progressing(
                "True",
                "NewReplicaSetCreated",
                format!("Created new replica set \"{}\"", set.name()),
            );
        }
        self.sets.push(set);
        let new = self.sets.len() - 1;
        self.new = Some(new);
        new
    }

    /// How large a new set of `have` replicas may be now.
    fn new_replica_set_size(&self, have: i64) -> i64 {
        if !rolls(self.d) {
            return self.bounds.wanted;
        }
        let free = self.bounds.most() - self.total();
        if free <= 0 { have } else { have + free.min(self.bounds.wanted - have) }
    }

    fn scaled_by_user(&self) -> bool {
        let wanted = self.bounds.wanted;
        self.sets.iter().any(|s| s.active() && s.desired().is_some_and(|desired| desired != wanted))
    }

    fn scale_set(&mut self, i: usize, size: i64, force: bool) -> bool {
        self.sets[i].scale(size, self.bounds, force)
    }

    /// Follows a change of `spec.replicas` without rolling on.
    fn scale(&mut self) {
        let active: Vec<usize> = (0..self.sets.len()).filter(|i| self.sets[*i].active()).collect();
        let only = match active.as_slice() {
            [] => self.new.or_else(|| self.old().last()),
            [one] => Some(*one),
            _ => None,
        };
        if let Some(only) = only {
            self.scale_set(only, self.bounds.wanted, false);
        } else if self.new.is_some_and(|new| self.sets[new].saturated(self.bounds)) {
            for i in self.old() {
                self.scale_set(i, 0, false);
            }
        } else if active.len() > 1 && rolls(self.d) {
            self.scale_proportionally(active);
        }
    }

    /// Gives every active set its share of the change, the largest the rest.
    fn scale_proportionally(&mut self, mut active: Vec<usize>) {
        let allowed = if self.bounds.wanted > 0 { self.bounds.most() } else { 0 };
        let to_add = allowed - self.total();
        active.sort_by(|a, b| {
            let (a, b) = (&self.sets[*a], &self.sets[*b]);
            let age = if to_add > 0 { b.by_age(a) } else { a.by_age(b) };
            if to_add == 0 { Ordering::Equal } else { b.replicas.cmp(&a.replicas).then(age) }
        });
        let mut added = 0;
        let mut sizes: Vec<(usize, i64)> = active
            .into_iter()
            .map(|i| {
                let share = self.sets[i].proportion(self.d, self.bounds, to_add, added);
                added += share;
                (i, self.sets[i].replicas + share)
            })
            .collect();
        if let Some((_, size)) = sizes.first_mut() {
            *size = (*size + to_add - added).max(0);
        }
        for (i, size) in sizes {
            self.scale_set(i, size, true);
        }
    }

    /// Scales up the new replica set within `maxSurge`, then scales down the old ones within `maxUnavailable`.
    fn rolling_update(&mut self) {
        let new = self.new_set();
        let have = self.sets[new].replicas;
        let size =
            if have > self.bounds.wanted { self.bounds.wanted } else { self.new_replica_set_size(have) };
        if have != self.bounds.wanted && self.scale_set(new, size, false) {
            return;
        }
        if !self.scale_down_old(new) && status::complete(self.d, &self.d.status) {
            self.clean_up();
        }
    }

    /// Makes room for new pods as far as availability allows: pods that are not available anyway go first.
    fn scale_down_old(&mut self, new: usize) -> bool {
        let old: Vec<usize> = self.old().filter(|i| self.sets[*i].active()).collect();
        if old.is_empty() {
            return false;
        }
        let set = &self.sets[new];
        let unavailable = set.replicas - set.seen.status.available_replicas;
        let most = self.total() - self.bounds.fewest() - unavailable;
        if most <= 0 {
            return false;
        }
        // Pods that go already are still in a status from before the last scaling. Upstream waits for the next one, too.
        if old.iter().any(|&i| self.sets[i].seen.status.available_replicas > self.sets[i].replicas) {
            return false;
        }
        let mut down = 0;
        for &i in &old {
            let set = &self.sets[i];
            let unhealthy = set.replicas - set.seen.status.available_replicas;
            let count = unhealthy.min(most - down);
            if set.active() && count > 0 {
                let size = set.replicas - count;
                self.scale_set(i, size, false);
                down += count;
            }
        }
        let available: i64 =
            old.iter().chain([&new]).map(|i| self.sets[*i].seen.status.available_replicas).sum();
        let spare = available - self.bounds.fewest();
        let mut taken = 0;
        for &i in &old {
            let count = self.sets[i].replicas.min(spare - taken);
            if count > 0 {
                let size = self.sets[i].replicas - count;
                self.scale_set(i, size, false);
                taken += count;
            }
        }
        down + taken > 0
    }

    fn recreate(&mut self, old_pods_running: impl Fn(&[&str]) -> bool) {
        let old: Vec<usize> = self.old().collect();
        let scaled = old.iter().filter(|i| self.scale_set(**i, 0, false)).count() > 0;
        if scaled || old.iter().any(|i| self.sets[*i].seen.status.replicas > 0) {
            return;
        }
        let uids: Vec<&str> = old.iter().map(|i| self.sets[*i].seen.metadata.uid.as_str()).collect();
        if old_pods_running(&uids) {
            return;
        }
        let new = self.new_set();
        self.scale_set(new, self.bounds.wanted, false);
        if status::complete(self.d, &self.d.status) {
            self.clean_up();
        }
    }

    /// Deletes the oldest empty sets over the history limit.
    fn clean_up(&mut self) {
        let Some(limit) = self.d.spec.revision_history_limit.filter(|l| *l != i64::from(i32::MAX)) else {
            return;
        };
        let mut old: Vec<&Set> =
            self.old().map(|i| &self.sets[i]).filter(|s| !s.seen.metadata.deleting()).collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        old.sort_by(|a, b| a.by_revision(b));
        let idle = |s: &&&Set| {
            let status = &s.seen.status;
            status.replicas == 0
                && s.replicas == 0
                && s.seen.metadata.generation <= status.observed_generation
        };
        let delete = |set: &&Set| {
            let meta = &set.seen.metadata;
            quiet(Write::Delete {
                target: Target::of::<ReplicaSet>(&meta.namespace, &meta.name),
                options: json!({"preconditions": {"uid": meta.uid}}),
            })
        };
        self.cleanup = old.iter().take(surplus).filter(idle).map(delete).collect();
    }

    fn sync_status(&mut self) {
        let new = self.new.map(|i| &self.sets[i]);
        self.status = Some(status::calculate(self.d, &self.sets, new, self.conditions.clone(), self.now));
    }

    fn sync_rollout_status(&mut self) {
        let new = self.new.map(|i| &self.sets[i]);
        let status = status::calculate(self.d, &self.sets, new, self.conditions.clone(), self.now);
        self.status = Some(status::rollout(self.d, status, &self.sets, new, self.now));
        self.watched = true;
    }

    /// Creation first, then the sizes, then what is no longer needed, then the status.
    pub fn into_plan(self, mut plan: Plan) -> Plan {
        let regarding = self.d.metadata.reference(API_VERSION, Deployment::KIND);
        if let Some(body) = self.create {
            let set = self.sets.last();
            let name = set.map_or("", Set::name).to_owned();
            let failed = format!("Failed to create new replica set \"{name}\": {{error}}");
            plan = plan.stage(vec![Step {
                write: Write::Create {
                    target: Target::of::<ReplicaSet>(&self.d.metadata.namespace, ""),
                    body,
                },
                on_success: set.and_then(|s| s.scaling_event(&regarding)),
                on_failure: Some(EventRecord::warning(regarding.clone(), CREATE_ERROR, failed)),
            }]);
        }
        let existing = self.sets.iter().filter(|s| !s.seen.metadata.uid.is_empty());
        plan = plan.stage(existing.filter_map(|s| s.step(&regarding)).collect()).stage(self.cleanup);
        if let Some(revision) = self.rollback {
            return rollback::add(plan, self.d, &self.sets, revision);
        }
        let meta = &self.d.metadata;
        let revision = self.revision.filter(|r| meta.annotations.get(REVISION) != Some(r));
        let status = self.status.as_ref().filter(|s| **s != self.d.status);
        if revision.is_some() || status.is_some() {
            let mut body = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version}});
            if let Some(status) = status {
                body["status"] = status::to_value(status);
            }
            if let Some(revision) = revision {
                body["metadata"]["annotations"] = json!({REVISION: revision});
            }
            let target = Target::of::<Deployment>(&meta.namespace, &meta.name).subresource("status");
            return plan.then(Write::Patch { target, kind: PatchKind::Merge, body });
        }
        let wait =
            self.status.filter(|_| self.watched).and_then(|s| status::next_check(self.d, &s, self.now));
        match wait {
            Some(wait) => plan.again_after(wait),
            None => plan,
        }
    }
}

/// The body of a new replica set.
fn body(d: &Deployment, set: &Set, hash: &str) -> Value {
    let mut template = d.spec.template.clone();
    let mut labels =
        template.pointer("/metadata/labels").filter(|l| l.is_object()).cloned().unwrap_or_else(|| json!({}));
    labels[HASH_LABEL] = hash.into();
    kaji_meta::object::set_at(&mut template, &["metadata", "labels"], labels.clone());
    let mut selector = d.spec.selector.raw.clone();
    kaji_meta::object::set_at(&mut selector, &["matchLabels", HASH_LABEL], hash);
    json!({
        "apiVersion": API_VERSION,
        "kind": ReplicaSet::KIND,
        "metadata": {
            "name": set.name(),
            "namespace": d.metadata.namespace,
            "labels": labels,
            "annotations": set.annotations,
            "ownerReferences": [d.metadata.controller_ref(API_VERSION, Deployment::KIND)],
        },
        "spec": {
            "replicas": set.replicas,
            "minReadySeconds": d.spec.min_ready_seconds,
            "selector": selector,
            "template": template,
        },
    })
}
