//! Subresources that connect the client to another server (`log`, `exec`, `portforward`, `proxy`, …).
//!
//! Invariants:
//! - The answer says where to connect and nothing is connected here; admission has seen the options before.
//! - A subresource that carries an upgrade always needs the right to create, whatever method opens it.
//!
//! Source: upstream's `ConnectResource`, and `ensureAuthorizedForVerb` of the pods' storage.

use crate::{
    admission::{self, Attributes, Operation},
    engine::Engine,
    options::WriteOptions,
    pipeline::Op,
    registry::Resource,
    request::ApiRequest,
    response::{ApiResponse, Body},
};
use kaji_meta::{GroupVersion, GroupVersionKind, Status};
use kaji_resource::{Carries, ConnectRequest, Connection, SubresourceKind, Verb};
use kaji_schema::{Format, Property, Props, Schema, SchemaRef, Type};
use serde_json::{Map, Value};
use std::sync::Arc;

/// Finds out what the request is to be connected to.
pub(crate) async fn connect(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let op = Op::new(engine, res, req, WriteOptions::default())?;
    let result = run(&op, req).await.map(|connection| ApiResponse {
        code: 200,
        content_type: "text/plain",
        warnings: vec![],
        annotations: vec![],
        body: Body::Connect(Box::new(connection)),
    });
    op.warned(result)
}

async fn run(op: &Op<'_>, req: &ApiRequest) -> Result<Connection, Status> {
    let Some(SubresourceKind::Connect { kind, carries }) = op.target.sub.map(|s| &s.kind) else {
        return Err(Status::generic_not_found());
    };
    let mut options = Value::Null;
    if *carries != Carries::Body {
        if req.query.all("dryRun").any(|value| !value.is_empty()) {
            return Err(Status::bad_request("dryRun is not supported"));
        }
        options = connect_options(kind, req)?;
        let attributes = op.attributes(op.target.name, Operation::Connect, Some(&mut options), None);
        let mut attributes = Attributes { kind, ..attributes };
        admission::admit(&op.plugins(), &mut attributes).await?;
        admission::validate(&op.plugins(), &attributes).await?;
    }
    if *carries == Carries::Upgrade
        && req.verb != Verb::Create
        && let Some(authorizer) = &req.further_authorizer
    {
        authorizer.authorize(req).await?;
    }
    // What the hook reads is as new as the request.
    op.engine.wait_consistent().await?;
    let ctx = op.ctx(op.target.name);
    let request = ConnectRequest { options: &options, query: &req.query };
    let location = op.target.res.def.hooks.calls().connect(&ctx, request).await?;
    Ok(Connection { carries: *carries, location })
}

/// How a query parameter becomes a field.
enum Shape {
    Flag,
    Text,
    Texts,
    Numbers,
}

/// The fields of all options of streams; the types are in no schema that is published. Source: core/v1
/// `PodExecOptions`, `PodAttachOptions`, `PodPortForwardOptions`, `PodProxyOptions` and the like.
const CONNECT_FIELDS: &[(&str, Shape)] = &[
    ("stdin", Shape::Flag),
    ("stdout", Shape::Flag),
    ("stderr", Shape::Flag),
    ("tty", Shape::Flag),
    ("container", Shape::Text),
    ("command", Shape::Texts),
    ("ports", Shape::Numbers),
    ("path", Shape::Text),
];

const TYPES: [&str; 6] = [
    "io.k8s.api.core.v1.NodeProxyOptions",
    "io.k8s.api.core.v1.PodAttachOptions",
    "io.k8s.api.core.v1.PodExecOptions",
    "io.k8s.api.core.v1.PodPortForwardOptions",
    "io.k8s.api.core.v1.PodProxyOptions",
    "io.k8s.api.core.v1.ServiceProxyOptions",
];

/// The fields of one kind of options; none for a kind that is something else.
fn fields(kind: &GroupVersionKind) -> impl Iterator<Item = &'static (&'static str, Shape)> {
    let core = kind.group.is_empty() && kind.version == "v1";
    let kind = if core { kind.kind.as_str() } else { "" };
    let (container, ports, path) = match kind {
        "PodExecOptions" | "PodAttachOptions" => (true, false, false),
        "PodPortForwardOptions" => (false, true, false),
        "NodeProxyOptions" | "PodProxyOptions" | "ServiceProxyOptions" => (false, false, true),
        _ => (false, false, false),
    };
    let command = kind == "PodExecOptions";
    CONNECT_FIELDS.iter().filter(move |(name, _)| match *name {
        "command" => command,
        "ports" => ports,
        "path" => path,
        _ => container,
    })
}

/// Takes options that admission has changed as Go decodes them: the unknown fields, which are removed. `None` for a kind that
/// is no options of a stream.
pub(crate) fn conform(kind: &GroupVersionKind, options: &mut Value) -> Option<Result<Vec<String>, String>> {
    let scalar = |ty, format| SchemaRef::owned(Schema { format, ..Schema::of(ty) });
    let list = |items| SchemaRef::owned(Schema { items: Some(items), ..Schema::of(Type::Array) });
    let text = || scalar(Type::String, Format::None);
    let mut known: Vec<Property> = fields(kind)
        .map(|(name, shape)| {
            let schema = match shape {
                Shape::Flag => scalar(Type::Boolean, Format::None),
                Shape::Text => text(),
                Shape::Texts => list(text()),
                Shape::Numbers => list(scalar(Type::Integer, Format::Int32)),
            };
            Property::new(*name, schema)
        })
        .collect();
    if known.is_empty() {
        return None;
    }
    known.extend(["apiVersion", "kind"].map(|name| Property::new(name, text())));
    let name = TYPES.iter().copied().find(|name| name.ends_with(&*kind.kind));
    let schema = Schema { properties: Some(Props::new(known)), name, ..Schema::of(Type::Object) };
    Some(kaji_schema::decode::conform(&schema, options))
}

