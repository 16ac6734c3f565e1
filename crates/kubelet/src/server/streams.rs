//! `/exec`, `/attach`, `/portForward` and `/run` of a real node.
//!
//! A path's segments are `root/{namespace}/{pod}[/{uid}][/{container}]`. [`super::lookup`] finds the pod, the container and the sandbox;
//! `kaji-streaming` speaks with the client, and the request runs the session that follows its upgrade.
//!
//! Invariant: nothing runs in a container before the client's handshake is complete.
//!
//! Source: upstream's `getExec`, `getAttach`, `getPortForward` and `getRun` in `pkg/kubelet/server/server.go`.

use super::lookup::{self, LookupError, find_pod};
use super::node_api::NodeApi;
use super::request::{self, JSON, KubeletRequest, ServerBody};
use crate::pods::core::Pod;
use crate::pods::model;
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt, Empty};
use kaji_containers::{AttachRequest, ExecRequest, RuntimeError};
use kaji_streaming::{
    Action, PodName, PortForwardPorts, StreamOptions, Timeouts, Upgrade, UpgradeRejection, UpgradeRequest,
};
use std::sync::Arc;
use std::time::Duration;

/// What a path names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) uid: Option<String>,
    /// Empty for a port-forward.
    pub(crate) container: String,
}

/// Of the segments behind the root; `None` if there are too few or too many, or an empty one.
pub(crate) fn names(segments: &[&str], with_container: bool) -> Option<Names> {
    let (container, pod) = match segments.split_last() {
        Some((last, rest)) if with_container => (*last, rest),
        _ => ("", segments),
    };
    let (namespace, name, uid) = match pod {
        [namespace, name] => (namespace, name, None),
        [namespace, name, uid] => (namespace, name, Some((*uid).to_owned())),
        _ => return None,
    };
    if segments.contains(&"") {
        return None;
    }
    Some(Names {
        namespace: (*namespace).to_owned(),
        pod: (*name).to_owned(),
        uid,
        container: container.to_owned(),
    })
}

/// Answers a request to one of the roots above.
pub(super) async fn handle(api: &NodeApi, request: KubeletRequest) -> Response<ServerBody> {
    let segments = request.segments();
    let root = segments.first().copied().unwrap_or_default().to_owned();
    let rest = segments.get(1..).unwrap_or_default();
    let Some(names) = names(rest, root != "portForward") else { return request::not_found() };
    let (post, get) = (request.method == Method::POST, request.method == Method::GET);
    if !post && (root == "run" || !get) {
        return request::method_not_allowed();
    }
    let answer = match root.as_str() {
        "exec" => exec(api, &request, &names).await,
        "attach" => attach(api, &request, &names).await,
        "portForward" => port_forward(api, &request, &names).await,
        _ => return run(api, &request, &names).await.unwrap_or_else(refuse),
    };
    upgraded(&request, answer)
}

/// The response to a request for a session, which runs then.
pub(crate) fn upgraded(
    request: &KubeletRequest,
    answer: Result<Upgrade, UpgradeRejection>,
) -> Response<ServerBody> {
    match answer {
        Ok(Upgrade { response, session }) => {
            request.sessions.run(session);
            response.map(|()| Empty::new().map_err(|never| match never {}).boxed_unsync())
        }
        Err(refusal) => refuse(refusal),
    }
}

pub(crate) fn refuse(refusal: UpgradeRejection) -> Response<ServerBody> {
    let UpgradeRejection { code, headers, text } = refusal;
    let mut response = request::error(code, text);
    for (name, value) in headers {
        response.headers_mut().append(name, value);
    }
    response
}

pub(crate) fn upgrade_of(request: &KubeletRequest) -> UpgradeRequest<'_> {
    UpgradeRequest { method: &request.method, headers: &request.headers, upgrade: request.upgrade.as_ref() }
}

fn not_found(error: LookupError) -> UpgradeRejection {
    UpgradeRejection::new(error.code(), error.to_string())
}

/// An error of the runtime, as upstream answers with it.
fn of_runtime(error: RuntimeError) -> UpgradeRejection {
    let code = if error.is_not_found() { StatusCode::NOT_FOUND } else { StatusCode::INTERNAL_SERVER_ERROR };
    UpgradeRejection::new(code, error.to_string())
}

/// The pod, whatever its uid: exec and attach look for containers by the uid, and miss those.
fn pod_of(api: &NodeApi, names: &Names) -> Result<Arc<Pod>, UpgradeRejection> {
    find_pod(&*api.pods, &names.namespace, &names.pod, None).map_err(not_found)
}

/// The id of a container that runs; `None` if there is none, or its pod has another uid.
async fn running_container(
    api: &NodeApi,
    pod: &Pod,
    names: &Names,
) -> Result<Option<String>, UpgradeRejection> {
    if names.uid.as_ref().is_some_and(|uid| uid != model::uid(pod)) {
        return Ok(None);
    }
    match lookup::running_container(&*api.cx.runtime, model::uid(pod), &names.container).await {
        Ok(found) => Ok(Some(found.id)),
        Err(LookupError::NoContainer(_)) => Ok(None),
        Err(LookupError::Runtime(error)) => Err(of_runtime(error)),
        Err(other) => Err(not_found(other)),
    }
}

