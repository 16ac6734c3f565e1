//! The ConfigMap with the date since when the use of legacy service account tokens is recorded, by which the cleaner finds
//! unused tokens. Source: KEP-2799; upstream's `legacytokentracking`.
//!
//! Invariant: an existing date stays. A deleted map is created again with the current date, at a limited rate, so that servers
//! that disagree do not compete.

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
/// The period of reconciliation.
const RESYNC: Duration = Duration::from_secs(60);
/// The minimum period between creations.
const CREATE_PERIOD: Duration = Duration::from_secs(30 * 60);

fn is_day(text: &str) -> bool {
    jiff::civil::Date::strptime("%Y-%m-%d", text).is_ok_and(|day| day.to_string() == text)
}

fn maps() -> GroupResource {
    GroupResource::new("", "configmaps")
}

/// Creates a missing map if `create` is true, and repairs an invalid date. Whether it was created.
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
            created => created.map(|_| true),
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
        // Another writer was faster; the next period reads it again.
        Err(status) if matches!(status.code, 404 | 409) => Ok(false),
        other => other.map(|_| false),
    }
}

/// Reconciles the map, which the start created, until `stop` turns true or the engine has ended.
pub async fn follow(engine: Weak<Engine>, clock: Arc<dyn Clock>, mut stop: watch::Receiver<bool>) {
    let mut ticks = interval(RESYNC);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut created = Instant::now();
    loop {
        tokio::select! {
            biased;
            _ = ticks.tick() => {}
            _ = stop.wait_for(|s| *s) => return,
        }
        let Some(engine) = engine.upgrade() else { return };
        match ensure(&*engine, clock.now(), created.elapsed() >= CREATE_PERIOD).await {
            Ok(true) => created = Instant::now(),
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(error = %error.message, "cannot write the date of legacy token tracking")
            }
        }
    }
}