/// The options of a stream as an object, from the query, as Go converts it.
///
/// # Errors
/// 400 with Go's text for a number that is none.
fn connect_options(kind: &GroupVersionKind, req: &ApiRequest) -> Result<Value, Status> {
    let mut options = Map::new();
    let gv = GroupVersion::new(kind.group.as_str(), kind.version.as_str());
    options.insert("apiVersion".into(), gv.api_version().into());
    options.insert("kind".into(), kind.kind.as_str().into());
    let rest = match req.subpath.as_str() {
        "" => String::new(),
        rest => format!("/{}", rest.trim_start_matches('/')),
    };
    for (name, shape) in fields(kind) {
        let texts: Vec<&str> = match *name {
            // Of proxies it is the rest of the request's own path, whatever a parameter says.
            "path" => vec![&rest],
            _ => req.query.all(name).collect(),
        };
        // What is empty is left out, but for the one list that always is there.
        let Some(first) = texts.first() else {
            if *name == "command" {
                options.insert((*name).into(), Value::Null);
            }
            continue;
        };
        let value = match shape {
            Shape::Flag => Value::from(req.query.flag(name).unwrap_or_default()),
            Shape::Text => Value::from(*first),
            Shape::Texts => Value::from(texts),
            Shape::Numbers => numbers(&texts)?,
        };
        if value == false || value == "" || value.as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        options.insert((*name).into(), value);
    }
    Ok(Value::Object(options))
}

/// Values as Go's conversion reads a list of ports: each may hold several.
fn numbers(texts: &[&str]) -> Result<Value, Status> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<u16>().ok().filter(|_| digits).map(Value::from).ok_or_else(|| {
            let why = if digits { "value out of range" } else { "invalid syntax" };
            let text = kaji_meta::text::quote(text);
            Status::bad_request(format!(
                "cannot convert to []int32: strconv.ParseUint: parsing {text}: {why}"
            ))
        })
    };
    Ok(Value::Array(texts.iter().flat_map(|text| text.split(',')).map(number).collect::<Result<_, _>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(kind: &str, subpath: &str, query: &str) -> String {
        let query = crate::tests::pairs(query);
        let request = ApiRequest { query, subpath: subpath.into(), ..crate::tests::request() };
        match connect_options(&GroupVersionKind::new("", "v1", kind), &request) {
            Ok(options) => options.to_string(),
            Err(status) => status.message,
        }
    }

    #[test]
    fn changed_options_are_decoded() {
        let conformed = |kind, mut options: Value| {
            let unknown = conform(&GroupVersionKind::new("", "v1", kind), &mut options);
            format!("{options} {unknown:?}")
        };
        let seen = [
            conformed(
                "PodExecOptions",
                json!({"kind": "PodExecOptions", "command": ["ls"], "tty": true, "foo": 1}),
            ),
            conformed("PodAttachOptions", json!({"command": ["ls"], "container": "c"})),
            conformed("PodPortForwardOptions", json!({"ports": [80]})),
            conformed("NodeProxyOptions", json!({"path": "/a", "ports": [80]})),
            conformed("PodExecOptions", json!({"command": "ls"})),
            conformed("Pod", json!({"path": 1})),
        ];
        expect_test::expect![[r#"
            {"command":["ls"],"kind":"PodExecOptions","tty":true} Some(Ok(["foo"]))
            {"container":"c"} Some(Ok(["command"]))
            {"ports":[80]} Some(Ok([]))
            {"path":"/a"} Some(Ok(["ports"]))
            {"command":"ls"} Some(Err("json: cannot unmarshal string into Go struct field PodExecOptions.command of type []string"))
            {"path":1} None"#]]
        .assert_eq(&seen.join("\n"));
    }

    /// As Go writes them: nothing that is empty, but for the one field that always is there.
    #[test]
    fn reads_the_options_of_streams() {
        let seen = [
            options("PodExecOptions", "", "command=ls&command=-l&stdout=1&stdin=false&container=c"),
            options("PodExecOptions", "", "tty=true&container="),
            options("PodAttachOptions", "", "stderr=true&command=ls"),
            options("PodProxyOptions", "a/b", "path=other"),
            options("ServiceProxyOptions", "", "path=other"),
            options("PodProxyOptions", "a/", ""),
            options("PodProxyOptions", "/", ""),
            options("PodPortForwardOptions", "", "ports=80&ports=81,82"),
            options("PodPortForwardOptions", "", "ports=70000"),
            options("PodPortForwardOptions", "", "ports=80&ports=x"),
        ];
        expect_test::expect![[r#"
            {"apiVersion":"v1","command":["ls","-l"],"container":"c","kind":"PodExecOptions","stdout":true}
            {"apiVersion":"v1","command":null,"kind":"PodExecOptions","tty":true}
            {"apiVersion":"v1","kind":"PodAttachOptions","stderr":true}
            {"apiVersion":"v1","kind":"PodProxyOptions","path":"/a/b"}
            {"apiVersion":"v1","kind":"ServiceProxyOptions"}
            {"apiVersion":"v1","kind":"PodProxyOptions","path":"/a/"}
            {"apiVersion":"v1","kind":"PodProxyOptions","path":"/"}
            {"apiVersion":"v1","kind":"PodPortForwardOptions","ports":[80,81,82]}
            cannot convert to []int32: strconv.ParseUint: parsing "70000": value out of range
            cannot convert to []int32: strconv.ParseUint: parsing "x": invalid syntax"#]]
        .assert_eq(&seen.join("\n"));
    }
}
