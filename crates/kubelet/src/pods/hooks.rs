//! Lifecycle hooks: exec, HTTP, sleep. Upstream's `lifecycle/handlers.go`.

use super::context::NodeContext;
use super::core::{Container, ContainerPort, HTTPGetAction, LifecycleHandler, Pod};
use super::model;
use super::observed::ObservedContainer;
use super::probes::http::{self, HttpTarget};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kaji_runtime::EventRecord;
use std::net::IpAddr;
use std::time::Duration;

/// Bytes of a response's or a command's text that are kept.
const MOST_TEXT: usize = 10 << 10;
/// How long a hook's request may take.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of a port that is given by number or by name.
///
/// # Errors
/// A text for a name that no port has.
pub fn port(port: &IntOrString, ports: &[ContainerPort]) -> Result<u16, String> {
    let found = match port {
        IntOrString::Int(number) => u16::try_from(*number).ok(),
        IntOrString::String(name) => ports
            .iter()
            .find(|p| p.name.as_deref() == Some(name))
            .and_then(|p| u16::try_from(p.container_port).ok())
            .or_else(|| name.parse().ok()),
    };
    found.filter(|p| *p > 0).ok_or_else(|| match port {
        IntOrString::Int(number) => format!("invalid port number: {number}"),
        IntOrString::String(name) => format!("couldn't find port: {name}"),
    })
}

/// What a request of a hook or a probe is sent to.
///
/// # Errors
/// A text for a port that is none.
pub fn http_target(
    action: &HTTPGetAction,
    ports: &[ContainerPort],
    address: Option<IpAddr>,
) -> Result<HttpTarget, String> {
    let host = match action.host.as_deref().filter(|h| !h.is_empty()) {
        Some(host) => host.to_owned(),
        None => address.ok_or("failed to find networking container")?.to_string(),
    };
    let headers = action.http_headers.iter().flatten();
    Ok(HttpTarget {
        https: action.scheme.as_deref() == Some("HTTPS"),
        host,
        port: port(&action.port, ports)?,
        path: action.path.clone().unwrap_or_default(),
        headers: headers.map(|h| (h.name.clone(), h.value.clone())).collect(),
    })
}

async fn run(
    cx: &NodeContext,
    handler: &LifecycleHandler,
    id: &str,
    ports: &[ContainerPort],
    address: Option<IpAddr>,
) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let output = cx.runtime.exec_sync(id, command, Duration::ZERO).await.map_err(|e| e.to_string())?;
        if output.exit_code == 0 {
            return Ok(());
        }
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text[..text.len().min(MOST_TEXT)]).into_owned();
        return Err(format!("command exited with {}: {text}", output.exit_code));
    }
    if let Some(action) = &handler.http_get {
        let target = http_target(action, ports, address)?;
        return http::get(&target, HTTP_TIMEOUT, "kube-lifecycle").await.map(drop);
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        kaji_runtime::time::sleep(&*cx.clock, Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err("invalid handler: no action was specified".to_owned())
}

/// Runs the preStop hook of a container that is to be stopped, at most for its grace period. A failure is an event.
pub async fn pre_stop(cx: &NodeContext, pod: Option<&Pod>, found: &ObservedContainer, grace: Duration) {
    let spec = pod.and_then(|p| model::find_container(p, &found.name));
    let own = spec.as_ref().and_then(|(c, _)| c.lifecycle.as_ref()?.pre_stop.as_ref());
    let Some(handler) = own.or(found.kept.pre_stop.as_ref()) else { return };
    let ports: &[ContainerPort] =
        spec.as_ref().and_then(|(c, _)| c.ports.as_deref()).unwrap_or(&found.kept.ports);
    let sandbox = cx.runtime.pod_sandbox_status(&found.status.info.sandbox_id).await;
    let address = sandbox.ok().and_then(|s| s.addresses.first().copied());
    let address = address.or(cx.config.addresses.first().copied());
    let hook = run(cx, handler, found.id(), ports, address);
    let ended = tokio::select! {
        ended = hook => Some(ended),
        () = kaji_runtime::time::sleep(&*cx.clock, grace) => None,
    };
    match ended {
        Some(Ok(())) => {}
        None => {
            tracing::debug!(container = found.id(), "the preStop hook did not end within the grace period")
        }
        Some(Err(error)) => {
            tracing::debug!(container = found.id(), %error, "the preStop hook failed");
            if let Some(pod) = pod {
                let reference = model::container_reference(pod, &found.name);
                // Its output may hold secrets.
                cx.api.record(EventRecord::warning(reference, "FailedPreStopHook", "PreStopHook failed"));
            }
        }
    }
}

/// Runs the postStart hook of a container that has just been started.
///
/// # Errors
/// The message of `PostStartHookError`; the container is to be killed.
pub async fn post_start(
    cx: &NodeContext,
    pod: &Pod,
    container: &Container,
    id: &str,
    address: Option<IpAddr>,
) -> Result<(), String> {
    let Some(handler) = container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()) else {
        return Ok(());
    };
    let ports = container.ports.as_deref().unwrap_or_default();
    let ended = run(cx, handler, id, ports, address.or(cx.config.addresses.first().copied())).await;
    if ended.is_err() {
        let reference = model::container_reference(pod, &container.name);
        cx.api.record(EventRecord::warning(reference, "FailedPostStartHook", "PostStartHook failed"));
    }
    ended
}
