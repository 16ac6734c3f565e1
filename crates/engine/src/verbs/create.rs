//! POST to a collection.

use crate::{
    engine::Engine,
    options::WriteOptions,
    pipeline::{self, Op},
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
};
use kaji_meta::Status;
use std::sync::Arc;

/// Creates the object in the body.
pub(crate) async fn create(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let op = Op::new(engine, res, req, WriteOptions::of(req, false)?)?;
    let result = match op.decode(req) {
        Ok(object) => pipeline::create::create(&op, object).await,
        Err(status) => Err(status),
    };
    op.answer(&req.accept, result)
}
