//! Subresources that reach into a running pod: `log`, `exec`, `attach`, `portforward`, `proxy`.
//!
//! Here is where each leads: to the kubelet of the pod's node, or, for `proxy`, to the pod's own address. Whether the
//! container exists is checked before; what the kubelet is asked is made of the options alone.
//!
//! Source: `pkg/registry/core/pod` (`LogLocation`, `ExecLocation` and the like, `ResourceLocation`).

use super::each_container;
use crate::shared::{
    Fields,
    connect::{self, Target},
};
use kaji_meta::{
    GroupKind, Path, Query, Status,
    field::{Error, ErrorList},
    object,
    time::Time,
};
use kaji_resource::{ConnectRequest, Ctx, Location, LocationQuery};
use serde_json::Value;
use std::sync::Arc;

/// The container that a request means, by upstream's rules.
pub fn container<'a>(pod: &'a Value, requested: &'a str) -> Result<&'a str, Status> {
    let name = object::name(pod);
    let mut all = vec![];
    each_container(pod.at("spec"), &Path::root(), |c, _| all.push(c.text("name")));
    if !requested.is_empty() {
        return if all.contains(&requested) {
            Ok(requested)
        } else {
            Err(Status::bad_request(format!("container {requested} is not valid for pod {name}")))
        };
    }
    match pod.at("spec").list("containers") {
        [only] => Ok(only.text("name")),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        _ => Err(Status::bad_request(format!(
            "a container name must be specified for pod {name}, choose one of: [{}]",
            all.join(" ")
        ))),
    }
}

/// Where a subresource of a pod leads; `None` for the log of a pod that no node has yet.
///
/// # Errors
/// What is wrong with the request or the pod.
pub fn location(ctx: &Ctx<'_>, request: &ConnectRequest<'_>) -> Result<Option<Location>, Status> {
    match ctx.subresource {
        "proxy" => proxy(ctx, request.options).map(Some),
        "log" => log(ctx, request.query),
        stream => stream_location(ctx, stream, request.options).map(Some),
    }
}

fn pod<'a>(ctx: &Ctx<'a>) -> Result<Arc<Value>, Status> {
    connect::read(ctx, "pods", ctx.namespace, ctx.name)
}

fn proxy(ctx: &Ctx<'_>, options: &Value) -> Result<Location, Status> {
    let target = Target::parse(ctx.name, "pod")?;
    let pod = connect::read(ctx, "pods", ctx.namespace, target.name)?;
    let ip = pod.at("status").list("podIPs").first().map_or("", |ip| ip.text("ip"));
    // An address that is not allowed is refused before anything is said about ports.
    connect::address(ip, 0, target.security(), String::new())?;
    let first_port = || {
        let containers = pod.at("spec").list("containers").iter();
        let mut ports = containers.filter_map(|c| c.list("ports").first());
        ports.next().and_then(|p| u16::try_from(p.int("containerPort")).ok())
    };
    let port = match target.port {
        "" => first_port(),
        _ => None,
    };
    let port = port.map_or_else(|| target.port_number(), Ok)?;
    let location = connect::address(ip, port, target.security(), connect::proxied_path(options))?;
    connect::reachable(ctx, pod.at("spec").text("nodeName"), location)
}

/// The node that a pod is on, once it has one.
fn node(ctx: &Ctx<'_>, pod: &Value) -> Option<Result<Arc<Value>, Status>> {
    let name = pod.at("spec").text("nodeName");
    (!name.is_empty()).then(|| connect::read(ctx, "nodes", "", name))
}

fn stream_location(ctx: &Ctx<'_>, stream: &str, options: &Value) -> Result<Location, Status> {
    let pod = pod(ctx)?;
    let name = object::name(&pod);
    let path = match stream {
        "portforward" => format!("/portForward/{}/{name}", ctx.namespace),
        _ => format!("/{stream}/{}/{name}/{}", ctx.namespace, container(&pod, options.text("container"))?),
    };
    let Some(node) = node(ctx, &pod) else {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    };
    let mut pairs = vec![];
    for (option, parameter) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")]
    {
        if options.flag(option) {
            pairs.push((parameter, "1".to_owned()));
        }
    }
    pairs.extend(options.strings("command").map(|word| ("command", word.to_owned())));
    let ports: Vec<String> = options.list("ports").iter().map(Value::to_string).collect();
    if !ports.is_empty() {
        pairs.push(("port", ports.join(",")));
    }
    Ok(connect::kubelet(&*node?, true, path, LocationQuery::Pairs(pairs)))
}

