//! Since when the use of tokens in secrets is watched: a config map, by which others know which of them nobody uses.
//! Source: KEP-2799; upstream's `legacytokentracking`.
//!
//! Invariant: a day that is there stays. One that was deleted comes back with the day on which it does, but not more often
//! than servers that disagree about it could bear.

use kaji_engine::Engine;
use kaji_meta::{Clock, GroupResource, Status, object};
use kaji_resource::{Api, FieldManagement, UpdateOptions};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Weak},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
const SINCE: &str = "since";
/// How often it is looked after.
const UPKEEP: Duration = Duration::from_secs(60);
/// How often it is made anew at the most.
const CREATION: Duration = Duration::from_secs(30 * 60);

fn is_day(text: &str) -> bool {
    jiff::civil::Date::strptime("%Y-%m-%d", text).is_ok_and(|day| day.to_string() == text)
}

fn maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

/// Makes it if it is not there and `create` says so, and repairs it. Whether it was made.
///
/// # Errors
/// Those of the API.
pub async fn ensure(api: &dyn Api, now: jiff::Timestamp, create: bool) -> Result<bool, Status> {
    let today = now.strftime("%Y-%m-%d").to_string();
    let Some(found) = api.get(&maps(), NAMESPACE, NAME) else {
        if !create {
            return Ok(false);
        }
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {SINCE: today}});
        return match api.create(&maps(), NAMESPACE, map, false).await {
            Err(status) if status.code == 409 => Ok(false),
            made => made.map(|_| true),
        };
    };
    if is_day(object::str_at(&found, &["data", SINCE])) {
        return Ok(false);
    }
    let repair = |map: &mut Value| {
        object::set_at(map, &["data", SINCE], today.as_str());
        Ok(())
    };
    match api.update(&maps(), NAMESPACE, NAME, UpdateOptions::new("", FieldManagement::Record), &repair).await
    {
        // Somebody was faster; the next round looks again.
        Err(status) if matches!(status.code, 404 | 409) => Ok(false),
        other => other.map(|_| false),
    }
}

/// Looks after it, which was made at the start, until told to stop or the engine is gone.
pub async fn follow(engine: Weak<Engine>, clock: Arc<dyn Clock>, mut stop: watch::Receiver<bool>) {
    let mut ticks = interval(UPKEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut made = Instant::now();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = stop.wait_for(|s| *s) => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        match ensure(&*engine, clock.now(), made.elapsed() >= CREATION).await {
            Ok(true) => made = Instant::now(),
            Ok(false) => {}
            Err(error) => tracing::warn!(error = %error.message, "cannot say since when tokens are watched"),
        }
    }
}
