//! Subresources that open a connection or stream text: exec, attach, port-forward, proxy, log.

use super::operations::{Maker, Operation, PRETTY, Param, PathItem, camel, in_path, query};
use super::{Subresource, gvk};

const CONTAINER: Param = query("container", "string", "PodExecOptions");
const STREAMS: [Param; 4] = [
    query("stderr", "boolean", "PodExecOptions"),
    query("stdin", "boolean", "PodExecOptions"),
    query("stdout", "boolean", "PodExecOptions"),
    query("tty", "boolean", "PodExecOptions"),
];
const LOG: [Param; 10] = [
    CONTAINER,
    query("follow", "boolean", "PodLogOptions"),
    query("insecureSkipTLSVerifyBackend", "boolean", "PodLogOptions"),
    query("limitBytes", "integer", "PodLogOptions"),
    PRETTY,
    query("previous", "boolean", "PodLogOptions"),
    query("sinceSeconds", "integer", "PodLogOptions"),
    query("stream", "string", "PodLogOptions"),
    query("tailLines", "integer", "PodLogOptions"),
    query("timestamps", "boolean", "PodLogOptions"),
];
const COMMAND: Param = query("command", "string", "PodExecOptions");
const PORTS: Param = query("ports", "integer", "PodPortForwardOptions");
const TARGET: Param = query("path", "string", "PodProxyOptions");

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
    common: &[Param],
    out: &mut Vec<PathItem<'a>>,
) {
    let (methods, own): (Methods, Vec<Param>) = match sub.name {
        "exec" => (STREAM, [&[COMMAND, CONTAINER][..], &STREAMS].concat()),
        "attach" => (STREAM, [&[CONTAINER][..], &STREAMS].concat()),
        "portforward" => (STREAM, vec![PORTS]),
        "log" => (GET, LOG.to_vec()),
        "proxy" => (ANY, vec![TARGET]),
        _ => (STREAM, Vec::new()),
    };
    let mut params: Vec<Param> = common.iter().filter(|p| p.place == "path").copied().collect();
    params.extend(own);
    let item = |path: String, params: &[Param], suffix: &str| PathItem {
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
