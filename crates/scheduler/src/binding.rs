//! The binding cycle of a pod, beside later decisions: it waits for permits, prepares, binds, and says so.
//!
//! Invariants:
//! - A pod that was not bound leaves no reservation: whatever fails, the state comes back for unreserving.
//! - Statuses have upstream's texts: a failure begins with its extension point, a rejection by a permit is that of the chosen node.
//! - A rejection after the permits names no plugin: there is another attempt after the backoff, whatever happens meanwhile.
//! - Until it begins to bind its pod, a cycle can be ended.
//! - A pod that is not bound at once has its node in `status.nominatedNodeName` before anything is waited for or prepared, so that
//!   autoscalers keep the node, and a scheduler that starts meanwhile keeps the decision (KEP-5278).

mod hold;

use crate::{
    extenders::ExtenderCalls,
    framework::{BindContext, Binding, CycleState, Outcome, Permit, PermitWait, Points, Profile, Status},
    metrics::{Ending, Point, extension},
    status_writer::status_patch,
};
use futures_util::future::{BoxFuture, try_join_all};
pub use hold::Hold;
use kaji_meta::{duration, time::Clock};
use kaji_runtime::{Client, EventRecord, Key, PatchKind, Target, Write, objects::Pod, time};
use std::sync::Arc;
use tokio::time::Instant;

/// What binding a pod needs beside its context.
pub struct BindingCycle {
    /// What binding works with.
    pub context: BindContext,
    /// What plugins keep.
    pub state: CycleState,
    /// The plugins that the pod waits for.
    pub waits: Vec<PermitWait>,
    /// One of them may bind the pod.
    pub extenders: Arc<ExtenderCalls>,
    /// Whether the pod's status may name the node.
    pub nominated: bool,
    /// Ends it before it binds.
    pub hold: Hold,
}

impl BindingCycle {
    /// Runs the permits, pre-binds, binds and post-binds of a profile.
    ///
    /// # Errors
    /// The status of the plugin that failed or rejected the pod.
    pub async fn run(&mut self, profile: &Profile, clock: &dyn Clock) -> Outcome {
        let outcome = self.run_to_end(profile, clock).await;
        if outcome.is_err() {
            for point in profile.points().filter_map(|points| points.pre_bind.as_ref()) {
                point.undo(&self.context, &mut self.state).await;
            }
        }
        outcome
    }

    async fn run_to_end(&mut self, profile: &Profile, clock: &dyn Clock) -> Outcome {
        let preparing = pre_flight(profile, &self.context, &self.state);
        if !self.waits.is_empty() || !preparing.is_empty() {
            self.nominate().await;
        } else {
            self.hold.begin_to_bind()?;
        }
        let (context, state) = (&self.context, &mut self.state);
        if !self.waits.is_empty() {
            let since = Instant::now();
            let waited = self.hold.unless_ended(permitted(profile, context, &self.waits, clock)).await;
            profile.meter.permit_waited(Ending::from(&waited), since);
            let words = || "waiting on permit for pod: ".to_owned();
            waited.map_err(|status| status.failed(words).of_chosen_node())?;
        }
        let since = Instant::now();
        let prepared = pre_bind(profile, &preparing, &self.hold, (context, state)).await;
        profile.meter.observe(Point::PreBind, Ending::from(&prepared), since);
        prepared?;
        self.hold.begin_to_bind()?;
        let since = Instant::now();
        let bound = self.bind(profile).await;
        profile.meter.observe(Point::Bind, Ending::from(&bound), since);
        bound?;
        let (context, state, since) = (&self.context, &self.state, Instant::now());
        for points in profile.points() {
            if let Some(point) = &points.post_bind {
                let at = (points.plugin.name(), extension::POST_BIND);
                let post_bind = || point.post_bind(&context.pod, state, &context.node);
                profile.meter.plugin(state.timed, at, |()| Ending::Success, post_bind);
            }
        }
        profile.meter.observe(Point::PostBind, Ending::Success, since);
        let (key, node) = (context.pod.key(), &context.node);
        let text = format!("Successfully assigned {key} to {node}");
        let reference = context.pod.pod.metadata.reference("v1", "Pod");
        // A binding waits while very many events are not written yet; the receiver is gone only after the loop has ended.
        let _ = context.placed.send(EventRecord::normal(reference, "Scheduled", text)).await;
        Ok(())
    }

    /// Writes the node into the pod's status. Binding does not depend on it.
    async fn nominate(&mut self) {
        let pod = &self.context.pod.pod;
        let Some(patch) = status_patch(pod, None, Some(&self.context.node)) else { return };
        // An answer that is lost may be that of a write that was made.
        self.nominated = true;
        let target = Target::of::<Pod>(&pod.metadata.namespace, &pod.metadata.name).subresource("status");
        let kind = PatchKind::Strategic.content_type();
        if let Err(error) = self.context.client.patch_only(&target, kind, &patch).await {
            tracing::debug!(pod = %self.context.pod.key(), %error, "failed to write the nominated node");
        }
    }

