//! Requests that hooks answer: subresources of kind `Call` (`binding`, `eviction`, `token`, …) and review kinds,
//! which exist only as the answer to their creation.

use crate::{
    admission::{self, Attributes, Operation},
    decode::{self, ExpectedKind},
    encode,
    engine::Engine,
    options::{WriteOptions, parse_delete},
    pipeline::{Op, metadata},
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
};
use kaji_meta::{GroupVersionKind, Status, object};
use kaji_resource::{CallRequest, SubresourceKind, Verb};
use kaji_schema::types;
use serde_json::Value;
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
    let mut body = body(op, &kind, req)?;
    let shown =
        op.target.sub.is_some() && op.target.res.def.hooks.calls().call_reads_object(op.target.subresource());
    let parent = if shown { Some(parent(op).await?) } else { None };
    if matches!(req.verb, Verb::Create | Verb::Update) {
        let operation = if req.verb == Verb::Create { Operation::Create } else { Operation::Update };
        let name = if op.target.name.is_empty() {
            object::name(&body).to_owned()
        } else {
            op.target.name.to_owned()
        };
        let attributes = op.attributes(&name, operation, Some(&mut body), None);
        let mut attributes = Attributes { kind: &kind, ..attributes };
        admission::admit(&op.plugins(), &mut attributes).await?;
        if let Some(body) = attributes.object.as_deref_mut() {
            prepare(op, &kind, parent.as_ref(), body)?;
        }
        admission::validate(&op.plugins(), &attributes).await?;
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

/// Lets hooks complete the body, which gets the form in which Go writes it.
fn prepare(
    op: &Op<'_>,
    kind: &GroupVersionKind,
    parent: Option<&Value>,
    body: &mut Value,
) -> Result<(), Status> {
    op.target.res.def.hooks.calls().prepare_call(&op.ctx(op.target.name), parent, body)?;
    if op.target.sub.is_some()
        && body.is_object()
        && let Some(schema) = types::for_gvk(&kind.group, &kind.version, &kind.kind)
    {
        decode::canonicalize(&schema, body);
    }
    Ok(())
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
            let want = ExpectedKind { group: &kind.group, version: &kind.version, kind: &kind.kind, schema };
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
