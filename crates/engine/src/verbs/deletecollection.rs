//! DELETE of a collection: what a list with the same selectors shows is deleted, object by object.
//!
//! Not atomic, as upstream's is not: an error may leave some objects deleted. The answer is the list.

use crate::{
    encode,
    engine::Engine,
    options::{UNREAD, WriteOptions, delete_options},
    pipeline::{Op, remove},
    registry::Resource,
    request::{Accept, ApiRequest, Form},
    response::{ApiResponse, Body},
    verbs::list,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use kaji_meta::{GroupKind, Path, Query, Status, field};
use kaji_resource::{BoxFuture, DeleteOptions};
use serde::Deserialize;
use std::sync::Arc;

/// How many objects are being deleted at the same time.
const WORKERS: usize = 32;

/// The names in a list; the rest is skipped.
#[derive(Deserialize)]
struct Names {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    metadata: Named,
}

#[derive(Deserialize)]
struct Named {
    name: String,
}

/// Deletes what the request's selectors (and limit) select.
pub(crate) async fn deletecollection(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
) -> Result<ApiResponse, Status> {
    let options = DeleteOptions { of_collection: true, ..delete_options(req)? };
    if options.ignore_store_read_error {
        let text = "is not allowed with DELETECOLLECTION, try again after removing the option";
        let error = field::Error::invalid(&Path::new(UNREAD), true, text);
        return Err(Status::invalid(&GroupKind::new("meta.k8s.io", "DeleteOptions"), "", &[error]));
    }
    let query = exactly(&req.query);
    let plain = ApiRequest { accept: Accept::default(), query, ..req.clone() };
    let listed = req.deadline.within(list::list(engine, res, &plain)).await?;
    let body = listed.body.into_bytes().unwrap_or_default();
    let names: Names = serde_json::from_slice(&body).map_err(|e| Status::internal(e.to_string()))?;
    let response = match req.accept.form {
        Form::Object => encode::finish(&req.accept, 200, Body::Full(body))?,
        _ => {
            let shown = ApiRequest { query: plain.query, ..req.clone() };
            req.deadline.within(list::list(engine, res, &shown)).await?
        }
    };
    let write = WriteOptions { dry_run: options.dry_run, ..WriteOptions::default() };
    let op = Op::new(engine, res, req, write)?;
    let deletions: Vec<BoxFuture<'_, Result<(), Status>>> = names
        .items
        .iter()
        .map(|item| Box::pin(delete(&op, &item.metadata.name, &options)) as BoxFuture<'_, _>)
        .collect();
    let result = stream::iter(deletions).buffer_unordered(WORKERS).try_collect::<()>().await;
    op.warned(result.map(|()| response))
}

/// Upstream lists what it deletes in pages, so that a resource version means exactly that one where it is not said what
/// it means.
fn exactly(query: &Query) -> Query {
    let unset = |key: &str| query.text(key).is_empty();
    let given = !matches!(query.text("resourceVersion"), "" | "0");
    match given && unset("resourceVersionMatch") && unset("continue") {
        true => query.with("resourceVersionMatch", "Exact"),
        false => query.clone(),
    }
}

/// One deletion. If another request was faster, the work is done.
async fn delete(op: &Op<'_>, name: &str, options: &DeleteOptions) -> Result<(), Status> {
    match remove::remove(op, name, options).await {
        Err(status) if !status.is_not_found() => Err(status),
        _ => Ok(()),
    }
}