    async fn bind(&self, profile: &Profile) -> Outcome {
        if self.extenders.bind(&self.context.pod, &self.context.node).await? {
            return Ok(());
        }
        for points in profile.points() {
            let Some(point) = &points.bind else { continue };
            let since = Instant::now();
            let bound = point.bind(&self.context, &self.state).await;
            if self.state.timed {
                profile.meter.executed(
                    (points.plugin.name(), extension::BIND),
                    Binding::ending(&bound),
                    since,
                );
            }
            if bound.map_err(|status| after_permits(status, "Bind", points))? == Binding::Bound {
                return Ok(());
            }
        }
        Err(Status::error("no plugin of the profile binds the pod"))
    }
}

/// Writes what a post-filter has decided, in order; the first failure ends it.
pub async fn carry_out(client: Client, pod: Key, writes: Vec<Write>) {
    for write in writes {
        let target = write.target().clone();
        let done = match write {
            Write::Create { body, .. } => client.create(&target, &body).await,
            Write::Update { body, .. } => client.update(&target, &body).await,
            Write::Patch { kind, body, .. } => client.patch(&target, kind.content_type(), "", &body).await,
            Write::Delete { options, .. } => client.delete(&target, &options).await,
        };
        if let Err(error) = done {
            tracing::debug!(%pod, target = target.path(), %error, "a write of a post-filter failed");
            return;
        }
    }
}

/// The plugins of which the pre-bind has something to do.
fn pre_flight<'a>(profile: &'a Profile, context: &BindContext, state: &CycleState) -> Vec<&'a Points> {
    let since = Instant::now();
    let mut preparing = vec![];
    for points in profile.points() {
        let Some(point) = &points.pre_bind else { continue };
        let at = (points.plugin.name(), extension::PRE_BIND_PRE_FLIGHT);
        let ending = |skips: &bool| if *skips { Ending::Skip } else { Ending::Success };
        let skips = || point.skips(&context.pod, state, &context.node);
        if !profile.meter.plugin(state.timed, at, ending, skips) {
            preparing.push(points);
        }
    }
    let ending = if preparing.is_empty() { Ending::Skip } else { Ending::Success };
    profile.meter.observe(Point::PreBindPreFlight, ending, since);
    preparing
}

/// Runs the pre-binds of plugins, one after another, until the binding is ended.
async fn pre_bind(
    profile: &Profile,
    preparing: &[&Points],
    hold: &Hold,
    (context, state): (&BindContext, &mut CycleState),
) -> Outcome {
    for points in preparing {
        let Some(point) = &points.pre_bind else { continue };
        let since = Instant::now();
        let prepared = hold.unless_ended(point.pre_bind(context, state)).await;
        if state.timed {
            let at = (points.plugin.name(), extension::PRE_BIND);
            profile.meter.executed(at, Ending::from(&prepared), since);
        }
        prepared.map_err(|status| after_permits(status, "PreBind", points))?;
    }
    Ok(())
}

/// What a plugin says at a point after the permits.
fn after_permits(status: Status, point: &str, points: &Points) -> Status {
    Status { plugin: "", ..status.at(point, points.plugin.name()) }
}

/// Resolves once all plugins that the pod waits for let it pass.
async fn permitted(
    profile: &Profile,
    context: &BindContext,
    waits: &[PermitWait],
    clock: &dyn Clock,
) -> Outcome {
    let began = time::instant(clock);
    let mut all: Vec<BoxFuture<'_, Outcome>> = vec![];
    for wait in waits {
        let points = profile.points().find(|points| points.plugin.name() == wait.plugin);
        if let Some(point) = points.and_then(|points| points.permit.as_deref()) {
            all.push(Box::pin(one_permitted(point, context, *wait, (clock, began))));
        }
    }
    try_join_all(all).await.map(drop)
}

/// Resolves once one plugin lets the pod pass, or the pod has waited for it too long.
async fn one_permitted(
    point: &dyn Permit,
    context: &BindContext,
    PermitWait { plugin, longest }: PermitWait,
    (clock, began): (&dyn Clock, Instant),
) -> Outcome {
    let permitted = tokio::select! {
        biased;
        permitted = point.permitted(&context.pod, &context.node) => permitted,
        () = time::sleep_until(clock, began + longest) => {
            let longest = duration::format(longest);
            let text = format!("rejected due to timeout after waiting {longest} at plugin {plugin}");
            Err(Status::unschedulable(text))
        }
    };
    permitted.map_err(|status| status.by(plugin))
}