/// The id of the container that a command is run in.
async fn container_for_command(api: &NodeApi, names: &Names) -> Result<String, UpgradeRejection> {
    let pod = pod_of(api, names)?;
    let found = running_container(api, &pod, names).await?;
    found.ok_or_else(|| not_found(LookupError::NoContainer(names.container.clone())))
}

async fn exec(api: &NodeApi, request: &KubeletRequest, names: &Names) -> Result<Upgrade, UpgradeRejection> {
    let options = StreamOptions::of(&request.query)?;
    let container_id = container_for_command(api, names).await?;
    let command: Vec<String> = request.query.all("command").map(str::to_owned).collect();
    let StreamOptions { stdin, stdout, stderr, tty } = options;
    let action = Action::Exec { command: command.clone() };
    let runtime = api.cx.runtime.clone();
    let open =
        async move { runtime.exec(ExecRequest { container_id, command, tty, stdin, stdout, stderr }).await };
    kaji_streaming::remote_command(upgrade_of(request), options, action, open, Timeouts::default())
}

async fn attach(api: &NodeApi, request: &KubeletRequest, names: &Names) -> Result<Upgrade, UpgradeRejection> {
    let options = StreamOptions::of(&request.query)?;
    let pod = pod_of(api, names)?;
    let missing = || {
        let text = format!(
            "container {} not found in pod {}_{}",
            names.container,
            model::name(&pod),
            model::namespace(&pod)
        );
        UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, text)
    };
    let container_id = running_container(api, &pod, names).await?.ok_or_else(missing)?;
    let (container, _) = model::find_container(&pod, &names.container).ok_or_else(missing)?;
    // A process has the terminal that it was started with, or none.
    let options = StreamOptions { tty: container.tty.unwrap_or_default(), ..options };
    let StreamOptions { stdin, stdout, stderr, tty } = options;
    if tty && stderr {
        let text = "rpc error: code = InvalidArgument desc = tty and stderr cannot both be true";
        return Err(UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, text));
    }
    let runtime = api.cx.runtime.clone();
    let open =
        async move { runtime.attach(AttachRequest { container_id, tty, stdin, stdout, stderr }).await };
    kaji_streaming::remote_command(upgrade_of(request), options, Action::Attach, open, Timeouts::default())
}

async fn port_forward(
    api: &NodeApi,
    request: &KubeletRequest,
    names: &Names,
) -> Result<Upgrade, UpgradeRejection> {
    let ports = PortForwardPorts::of(&request.headers, &request.query)?;
    let pod = find_pod(&*api.pods, &names.namespace, &names.pod, names.uid.as_deref()).map_err(not_found)?;
    let sandbox = match lookup::ready_sandbox(&*api.cx.runtime, &pod).await {
        Ok(sandbox) => sandbox.id,
        Err(LookupError::Runtime(error)) => return Err(of_runtime(error)),
        Err(_) => {
            let text = format!("pod not found (\"{}_{}\")", model::name(&pod), model::namespace(&pod));
            return Err(UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, text));
        }
    };
    let runtime = api.cx.runtime.clone();
    let name = PodName { name: sandbox.clone(), uid: String::new() };
    let connect: kaji_streaming::Connect = Arc::new(move |port| {
        let (runtime, sandbox) = (runtime.clone(), sandbox.clone());
        Box::pin(async move { runtime.port_forward(&sandbox, port).await })
    });
    kaji_streaming::port_forward(upgrade_of(request), ports, name, connect, Timeouts::default())
}

/// Runs the words of `cmd` in a container, and answers with what they print.
async fn run(
    api: &NodeApi,
    request: &KubeletRequest,
    names: &Names,
) -> Result<Response<ServerBody>, UpgradeRejection> {
    let container = container_for_command(api, names).await?;
    let command: Vec<String> = request.query.text("cmd").split(' ').map(str::to_owned).collect();
    let shown = command.join(" ");
    let failed = |text: String| UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    let result = api.cx.runtime.exec_sync(&container, command, Duration::ZERO).await;
    let output = result.map_err(|error| failed(error.to_string()))?;
    if output.exit_code != 0 {
        let stderr = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("command '{shown}' exited with {}: {stderr}", output.exit_code)));
    }
    let printed = [output.stdout, output.stderr].concat();
    let nothing = printed.is_empty();
    let mut response = request::respond(StatusCode::OK, JSON, printed);
    if nothing {
        response.headers_mut().remove(header::CONTENT_TYPE);
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn reads_the_names_in_paths() {
        let shown = |path: &str, with_container| {
            let segments: Vec<&str> = path.split('/').collect();
            names(&segments, with_container).map_or("-".to_owned(), |n| {
                format!("{} {} {} {}", n.namespace, n.pod, n.uid.as_deref().unwrap_or("-"), n.container)
            })
        };
        let lines = [
            shown("n/p/c", true),
            shown("n/p/u/c", true),
            shown("n/p", true),
            shown("n/p/u/c/x", true),
            shown("n/p//c", true),
            shown("n/p/", true),
            shown("n/p", false),
            shown("n/p/u", false),
            shown("n", false),
            shown("n/p/u/c", false),
            shown("", false),
        ];
        expect![[r#"
            n p - c
            n p u c
            -
            -
            -
            -
            n p - 
            n p u 
            -
            -
            -"#]]
        .assert_eq(&lines.join("\n"));
    }
}
