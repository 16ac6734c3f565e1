//! PUT of an object, or of one of its subresources that is the whole object.

use crate::{
    engine::Engine,
    options::WriteOptions,
    pipeline::{
        Op, Written, manage, metadata,
        update::{self, Plan, UpdatedObject},
    },
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
};
use kaji_meta::{Status, object};
use serde_json::Value;
use std::sync::Arc;

/// Replaces the object by the one in the body.
pub(crate) async fn update(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let op = Op::new(engine, res, req, WriteOptions::of(req, false)?)?;
    let result = run(&op, req).await;
    op.answer(&req.accept, result)
}

async fn run(op: &Op<'_>, req: &ApiRequest) -> Result<Written, Status> {
    let object = checked(op, op.decode(req)?)?;
    let uid = object::uid(&object).to_owned();
    let plan = Plan {
        create: (op.target.res.def.allow_create_on_update && op.target.sub.is_none()).then_some(req),
        uid: Some(uid.as_str()).filter(|u| !u.is_empty()),
        ..Plan::default()
    };
    // The decoded object is used up by the first attempt; hardly ever is there another, which decodes anew.
    let mut first = Some(object);
    let mut make = |state: Option<&crate::pipeline::State>| {
        let mut new = match first.take() {
            Some(object) => object,
            None => checked(op, op.decode_again(req)?)?,
        };
        if state.is_none() {
            metadata::wipe(&mut new);
        }
        manage::record(op, state.map(|s| &s.object), &mut new)?;
        op.conversion.to_hub(&mut new)?;
        Ok(UpdatedObject::Object(new))
    };
    update::update(op, op.target.name, &plan, &mut make).await
}

fn checked(op: &Op<'_>, mut object: Value) -> Result<Value, Status> {
    metadata::match_namespace(op, &mut object)?;
    metadata::match_name(&object, op.target.name)?;
    metadata::dedup_owners(op, &mut object, false);
    Ok(object)
}
