//! Subresources that open a connection or stream text: exec, attach, port-forward, proxy, log.

use super::operations::{Maker, Operation, PRETTY, Param, PathItem, camel, in_path, query};
use super::{Subresource, gvk};

const EXEC: &str = "io.k8s.api.core.v1.PodExecOptions";
const ATTACH: &str = "io.k8s.api.core.v1.PodAttachOptions";
const LOGS: &str = "io.k8s.api.core.v1.PodLogOptions";

/// The container and the streams that exec and attach connect.
const fn streams(owner: &'static str) -> [Param<'static>; 5] {
    [
        query("container", "string", owner),
        query("stderr", "boolean", owner),
        query("stdin", "boolean", owner),
        query("stdout", "boolean", owner),
        query("tty", "boolean", owner),
    ]
}

const LOG: [Param<'static>; 10] = [
    query("container", "string", LOGS),
    query("follow", "boolean", LOGS),
    query("insecureSkipTLSVerifyBackend", "boolean", LOGS),
    query("limitBytes", "integer", LOGS),
    PRETTY,
    query("previous", "boolean", LOGS),
    query("sinceSeconds", "integer", LOGS),
    query("stream", "string", LOGS),
    query("tailLines", "integer", LOGS),
    query("timestamps", "boolean", LOGS),
];
const COMMAND: Param<'static> = query("command", "string", EXEC);
const PORTS: Param<'static> = query("ports", "integer", "io.k8s.api.core.v1.PodPortForwardOptions");

/// The path behind a proxy; the options are named after what it leads to.
fn target(kind: &str) -> Param<'static> {
    let owner = match kind {
        "NodeProxyOptions" => "io.k8s.api.core.v1.NodeProxyOptions",
        "ServiceProxyOptions" => "io.k8s.api.core.v1.ServiceProxyOptions",
        _ => "io.k8s.api.core.v1.PodProxyOptions",
    };
    query("path", "string", owner)
}

type Methods = &'static [(&'static str, &'static str)];

const GET: Methods = &[("get", "Get")];
const STREAM: Methods = &[("get", "Get"), ("post", "Post")];
const ANY: Methods = &[
    ("get", "Get"),
    ("post", "Post"),
    ("put", "Put"),
    ("delete", "Delete"),
    ("options", "Options"),
    ("head", "Head"),
    ("patch", "Patch"),
];

/// Adds the paths of `sub`, found at `path`; `common` are the parameters of the object's own path.
pub(super) fn paths<'a>(
    maker: &Maker<'_, 'a>,
    sub: &Subresource<'a>,
    path: &str,
    common: &[Param<'a>],
    out: &mut Vec<PathItem<'a>>,
) {
    let (methods, own): (Methods, Vec<Param<'_>>) = match sub.name {
        "exec" => (STREAM, [&[COMMAND][..], &streams(EXEC)].concat()),
        "attach" => (STREAM, streams(ATTACH).to_vec()),
        "portforward" => (STREAM, vec![PORTS]),
        "log" => (GET, LOG.to_vec()),
        "proxy" => (ANY, vec![target(sub.gvk.2)]),
        _ => (STREAM, Vec::new()),
    };
    let mut params: Vec<Param<'a>> = common.iter().filter(|p| p.place == "path").copied().collect();
    params.extend(own);
    let item = |path: String, params: &[Param<'a>], suffix: &str| PathItem {
        path,
        params: params.to_vec(),
        operations: methods
            .iter()
            .map(|(method, word)| operation(maker, sub, method, word, suffix))
            .collect(),
        models: Vec::new(),
    };
    out.push(item(path.to_string(), &params, ""));
    if sub.name == "proxy" {
        params.push(in_path("path"));
        out.push(item(format!("{path}/{{path}}"), &params, "WithPath"));
    }
}

fn operation<'a>(
    maker: &Maker<'_, 'a>,
    sub: &Subresource<'a>,
    method: &'static str,
    word: &str,
    suffix: &str,
) -> Operation {
    let (kind, name) = (maker.resource.kind, sub.name);
    let (action, id, description) = if name == "log" {
        ("get", maker.id("read", "Log"), format!("read log of the specified {kind}"))
    } else {
        let id =
            format!("connect{}{word}{}{kind}{}{suffix}", maker.names.camel, maker.scope, camel(name, true));
        ("connect", id, format!("connect {} requests to {name} of {kind}", word.to_uppercase()))
    };
    let mut op = maker.operation(method, action, id, description);
    op.answer = None;
    op.gvk = Some(gvk(sub.gvk.0, sub.gvk.1, sub.gvk.2));
    op
}
