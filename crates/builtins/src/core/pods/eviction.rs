//! Evicting a pod (policy/v1 Eviction): a deletion that disruption budgets may refuse.
//!
//! Invariant: a budget's allowance is taken before the pod is deleted and in one write with the pod's name, so that two
//! evictions can never share it.

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
    // What is decided here must not rest on a cache that lags.
    ctx.api.sync().await?;
    let Some(pod) = ctx.api.get(&pods(), ctx.namespace, ctx.name) else {
        return Err(Status::not_found(&pods(), ctx.name));
    };
    let gone = is_terminal(&pod) || object::deletion_timestamp(&pod).is_some();
    if gone || pod.at("status").text("phase") == "Pending" {
        // No budget counts such a pod. One that may yet become healthy must not change under us.
        return delete(ctx, &pod, options, !gone).await;
    }
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
