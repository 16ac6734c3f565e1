//! `/checkpoint/{namespace}/{pod}/{container}`: has the runtime write what a running container is to an archive (KEP-2008).
//! Upstream's `Server.checkpoint`.

use super::lookup;
use super::node_api::NodeApi;
use super::request::{self, JSON, KubeletRequest, ServerBody};
use crate::pods::model;
use http::{Method, Response, StatusCode};
use kaji_containers::RuntimeError;
use kaji_meta::time::Time;
use serde_json::json;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;

/// Below the kubelet's directory. What is in an archive of a container's memory is for root alone.
const DIRECTORY: &str = "checkpoints";

/// Answers with the path of the archive.
pub(super) async fn handle(api: &NodeApi, request: KubeletRequest) -> Response<ServerBody> {
    let segments = request.segments();
    let [_, namespace, name, container] = segments.as_slice() else { return request::not_found() };
    if request.method != Method::POST {
        return request::method_not_allowed();
    }
    let missing = |text: String| request::error(StatusCode::NOT_FOUND, text);
    let Some(pod) = api.pods.by_name(namespace, name) else {
        return missing("pod does not exist".to_owned());
    };
    if model::find_container(&pod, container).is_none() {
        return missing(format!("container {container} does not exist"));
    }
    let timeout = match request.query.all("timeout").last().map(str::parse::<i64>) {
        None => 0,
        Some(Ok(seconds)) => seconds,
        Some(Err(_)) => return missing("cannot parse value of timeout parameter".to_owned()),
    };
    let full_name = format!("{name}_{namespace}");
    match write(api, (model::uid(&pod), &*full_name), container, timeout).await {
        Ok(path) => {
            let found = json!({"items": [path.display().to_string()]});
            request::respond(StatusCode::OK, JSON, found.to_string())
        }
        Err(error) => {
            let text = format!("checkpointing of {namespace}/{name}/{container} failed ({error})");
            request::error(StatusCode::INTERNAL_SERVER_ERROR, text)
        }
    }
}

/// Writes an archive. `timeout` is in seconds; 0 for the runtime's own.
async fn write(
    api: &NodeApi,
    (uid, pod): (&str, &str),
    container: &str,
    timeout: i64,
) -> Result<PathBuf, RuntimeError> {
    let runtime = &*api.cx.runtime;
    let found = lookup::newest_container(runtime, uid, container).await?;
    let found = found.ok_or_else(|| RuntimeError::NotFound(format!("container {container} not found")))?;
    let seconds = u64::try_from(timeout).map_err(|_| {
        RuntimeError::InvalidArgument("CheckpointContainer requires the timeout value to be > 0".to_owned())
    })?;
    let directory = api.cx.config.root_dir.join(DIRECTORY);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
    let at = Time::new(api.cx.clock.now());
    let path = directory.join(format!("checkpoint-{pod}-{container}-{at}.tar"));
    runtime.checkpoint_container(&found.id, &path, Duration::from_secs(seconds)).await?;
    Ok(path)
}
