//! Watches one resource's metadata for deletions: what quotas give back.
//!
//! Invariants:
//! - A watch begins at the revision of a look before which every quota that names the resource is counted again, so
//!   that no deletion is missed. Retries back off up to 5 s.

use super::{Counter, counted};
use crate::shared::discovery::Resource;
use kaji_meta::{GroupResource, Status};
use kaji_runtime::{Error, watch::Watch};
use serde::Deserialize;
use serde_json::Value;
use std::{sync::Arc, time::Duration};

const FIRST_WAIT: Duration = Duration::from_millis(5);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Metadata {
    namespace: String,
    resource_version: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Head {
    metadata: Metadata,
}

/// Watches for ever.
pub(super) async fn run(counter: Arc<Counter>, gr: GroupResource, resource: Resource) {
    let path = resource.target("", "").path();
    let (mut resume, mut wait): (Option<String>, _) = (None, FIRST_WAIT);
    loop {
        let outcome = match &resume {
            None => begin(&counter, &gr, &path).await,
            Some(revision) => watch(&counter, &path, revision).await,
        };
        match outcome {
            Ok(revision) => {
                resume = Some(revision);
                wait = FIRST_WAIT;
            }
            Err(error) => {
                if error.code() == Some(410) {
                    resume = None;
                }
                tracing::debug!(path, %error, "a monitor of the quota controller retries");
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

/// Where to begin; all quotas that name the resource are counted after that.
async fn begin(counter: &Counter, gr: &GroupResource, path: &str) -> Result<String, Error> {
    let head: Head = counter.metadata.get(&format!("{path}?limit=1")).await?;
    for quota in counter.quotas.snapshot().iter() {
        if counted(quota.spec.hard.keys()).contains(gr) {
            counter.queue.add(quota.metadata.key());
        }
    }
    Ok(head.metadata.resource_version)
}

async fn watch(counter: &Counter, path: &str, from: &str) -> Result<String, Error> {
    let uri = format!("{path}?watch=true&allowWatchBookmarks=true&resourceVersion={from}");
    let mut watch = Watch::open(&counter.client.metadata_only(), &uri).await?;
    let mut last = from.to_owned();
    while let Some(lines) = watch.lines().await {
        for line in lines.split(|b| *b == b'\n').filter(|l| !l.is_empty()) {
            let event: Value = serde_json::from_slice(line).map_err(decode)?;
            if event["type"] == "ERROR" {
                let status = Status::from_value(&event["object"]);
                return Err(
                    status.map_or_else(|| Error::Decode("no Status".into()), |s| Error::Api(Box::new(s)))
                );
            }
            let head = Head::deserialize(&event["object"]).map_err(decode)?.metadata;
            if event["type"] == "DELETED" {
                counter.recount(&head.namespace);
            }
            last = head.resource_version;
        }
    }
    Ok(last)
}

fn decode(error: serde_json::Error) -> Error {
    Error::Decode(error.to_string())
}
