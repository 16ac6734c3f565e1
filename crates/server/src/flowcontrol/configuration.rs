//! Applies the configuration objects of flow control, and maintains the mandatory and suggested ones among them.
//!
//! Invariant: an event only signals a change; the current objects are read after it.

use super::{ADJUSTMENT, FlowControl};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future, stream::BoxStream};
use kaji_engine::{ApiRequest, Body, Engine};
use kaji_flowcontrol::{FlowSchema, PriorityLevel, bootstrap, config::GROUP, controller::Marking};
use kaji_meta::{GroupResource, Status, time::Time};
use kaji_resource::{ObjectReader, Verb};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    panic::AssertUnwindSafe,
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

const SCHEMAS: &str = "flowschemas";
const LEVELS: &str = "prioritylevelconfigurations";
/// Field managers, as upstream names them.
const PRODUCER: &str = "api-priority-and-fairness-config-producer-v1";
const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";
/// How often the server maintains its objects.
const UPKEEP: Duration = Duration::from_secs(60);
/// Changes within this time are applied together.
const LINGER: Duration = Duration::from_millis(5);
/// Servers that disagree must not fight: a FlowSchema's status is written so often in a minute.
const MOST_MARKINGS: usize = 6;

/// Creates the missing mandatory and suggested objects, and updates those that the server maintains.
///
/// # Errors
/// The first error; the other objects are written nevertheless.
pub async fn ensure(engine: &Arc<Engine>) -> Result<(), Status> {
    // Objects that other servers have written have to be seen.
    engine.sync().await?;
    let levels = bootstrap::priority_levels();
    let schemas = bootstrap::flow_schemas();
    let both = [(LEVELS, &levels), (SCHEMAS, &schemas)];
    let each = both
        .iter()
        .flat_map(|(plural, all)| all.iter().map(|(o, must)| ensure_one(engine, plural, o, *must)));
    // All at once: they share one write to the disk.
    let outcomes = future::join_all(each).await;
    outcomes.into_iter().collect::<Result<(), Status>>()?;
    for (plural, wanted) in both {
        for object in engine.list(&GroupResource::new(GROUP, plural), None) {
            if bootstrap::unwanted(&object, wanted) {
                let name = kaji_meta::object::name(&object);
                let gone = call(engine, Verb::Delete, plural, name, "", PRODUCER, &Value::Null).await;
                gone.map(drop).or_else(|s| if s.code == 404 { Ok(()) } else { Err(s) })?;
            }
        }
    }
    Ok(())
}

async fn ensure_one(
    engine: &Arc<Engine>,
    plural: &str,
    wanted: &Value,
    mandatory: bool,
) -> Result<(), Status> {
    let name = kaji_meta::object::name(wanted);
    let outcome = match engine.get(&GroupResource::new(GROUP, plural), "", name) {
        None => call(engine, Verb::Create, plural, "", "", PRODUCER, wanted).await,
        Some(current) => match bootstrap::revise(&current, wanted, mandatory) {
            None => return Ok(()),
            Some(revised) => call(engine, Verb::Update, plural, name, "", PRODUCER, &revised).await,
        },
    };
    match outcome {
        // Another writer was faster; the next round checks again.
        Err(status) if status.code == 409 => Ok(()),
        other => other.map(drop),
    }
}

/// Follows the configuration until `stop` turns true or the engine is gone.
pub async fn follow(flow: Arc<FlowControl>, engine: Weak<Engine>, mut stop: watch::Receiver<bool>) {
    let mut follower = Follower { flow, engine, recent: VecDeque::new() };
    tokio::select! {
        biased;
        () = follower.run() => {}
        _ = stop.wait_for(|s| *s) => {}
    }
}

struct Follower {
    flow: Arc<FlowControl>,
    engine: Weak<Engine>,
    /// Conditions written in the last minute.
    recent: VecDeque<(Instant, String)>,
}

impl Follower {
    async fn run(&mut self) {
        let (mut adjust, mut upkeep) = (interval(ADJUSTMENT), interval(UPKEEP));
        adjust.set_missed_tick_behavior(MissedTickBehavior::Delay);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick of an interval is immediate; the start has seen to the objects.
        upkeep.tick().await;
        while self.flow.is_disabled() && self.engine.strong_count() > 0 {
            upkeep.tick().await;
            self.upkeep().await;
        }
        while let Some(mut events) = self.watch().await {
            let mut retry = self.level().await;
            loop {
                let again = async {
                    match retry {
                        true => tokio::time::sleep(Duration::from_secs(30)).await,
                        false => future::pending().await,
                    }
                };
                tokio::select! {
                    biased;
                    piece = events.next() => {
                        if piece.is_none() {
                            break;
                        }
                        tokio::time::sleep(LINGER).await;
                        // Events that have arrived meanwhile are applied with it.
                        while let Some(Some(_)) = futures_util::FutureExt::now_or_never(events.next()) {}
                        retry = self.level().await;
                    }
                    () = again => retry = self.level().await,
                    _ = adjust.tick() => FlowControl::wake(self.flow.controller.adjust(self.flow.now())),
                    _ = upkeep.tick() => self.upkeep().await,
                }
            }
        }
    }

