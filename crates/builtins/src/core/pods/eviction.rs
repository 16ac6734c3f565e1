//! Evicting a pod (policy/v1 Eviction): a deletion that disruption budgets may refuse.
//!
//! Invariants:
//! - A budget's allowance is taken before the pod is deleted and in one write with the pod's name, so that two evictions can
//!   never share it.
//! - A pod that no budget counts is deleted as it was read. Written meanwhile, it is read and judged again, a bounded number of
//!   times.

use super::is_terminal;
use crate::shared::{
    Fields,
    conditions::{self, Condition},
    value::{ensure_object, put},
};
use kaji_meta::{
    Cause, GroupKind, GroupResource, Path, Reason, Status, Time, field::Error, labels::Selector, object,
};
use kaji_resource::{Ctx, DeleteOptions, FieldManagement, UpdateOptions};
use serde_json::{Value, json};
use std::sync::Arc;

/// How many evictions may wait for the controller to notice them.
const MAX_DISRUPTED_PODS: usize = 2000;
/// How often the deletion of a pod that no budget counts is tried. Upstream waits half a second before each further attempt; reads
/// here have every acknowledged write.
const ATTEMPTS: usize = 20;
const REFUSED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";

fn pods() -> GroupResource {
    GroupResource::new("", "pods")
}

fn budgets() -> GroupResource {
    GroupResource::new("policy", "poddisruptionbudgets")
}

/// What the deletion is given: the options of the eviction, and dry run from either place.
fn delete_options(ctx: &Ctx<'_>, eviction: &Value) -> Result<DeleteOptions, Status> {
    let o = eviction.at("deleteOptions");
    if o.flag("ignoreStoreReadErrorWithClusterBreakingPotential") {
        let path = Path::new("deleteOptions").child("ignoreStoreReadErrorWithClusterBreakingPotential");
        let e = Error::invalid(&path, true, "can not be set for pod eviction, try after removing the option");
        return Err(Status::invalid(&GroupKind::new("policy", "Eviction"), ctx.name, &[e]));
    }
    let text = |v: &Value, f: &str| v.opt_text(f).map(str::to_owned);
    Ok(DeleteOptions {
        grace_period_seconds: o.opt_int("gracePeriodSeconds"),
        uid: text(o.at("preconditions"), "uid"),
        resource_version: text(o.at("preconditions"), "resourceVersion"),
        propagation_policy: text(o, "propagationPolicy"),
        orphan_dependents: o.opt_flag("orphanDependents"),
        dry_run: ctx.dry_run || !o.list("dryRun").is_empty(),
        ..DeleteOptions::default()
    })
}

/// Serves the creation of an Eviction for the pod.
pub async fn evict(ctx: &Ctx<'_>, eviction: &Value) -> Result<(u16, Value), Status> {
    if ctx.name != object::name(eviction) {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let options = delete_options(ctx, eviction)?;
    let mut attempts = 0;
    let pod = loop {
        let pod = latest(ctx).await?;
        let gone = is_terminal(&pod) || object::deletion_timestamp(&pod).is_some();
        if !gone && pod.at("status").text("phase") != "Pending" {
            break pod;
        }
        attempts += 1;
        // No budget counts such a pod. One that may yet become healthy must not change under us.
        match delete(ctx, &pod, options.clone(), !gone).await {
            Err(e) if attempts < ATTEMPTS && e.is_conflict() && may_change(&options, &pod) => {}
            done => return done,
        }
    };
    let mut found = matching(ctx, &pod);
    let Some(budget) = found.pop() else { return delete(ctx, &pod, options, false).await };
    if !found.is_empty() {
        let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Status::new(500, Reason::Unknown, text));
    }
    let name = object::name(&budget);
    let status = budget.at("status");
    let (healthy, desired) = (status.int("currentHealthy"), status.int("desiredHealthy"));
    let always = budget.at("spec").text("unhealthyPodEvictionPolicy") == "AlwaysAllow";
    let ready = conditions::is_true(pod.at("status"), "Ready");
    if !ready && (always || (healthy >= desired && desired > 0)) {
        // The pod is not counted now; if it becomes ready meanwhile, the budget decides after all.
        let free = options.resource_version.is_none();
        return delete(ctx, &pod, options, true)
            .await
            .map_err(|e| if free && e.is_conflict() { still_processed(name) } else { e });
    }
    let take = |b: &mut Value| take_allowance(b, ctx.name, ctx.now);
    let update = UpdateOptions::new("status", FieldManagement::Record).dry_run(options.dry_run);
    ctx.api.update(&budgets(), ctx.namespace, name, update, &take).await?;
    delete(ctx, &pod, options, false).await
}

