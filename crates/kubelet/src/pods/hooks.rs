//! Lifecycle hooks: exec, HTTP, sleep. Upstream's `lifecycle/handlers.go`.
//!
//! Invariants: any answer to an HTTP hook is a success; a preStop hook ends with the grace period, and others have no limit of time.

use super::context::NodeContext;
use super::core::{Container, ContainerPort, HTTPGetAction, LifecycleHandler, Pod};
use super::model;
use super::observed::ObservedContainer;
use super::probes::http::{self, HttpTarget};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kaji_meta::text::quote;
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

/// Why a hook failed.
struct Failure {
    error: String,
    /// What its command wrote; `None` for one without a command.
    output: Option<String>,
}

impl From<String> for Failure {
    fn from(error: String) -> Failure {
        Failure { error, output: None }
    }
}

/// The message of a container with a hook that failed.
fn describe(handler: &LifecycleHandler, container: &str, pod: &Pod, failure: &Failure) -> String {
    let what = match (&handler.exec, &handler.http_get, &handler.sleep) {
        (Some(exec), ..) => {
            let words = exec.command.as_deref().unwrap_or_default();
            format!("Exec lifecycle hook ([{}])", words.join(" "))
        }
        (_, Some(action), _) => {
            format!("HTTP lifecycle hook ({})", action.path.as_deref().unwrap_or_default())
        }
        (_, _, Some(sleep)) => format!("Sleep lifecycle hook ({})", sleep.seconds),
        _ => return format!("Cannot run handler: {}", failure.error),
    };
    let (container, pod) = (quote(container), quote(&model::display(pod)));
    let mut text = format!("{what} for Container {container} in Pod {pod} failed - error: {}", failure.error);
    if let Some(output) = &failure.output {
        text += &format!(", message: {}", quote(output));
    }
    text
}

async fn run(
    cx: &NodeContext,
    pod: Option<&Pod>,
    handler: &LifecycleHandler,
    id: &str,
    ports: &[ContainerPort],
    address: Option<IpAddr>,
) -> Result<(), Failure> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let words = command.join(" ");
        let ended = cx.runtime.exec_sync(id, command, Duration::ZERO).await;
        let ended = ended.map_err(|e| Failure { error: e.to_string(), output: Some(String::new()) })?;
        if ended.exit_code == 0 {
            return Ok(());
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(MOST_TEXT)]).into_owned();
        let code = ended.exit_code;
        let error = format!("command '{words}' exited with {code}: {}", text(&ended.stderr));
        let output = Some(text(&[ended.stdout, ended.stderr].concat()));
        return Err(Failure { error, output });
    }
    if let Some(action) = &handler.http_get {
        let target = http_target(action, ports, address)?;
        return Box::pin(request(cx, pod, target)).await.map_err(Failure::from);
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or(0);
        kaji_runtime::time::sleep(&*cx.clock, Duration::from_secs(seconds)).await;
        return Ok(());
    }
    Err("invalid handler: no action was specified".to_owned().into())
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
        Some(Err(failure)) => {
            tracing::debug!(container = found.id(), error = failure.error, "the preStop hook failed");
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
    ended.map_err(|failure| {
        let reference = model::container_reference(pod, &container.name);
        // Its output may hold secrets.
        cx.api.record(EventRecord::warning(reference, "FailedPostStartHook", "PostStartHook failed"));
        describe(handler, &container.name, pod, &failure)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_message_of_a_failed_hook_names_hook_container_and_pod() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let of = |handler, output: Option<&str>| {
            let handler: LifecycleHandler = serde_json::from_value(handler).unwrap();
            let failure = Failure { error: "E".to_owned(), output: output.map(str::to_owned) };
            describe(&handler, "c", &pod, &failure)
        };
        let shown = [
            of(json!({"exec": {"command": ["sh", "-c", "a b"]}}), Some("one\n\"two\"")),
            of(json!({"httpGet": {"path": "/x", "port": 1}}), None),
            of(json!({"sleep": {"seconds": 3}}), None),
            of(json!({}), None),
        ];
        expect_test::expect![[r#"
            Exec lifecycle hook ([sh -c a b]) for Container "c" in Pod "p_n(u)" failed - error: E, message: "one\n\"two\""
            HTTP lifecycle hook (/x) for Container "c" in Pod "p_n(u)" failed - error: E
            Sleep lifecycle hook (3) for Container "c" in Pod "p_n(u)" failed - error: E
            Cannot run handler: E"#]]
        .assert_eq(&shown.join("\n"));
    }
}