/// `PodLogOptions` of a query. The type is in no schema that is published.
struct LogOptions<'a> {
    container: &'a str,
    follow: bool,
    previous: bool,
    timestamps: bool,
    since_seconds: Option<i64>,
    since_time: Option<Time>,
    tail_lines: Option<i64>,
    limit_bytes: Option<i64>,
    /// A stream is named, whichever.
    stream: bool,
    skip_verification: bool,
}

impl<'a> LogOptions<'a> {
    fn parse(query: &'a Query) -> Result<LogOptions<'a>, Status> {
        let flag = |name| query.flag(name).unwrap_or_default();
        let number = |name| query.number(name).map_err(Status::bad_request);
        let since_time = match query.text("sinceTime") {
            "" | "null" => None,
            text => Some(Time::parse(text).map_err(|e| Status::bad_request(e.to_string()))?),
        };
        Ok(LogOptions {
            container: query.text("container"),
            follow: flag("follow"),
            previous: flag("previous"),
            timestamps: flag("timestamps"),
            since_seconds: number("sinceSeconds")?,
            since_time,
            tail_lines: number("tailLines")?,
            limit_bytes: number("limitBytes")?,
            stream: query.first("stream").is_some(),
            skip_verification: flag("insecureSkipTLSVerifyBackend"),
        })
    }

    /// Source: `ValidatePodLogOptions`.
    fn validate(&self) -> ErrorList {
        // Upstream's path without a name is no path at all.
        let nowhere = |text: &str| {
            let mut error = Error::forbidden(&Path::root(), text);
            error.field.clear();
            error
        };
        let mut errs = vec![];
        if let Some(lines) = self.tail_lines.filter(|n| *n < 0) {
            errs.push(Error::invalid(&Path::new("tailLines"), lines, "must be greater than or equal to 0"));
        }
        if let Some(bytes) = self.limit_bytes.filter(|n| *n < 1) {
            errs.push(Error::invalid(&Path::new("limitBytes"), bytes, "must be greater than 0"));
        }
        match self.since_seconds {
            Some(_) if self.since_time.is_some() => {
                let text = "at most one of `sinceTime` or `sinceSeconds` may be specified";
                errs.push(nowhere(text));
            }
            Some(seconds) if seconds < 1 => {
                errs.push(Error::invalid(&Path::new("sinceSeconds"), seconds, "must be greater than 0"));
            }
            _ => {}
        }
        // PodLogsQuerySplitStreams is off.
        if self.stream {
            errs.push(Error::forbidden(&Path::new("stream"), "may not be specified"));
        }
        errs
    }

    /// What the kubelet is asked.
    fn pairs(&self) -> Vec<(&'static str, String)> {
        let flags = [("follow", self.follow), ("previous", self.previous), ("timestamps", self.timestamps)];
        let mut pairs: Vec<_> =
            flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| (name, "true".to_owned())).collect();
        let numbers = [
            ("sinceSeconds", self.since_seconds),
            ("tailLines", self.tail_lines),
            ("limitBytes", self.limit_bytes),
        ];
        pairs.extend(numbers.into_iter().filter_map(|(name, n)| Some((name, n?.to_string()))));
        pairs.extend(self.since_time.map(|time| ("sinceTime", time.to_string())));
        pairs
    }
}

fn log(ctx: &Ctx<'_>, query: &Query) -> Result<Option<Location>, Status> {
    let options = LogOptions::parse(query)?;
    let errs = options.validate();
    if !errs.is_empty() {
        return Err(Status::invalid(&GroupKind::new("", "PodLogOptions"), ctx.name, &errs));
    }
    let pod = pod(ctx)?;
    let container = container(&pod, options.container)?;
    let Some(node) = node(ctx, &pod) else { return Ok(None) };
    let path = format!("/containerLogs/{}/{}/{container}", ctx.namespace, object::name(&pod));
    let query = LocationQuery::Pairs(options.pairs());
    Ok(Some(connect::kubelet(&*node?, !options.skip_verification, path, query)))
}

#[cfg(test)]
mod tests;