/// The pod as it is now: what is decided here must not rest on a cache that lags.
async fn latest(ctx: &Ctx<'_>) -> Result<Arc<Value>, Status> {
    ctx.api.sync().await?;
    ctx.api.get(&pods(), ctx.namespace, ctx.name).ok_or_else(|| Status::not_found(&pods(), ctx.name))
}

/// Whether the client's preconditions hold of a later version of the pod, too.
fn may_change(options: &DeleteOptions, pod: &Value) -> bool {
    options.resource_version.is_none() && options.uid.as_deref().is_none_or(|uid| uid == object::uid(pod))
}

/// Budgets with a selector that matches the pod.
fn matching(ctx: &Ctx<'_>, pod: &Value) -> Vec<Arc<Value>> {
    let labels = pod.at("metadata").at("labels");
    let selects = |b: &Arc<Value>| {
        Selector::from_label_selector(b.at("spec").at("selector")).is_ok_and(|s| s.matches_value(labels))
    };
    ctx.api.list(&budgets(), Some(ctx.namespace)).into_iter().filter(selects).collect()
}

fn with_cause(mut status: Status, message: String) -> Status {
    let cause = Cause { reason: "DisruptionBudget".into(), message, field: String::new() };
    status.details.get_or_insert_default().causes.push(cause);
    status
}

fn still_processed(name: &str) -> Status {
    let text = format!("The disruption budget {name} is still being processed by the server.");
    with_cause(Status::too_many_requests(REFUSED, 10), text)
}

/// Takes one disruption from a budget's allowance, or returns the reason why there is none.
fn take_allowance(budget: &mut Value, pod: &str, now: jiff::Timestamp) -> Result<(), Status> {
    let name = object::name(budget).to_owned();
    let status = budget.at("status");
    if status.int("observedGeneration") < object::generation(budget) {
        return Err(still_processed(&name));
    }
    let refuse =
        |why| Err(Status::forbidden(&GroupResource::new("policy", "poddisruptionbudget"), &name, why));
    let allowed = status.int("disruptionsAllowed");
    if allowed < 0 {
        return refuse("pdb disruptions allowed is negative");
    }
    if status.map("disruptedPods").map_or(0, |m| m.len()) > MAX_DISRUPTED_PODS {
        return refuse("DisruptedPods map too big - too many evictions not confirmed by PDB controller");
    }
    if allowed == 0 {
        return Err(with_cause(Status::too_many_requests(REFUSED, 0), why_none(&name, status)));
    }
    let observed = status.int("observedGeneration");
    let status = ensure_object(budget, "status");
    put(status, "disruptionsAllowed", allowed - 1);
    put(ensure_object(status, "disruptedPods"), pod, Time::new(now));
    if allowed == 1 {
        exhausted(status, observed, now);
    }
    Ok(())
}