    async fn upkeep(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        if let Err(error) = ensure(&engine).await {
            tracing::warn!(%error, "the flow control objects could not be maintained; the next round tries again");
        }
    }

    /// One stream of changes of both kinds; `None` once the engine has ended.
    async fn watch(&self) -> Option<BoxStream<'static, Bytes>> {
        let engine = self.engine.upgrade()?;
        let mut streams = vec![];
        for plural in [LEVELS, SCHEMAS] {
            let mut request = request(Verb::Watch, plural, "", "");
            request.query = [("watch", "true")].into();
            match engine.handle(request).await.body {
                // Without its end, which the other would hide.
                Body::Watch(stream) => {
                    streams.push(stream.chain(futures_util::stream::once(async { Bytes::new() })))
                }
                _ => return None,
            }
        }
        let all = futures_util::stream::select_all(streams.into_iter().map(StreamExt::boxed));
        Some(all.take_while(|piece| future::ready(!piece.is_empty())).boxed())
    }

    /// Reads all objects, configures flow control and writes conditions. True if some conditions were postponed.
    async fn level(&mut self) -> bool {
        let Some(engine) = self.engine.upgrade() else { return false };
        let list = |plural: &str| engine.list(&GroupResource::new(GROUP, plural), None);
        let parse = |object: &Arc<Value>| match PriorityLevel::parse(object) {
            Ok(level) => Some(level),
            Err(error) => {
                let name = kaji_meta::object::name(object);
                tracing::warn!(name, %error, "a PriorityLevelConfiguration is broken and ignored");
                None
            }
        };
        let levels = list(LEVELS).iter().filter_map(parse).collect();
        let schemas = list(SCHEMAS).iter().map(|o| FlowSchema::parse(o)).collect();
        let (markings, woken) = self.flow.controller.configure(self.flow.now(), levels, schemas);
        FlowControl::wake(woken);
        let mut late = false;
        for marking in markings {
            late |= !self.mark(&engine, &marking).await;
        }
        late
    }

    /// Writes a condition. False if that is postponed.
    async fn mark(&mut self, engine: &Arc<Engine>, marking: &Marking) -> bool {
        let now = Instant::now();
        while self.recent.front().is_some_and(|(at, _)| now - *at > UPKEEP) {
            self.recent.pop_front();
        }
        if self.recent.iter().filter(|(_, name)| *name == marking.schema).count() >= MOST_MARKINGS {
            return false;
        }
        self.recent.push_back((now, marking.schema.clone()));
        let at = Time::new(self.flow.clock.now()).to_string();
        let body = json!({
            "apiVersion": format!("{GROUP}/v1"),
            "kind": "FlowSchema",
            "metadata": {"name": marking.schema},
            "status": {"conditions": [{
                "type": "Dangling",
                "status": marking.condition.status,
                "reason": marking.condition.reason,
                "message": marking.condition.message,
                "lastTransitionTime": at,
            }]},
        });
        match call(engine, Verb::Patch, SCHEMAS, &marking.schema, "status", CONSUMER, &body).await {
            Err(status) if status.code != 404 => {
                tracing::warn!(name = marking.schema, error = %status, "a FlowSchema's condition could not be written");
                false
            }
            // A deleted object needs no condition.
            _ => true,
        }
    }
}

fn request(verb: Verb, plural: &str, name: &str, subresource: &str) -> ApiRequest {
    ApiRequest {
        name: name.into(),
        subresource: subresource.into(),
        ..ApiRequest::own(verb, GroupResource::new(GROUP, plural), "v1", "kube-apiserver")
    }
}

async fn call(
    engine: &Arc<Engine>,
    verb: Verb,
    plural: &str,
    name: &str,
    subresource: &str,
    manager: &str,
    body: &Value,
) -> Result<Value, Status> {
    let mut request = request(verb, plural, name, subresource);
    if !body.is_null() {
        let apply = verb == Verb::Patch;
        request.content_type = if apply { "application/apply-patch+yaml" } else { "application/json" }.into();
        let force = apply.then_some(("force", "true"));
        request.query = [("fieldManager", manager)].into_iter().chain(force).collect();
        request.body = body.to_string().into();
    }
    // A panic must not end the task that follows the configuration.
    let response = AssertUnwindSafe(engine.handle(request)).catch_unwind().await;
    let response = response.map_err(|_| Status::internal("the request broke what handled it"))?;
    let code = response.code;
    let bytes = response.body.into_bytes().unwrap_or_default();
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| Status::internal(e.to_string()))?;
    if code < 400 {
        return Ok(value);
    }
    Err(Status::from_value(&value).unwrap_or_else(|| Status::internal(format!("answer {code}"))))
}
