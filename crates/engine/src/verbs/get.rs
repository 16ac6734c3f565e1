//! GET of one object.
//!
//! Invariant: in the usual case (the cache is up to date, the stored version is requested) nothing is awaited, locked,
//! decoded or copied.

use crate::{
    conversion,
    encode::{self, Include, View},
    engine::Engine,
    list_options::{Rv, parse_rv, unreadable_rv},
    registry::Resource,
    request::{ApiRequest, Encoding, Form},
    response::{ApiResponse, Body},
    trace,
};
use kaji_meta::Status;
use std::sync::Arc;

/// Serves a GET: without `resourceVersion` the latest, else one not older.
pub(crate) async fn get(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let include =
        if req.accept.form == Form::Table { Include::from_request(req)? } else { Include::default() };
    let span = trace::cached("cacher.Get", &res.group_resource);
    match parse_rv(req.query.text("resourceVersion")) {
        Ok(Rv::Unset) => engine.wait_consistent().await?,
        Ok(Rv::Any) => {}
        Ok(Rv::At(revision)) => engine.wait_not_older(revision).await?,
        Err(e) => return Err(unreadable_rv(&e)),
    }
    let namespace = if res.def.namespaced() { &*req.namespace } else { "" };
    let entry = res.cache.get(&res.key(namespace, &req.name));
    drop(span);
    let entry = entry.ok_or_else(|| Status::not_found(&res.group_resource, &req.name))?;
    let entry = conversion::read_one(res, &req.version, entry).await?;
    let _span = trace::serialization();
    let view = View::new(engine, &**res, &req.version, &req.accept, include)?;
    let bytes = view.entry(&entry)?;
    if req.accept.encoding == Encoding::Json && !req.accept.pretty {
        return Ok(ApiResponse {
            code: 200,
            content_type: "application/json",
            warnings: vec![],
            annotations: vec![],
            body: encode::ended(Body::Full(bytes)),
        });
    }
    encode::finish(&req.accept, 200, Body::Full(bytes))
}
