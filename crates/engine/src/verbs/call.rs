//! Requests that hooks answer: subresources of kind `Call` (`binding`, `eviction`, `token`, `log`, …) and review kinds,
//! which exist only as the answer to their creation.

use crate::{
    admission::{self, Attributes, Operation},
    decode::{self, Want},
    encode,
    engine::Engine,
    options::{WriteOptions, parse_delete},
    pipeline::{Op, metadata},
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
};
use kaji_meta::{GroupVersion, GroupVersionKind, Status, object};
use kaji_resource::{CallRequest, SubresourceKind, Verb};
use kaji_schema::types;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Answers the request through `Hooks::call`.
pub(crate) async fn call(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let op = Op::new(engine, res, req, WriteOptions::of(req, false)?)?;
    let result = run(&op, req).await.and_then(|(code, value)| match (op.target.sub, req.verb) {
        (None, Verb::Get | Verb::List) => encode::read_response(res, req, op.now, (code, value)),
        _ => encode::value_response(&req.accept, code, &value),
    });
    op.warned(result)
}

async fn run(op: &Op<'_>, req: &ApiRequest) -> Result<(u16, Value), Status> {
    let kind = match op.target.sub.map(|s| &s.kind) {
        Some(SubresourceKind::Call { kind }) => kind.clone(),
        _ => op.target.kind.clone(),
    };
    // Upstream's connect options: they come in the query, and the body is a stream.
    let connects = op.target.sub.is_some() && kind.kind.ends_with("Options");
    let mut body = if connects { connect_options(&kind, req) } else { body(op, &kind, req)? };
    let shown =
        op.target.sub.is_some() && op.target.res.def.hooks.calls().call_reads_object(op.target.subresource());
    let parent = if shown { Some(parent(op).await?) } else { None };
    if connects || matches!(req.verb, Verb::Create | Verb::Update) {
        let operation = if connects {
            Operation::Connect
        } else if req.verb == Verb::Create {
            Operation::Create
        } else {
            Operation::Update
        };
        let name = if op.target.name.is_empty() {
            object::name(&body).to_owned()
        } else {
            op.target.name.to_owned()
        };
        let attributes = op.attributes(&name, operation, Some(&mut body), None);
        let mut attributes = Attributes { kind: &kind, ..attributes };
        admission::admit(&op.plugins(), &mut attributes).await?;
        admission::validate(&op.plugins(), &attributes).await?;
    }
    if connects {
        // It has served its purpose: hooks read the query.
        body = Value::Null;
    }
    let options = body.get("deleteOptions").filter(|v| v.is_object()).map(parse_delete);
    let ctx = op.ctx(op.target.name);
    let request = CallRequest {
        verb: req.verb,
        body,
        object: parent.as_ref(),
        query: &req.query,
        delete_options: options,
    };
    let answer = op.target.res.def.hooks.calls().call(&ctx, request);
    if op.target.sub.is_none() {
        // A review changes nothing; what it calls is awaited no longer than its client waits.
        return op.deadline.within(answer).await;
    }
    op.deadline.check()?;
    answer.await
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

/// The options of a stream as an object, from the query, as Go converts it.
fn connect_options(kind: &GroupVersionKind, req: &ApiRequest) -> Value {
    let mut options = Map::new();
    let gv = GroupVersion::new(kind.group.as_str(), kind.version.as_str());
    options.insert("apiVersion".into(), gv.api_version().into());
    options.insert("kind".into(), kind.kind.as_str().into());
    let rest = match req.subpath.trim_start_matches('/') {
        "" => String::new(),
        rest => format!("/{rest}"),
    };
    for (name, shape) in CONNECT_FIELDS {
        let fits = match *name {
            "command" => kind.kind == "PodExecOptions",
            "ports" => kind.kind == "PodPortForwardOptions",
            "path" => kind.kind.ends_with("ProxyOptions"),
            _ => matches!(&*kind.kind, "PodExecOptions" | "PodAttachOptions"),
        };
        if !fits {
            continue;
        }
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
            Shape::Numbers => texts.iter().filter_map(|text| text.parse::<i64>().ok()).collect(),
        };
        if value == false || value == "" || value.as_array().is_some_and(Vec::is_empty) {
            continue;
        }
        options.insert((*name).into(), value);
    }
    Value::Object(options)
}

/// The decoded body, null without one.
fn body(op: &Op<'_>, kind: &GroupVersionKind, req: &ApiRequest) -> Result<Value, Status> {
    if !matches!(req.verb, Verb::Create | Verb::Update) || (req.body.is_empty() && op.target.sub.is_some()) {
        return Ok(Value::Null);
    }
    let schema = match op.target.sub {
        None => Some(op.target.version.schema.clone()),
        Some(_) => types::for_gvk(&kind.group, &kind.version, &kind.kind),
    };
    let mut body = match &schema {
        Some(schema) => {
            let want = Want { group: &kind.group, version: &kind.version, kind: &kind.kind, schema };
            op.decode_as(&want, req)?
        }
        None => {
            let syntax = decode::syntax(&req.content_type)?;
            decode::document(&req.body, syntax).map_err(Status::bad_request)?.value
        }
    };
    if op.target.sub.is_none() {
        op.default(&mut body)?;
    }
    req.audit.iter().for_each(|t| t.object(&body));
    if body.get("metadata").is_some() {
        metadata::match_namespace(op, &mut body)?;
    }
    Ok(body)
}

/// The object that the subresource belongs to, as of now.
async fn parent(op: &Op<'_>) -> Result<Value, Status> {
    let key = op.target.key(op.target.name);
    let (state, latest) = op.cached(&key).await?;
    let state = match state {
        Some(state) if latest => Some(state),
        _ => op.stored(&key).await?,
    };
    state.map(|s| s.object).ok_or_else(|| op.target.not_found(op.target.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(kind: &str, subpath: &str, query: &str) -> String {
        let query = crate::tests::pairs(query);
        let request = ApiRequest { query, subpath: subpath.into(), ..crate::tests::request() };
        connect_options(&GroupVersionKind::new("", "v1", kind), &request).to_string()
    }

    /// As Go writes them: nothing that is empty, but for the one field that always is there.
    #[test]
    fn options_of_streams() {
        let seen = [
            options("PodExecOptions", "", "command=ls&command=-l&stdout=1&stdin=false&container=c"),
            options("PodExecOptions", "", "tty=true&container="),
            options("PodAttachOptions", "", "stderr=true&command=ls"),
            options("PodProxyOptions", "a/b", "path=other"),
            options("ServiceProxyOptions", "", "path=other"),
            options("PodPortForwardOptions", "", "ports=80&ports=x"),
        ];
        expect_test::expect![[r#"
            {"apiVersion":"v1","command":["ls","-l"],"container":"c","kind":"PodExecOptions","stdout":true}
            {"apiVersion":"v1","command":null,"kind":"PodExecOptions","tty":true}
            {"apiVersion":"v1","kind":"PodAttachOptions","stderr":true}
            {"apiVersion":"v1","kind":"PodProxyOptions","path":"/a/b"}
            {"apiVersion":"v1","kind":"ServiceProxyOptions"}
            {"apiVersion":"v1","kind":"PodPortForwardOptions","ports":[80]}"#]]
        .assert_eq(&seen.join("\n"));
    }
}
