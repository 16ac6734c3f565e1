//! Lifecycle hooks: exec, HTTP, sleep. Upstream's `lifecycle/handlers.go`.
//!
//! Invariants: any answer to an HTTP hook is a success; a preStop hook ends with the grace period, and others have no limit of time.

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
/// How requests of hooks name their client.
const AGENT: &str = "kube-lifecycle";

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

/// Sends the request of a hook. One over TLS that is answered without TLS is sent again without it.
async fn request(cx: &NodeContext, pod: Option<&Pod>, target: HttpTarget) -> Result<(), String> {
    let Err(error) = http::follow(&target, AGENT).await else { return Ok(()) };
    if !error.ends_with(http::NO_TLS) {
        return Err(error);
    }
    let mut plain = HttpTarget { https: false, ..target };
    plain.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("authorization"));
    if http::follow(&plain, AGENT).await.is_err() {
        return Err(error);
    }
    if let Some(pod) = pod {
        let message = format!(
            "request to HTTPS lifecycle hook {} got HTTP response, retry with HTTP succeeded",
            plain.authority()
        );
        cx.api.record(EventRecord::warning(model::reference(pod), "LifecycleHTTPFallback", message));
    }
    Ok(())
}

async fn run(
    cx: &NodeContext,
    pod: Option<&Pod>,
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
        return Box::pin(request(cx, pod, target)).await;
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
    let hook = run(cx, pod, handler, found.id(), ports, address);
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
    let address = address.or(cx.config.addresses.first().copied());
    let ended = run(cx, Some(pod), handler, id, ports, address).await;
    if ended.is_err() {
        let reference = model::container_reference(pod, &container.name);
        cx.api.record(EventRecord::warning(reference, "FailedPostStartHook", "PostStartHook failed"));
    }
    ended
}
