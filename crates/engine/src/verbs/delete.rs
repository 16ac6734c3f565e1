//! DELETE of an object.

use crate::{
    encode,
    engine::Engine,
    options::{WriteOptions, delete_options},
    pipeline::{Op, remove},
    registry::Resource,
    request::ApiRequest,
    response::ApiResponse,
    verbs::unreadable,
};
use kaji_meta::Status;
use std::sync::Arc;

/// Deletes the object, or begins to.
pub(crate) async fn delete(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let options = delete_options(req)?;
    if options.ignore_store_read_error {
        return unreadable::delete(engine, res, req, options.dry_run).await;
    }
    res.readable()?;
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let op = Op::new(engine, res, req, write)?;
    let result = remove::remove(&op, op.target.name, &options).await.and_then(|removed| {
        // Upstream answers 202 only to requests for cascading in the old way.
        let code = if !removed.gone && options.orphan_dependents == Some(false) { 202 } else { 200 };
        if removed.show {
            encode::object_response(engine, res, &op.target.version.name, &req.accept, code, removed.object)
        } else {
            encode::value_response(&req.accept, code, &removed.status(&res.group_resource))
        }
    });
    op.warned(result)
}