fn why_none(name: &str, status: &Value) -> String {
    let (have, want) = (status.int("currentHealthy"), status.int("desiredHealthy"));
    let condition = conditions::find(status, "DisruptionAllowed")
        .filter(|c| c.text("status") == "False" && !c.text("message").is_empty())
        .map(|c| (c.text("reason"), c.text("message")));
    match condition {
        Some(("SyncFailed", message)) => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {message}"
        ),
        _ if have <= want => {
            format!("The disruption budget {name} needs {want} healthy pods and has {have} currently")
        }
        Some((reason, message)) => {
            format!(
                "The disruption budget {name} does not allow evicting pods currently ({reason}): {message}"
            )
        }
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

/// `DisruptionAllowed: False` once nothing is left.
fn exhausted(status: &mut Value, observed: i64, now: jiff::Timestamp) {
    let new = json!({
        "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "observedGeneration": observed,
    });
    kaji_meta::conditions::set(status, new, Time::new(now));
}

/// Marks the pod as evicted, then deletes it. With `unchanged` the pod must still be the one that was looked at.
async fn delete(
    ctx: &Ctx<'_>,
    pod: &Value,
    mut options: DeleteOptions,
    unchanged: bool,
) -> Result<(u16, Value), Status> {
    if unchanged && options.resource_version.is_none() {
        options.resource_version = Some(object::resource_version(pod).to_owned());
    }
    if !options.dry_run {
        let mark = |p: &mut Value| {
            preconditions(p, &options)?;
            let c = Condition {
                ty: "DisruptionTarget",
                status: "True",
                reason: "EvictionByEvictionAPI",
                message: "Eviction API: evicting",
            };
            conditions::set(p, &c, ctx.now);
            Ok(())
        };
        let update = UpdateOptions::new("status", FieldManagement::Skip);
        let marked = ctx.api.update(&pods(), ctx.namespace, ctx.name, update, &mark).await?;
        if options.resource_version.is_some() {
            options.resource_version = Some(object::resource_version(&marked).to_owned());
        }
    }
    ctx.api.delete(&pods(), ctx.namespace, ctx.name, options).await?;
    Ok((201, Status::success(201)))
}

fn preconditions(pod: &Value, options: &DeleteOptions) -> Result<(), Status> {
    let check = |what: &str, want: &Option<String>, have: &str, hint: &str| match want.as_deref() {
        Some(w) if !w.is_empty() && w != have => {
            let why = format!(
                "the {what} in the precondition ({w}) does not match the {what} in record ({have}). The object might \
                 have been {hint}"
            );
            Err(Status::conflict(&GroupResource::new("", "Pod"), object::name(pod), why))
        }
        _ => Ok(()),
    };
    check("UID", &options.uid, object::uid(pod), "deleted and then recreated")?;
    check("ResourceVersion", &options.resource_version, object::resource_version(pod), "modified")
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use futures_util::FutureExt;
    use kaji_meta::GroupVersionKind;
    use kaji_resource::{
        BoxFuture, Change, ObjectReader, ObjectWriter, ResourceDef, TypeRegistry,
        testing::{FakeApi, TestContext},
    };
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A cluster with a kubelet that reports a status between the reading of the pod and its change, as often as is left.
    struct Busy {
        inner: FakeApi,
        left: AtomicUsize,
        /// The phase that it reports last.
        phase: &'static str,
        /// Attempts to change the pod.
        seen: AtomicUsize,
    }

    impl Busy {
        fn report(&self) {
            self.seen.fetch_add(1, Ordering::Relaxed);
            let left = self.left.load(Ordering::Relaxed);
            if left == 0 {
                return;
            }
            self.left.store(left - 1, Ordering::Relaxed);
            self.inner.change(&pods(), "default", "p", |pod| {
                let version: usize = object::resource_version(pod).parse().unwrap();
                pod["metadata"]["resourceVersion"] = (version + 1).to_string().into();
                pod["status"]["phase"] = if left == 1 { self.phase } else { "Pending" }.into();
            });
        }
    }

    impl ObjectReader for Busy {
        fn get(&self, resource: &GroupResource, namespace: &str, name: &str) -> Option<Arc<Value>> {
            self.inner.get(resource, namespace, name)
        }

        fn list(&self, resource: &GroupResource, namespace: Option<&str>) -> Vec<Arc<Value>> {
            self.inner.list(resource, namespace)
        }

        fn changed(&self, resource: &GroupResource) -> u64 {
            self.inner.changed(resource)
        }

        fn sync<'a>(&'a self) -> BoxFuture<'a, Result<(), Status>> {
            self.inner.sync()
        }

        fn lags(&self) -> bool {
            self.inner.lags()
        }
    }

    impl TypeRegistry for Busy {
        fn resource_of(&self, kind: &GroupVersionKind) -> Option<(GroupResource, bool)> {
            self.inner.resource_of(kind)
        }

        fn sharing(&self, group: &str, resource: &str) -> Vec<Arc<ResourceDef>> {
            self.inner.sharing(group, resource)
        }

        fn converted<'a>(
            &'a self,
            object: Value,
            to: &'a GroupVersionKind,
        ) -> BoxFuture<'a, Result<Value, Status>> {
            self.inner.converted(object, to)
        }

        fn versioned<'a>(
            &'a self,
            object: Value,
            to: &'a GroupVersionKind,
        ) -> BoxFuture<'a, Result<Value, Status>> {
            self.inner.versioned(object, to)
        }

        fn received(&self, object: Value, kind: &GroupVersionKind, strict: bool) -> Result<Value, String> {
            self.inner.received(object, kind, strict)
        }

        fn prune(&self, object: &mut Value) {
            self.inner.prune(object);
        }
    }

    impl ObjectWriter for Busy {
        fn create<'a>(
            &'a self,
            resource: &'a GroupResource,
            namespace: &'a str,
            object: Value,
            dry_run: bool,
        ) -> BoxFuture<'a, Result<Value, Status>> {
            self.inner.create(resource, namespace, object, dry_run)
        }

        fn update<'a>(
            &'a self,
            resource: &'a GroupResource,
            namespace: &'a str,
            name: &'a str,
            options: UpdateOptions<'a>,
            change: &'a Change<'a>,
        ) -> BoxFuture<'a, Result<Value, Status>> {
            if resource.resource == "pods" {
                self.report();
            }
            self.inner.update(resource, namespace, name, options, change)
        }

        fn delete<'a>(
            &'a self,
            resource: &'a GroupResource,
            namespace: &'a str,
            name: &'a str,
            options: DeleteOptions,
        ) -> BoxFuture<'a, Result<Value, Status>> {
            self.inner.delete(resource, namespace, name, options)
        }
    }

    /// Evicts a pending pod while its kubelet reports so many statuses, the last of them with this phase, and says what came of
    /// it: the answer, how often it was tried, and whether the pod is still there.
    fn evicted(reports: usize, phase: &'static str, preconditions: Value) -> String {
        let (inner, left) = (FakeApi::default(), AtomicUsize::new(reports));
        let pod = json!({"metadata": {"name": "p", "namespace": "default", "uid": "u", "resourceVersion": "5",
            "labels": {"app": "a"}}, "status": {"phase": "Pending"}});
        inner.put(&pods(), pod.clone());
        let budget = json!({"metadata": {"name": "b", "namespace": "default"},
            "spec": {"selector": {"matchLabels": {"app": "a"}}},
            "status": {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 1}});
        inner.put(&budgets(), budget);
        let api = Busy { inner, left, phase, seen: AtomicUsize::new(0) };
        let test = TestContext::default();
        let ctx = Ctx { api: &api, ..test.ctx(&pod, "eviction", "v1") };
        let eviction = json!({"metadata": {"name": "p"}, "deleteOptions": {"preconditions": preconditions}});
        let answer = match evict(&ctx, &eviction).now_or_never().unwrap() {
            Ok((code, _)) => code.to_string(),
            Err(status) => format!("{} {}", status.code, status.message),
        };
        let there = !api.inner.names(&pods()).is_empty();
        format!("{answer}; tried {}, there {there}\n", api.seen.load(Ordering::Relaxed))
    }

    #[test]
    fn a_pod_that_no_budget_counts_is_read_again_when_it_was_written_meanwhile() {
        let mut out = evicted(0, "Pending", json!({}));
        out += &evicted(3, "Pending", json!({}));
        out += &evicted(3, "Failed", json!({"uid": "u"}));
        // Now the budget counts it.
        out += &evicted(2, "Running", json!({}));
        out += &evicted(usize::MAX, "Pending", json!({}));
        out += &evicted(1, "Pending", json!({"resourceVersion": "5"}));
        out += &evicted(0, "Pending", json!({"uid": "other"}));
        expect![[r#"
            201; tried 1, there false
            201; tried 4, there false
            201; tried 4, there false
            429 Cannot evict pod as it would violate the pod's disruption budget.; tried 2, there true
            409 Operation cannot be fulfilled on Pod "p": the ResourceVersion in the precondition (24) does not match the ResourceVersion in record (25). The object might have been modified; tried 20, there true
            409 Operation cannot be fulfilled on Pod "p": the ResourceVersion in the precondition (5) does not match the ResourceVersion in record (6). The object might have been modified; tried 1, there true
            409 Operation cannot be fulfilled on Pod "p": the UID in the precondition (other) does not match the UID in record (u). The object might have been deleted and then recreated; tried 1, there true
        "#]]
        .assert_eq(&out);
    }
}
