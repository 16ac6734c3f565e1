//! Objects that cannot be read, because their values cannot be decrypted or decoded: a list names them, and a DELETE that says so removes
//! one (KEP-3926).
//!
//! Invariants:
//! - Only an object that cannot be read is deleted so, and only as it was when that was found. Preconditions, finalizers, admission and
//!   what depends on it do not count: nothing of it is known.
//! - Such a deletion needs the right to delete and one of its own, and is marked in the audit log.
//!
//! Source: `corrupt_obj_deleter.go` of k8s.io/apiserver, in `pkg/registry/generic/registry` and `pkg/storage/etcd3`.

use crate::{
    encode, engine::Engine, registry::Resource, request::ApiRequest, response::ApiResponse,
    store_error::store_status,
};
use kaji_meta::{Cause, Details, Reason, Status};
use kaji_store::{Range, Revision, StoreError};
use std::sync::Arc;

const ANNOTATION: &str = "apiserver.k8s.io/unsafe-delete-ignore-read-error";
/// Keys that are read together.
const PAGE: usize = 500;
/// Objects that a list names.
const MOST: usize = 100;

/// Deletes the object if it cannot be read.
pub(crate) async fn delete(
    engine: &Arc<Engine>,
    res: &Arc<Resource>,
    req: &ApiRequest,
    dry_run: bool,
) -> Result<ApiResponse, Status> {
    if let Some(audit) = &req.audit {
        audit.annotate(ANNOTATION, "");
    }
    if let Some(authorizer) = &req.further_authorizer {
        req.deadline.within(authorizer.authorize(req)).await?;
    }
    req.deadline.within(remove(engine, res, req, dry_run)).await?;
    let kind = res.def.gvk(&req.version).kind;
    let details = Details { name: req.name.clone(), kind, ..Details::default() };
    encode::value_response(&req.accept, 200, &Status::success_deleted(&details))
}

async fn remove(engine: &Engine, res: &Resource, req: &ApiRequest, dry_run: bool) -> Result<(), Status> {
    let key = res.key(&req.namespace, &req.name);
    let failed = |error: StoreError| store_status(&error);
    loop {
        let found = engine.store.keys(Range::key(key.as_str())).await.map_err(failed)?;
        let Some((_, revision)) = found.into_iter().next() else {
            return Err(Status::not_found(&res.group_resource, &req.name));
        };
        if why_unreadable(engine, res, &key).await.map_err(failed)?.is_none() {
            let stored = res.def.storage_key(&req.namespace, &req.name);
            let why = format!(
                "StorageError: invalid object, Code: 4, Key: {stored}, ResourceVersion: 0, AdditionalErrorMsg: unsafe deletion is not allowed because the object is decodable from storage"
            );
            return Err(Status::conflict(&res.group_resource, &req.name, why));
        }
        if dry_run {
            return Ok(());
        }
        // Otherwise it has been written meanwhile, perhaps readably.
        if let Some(revision) = engine.store.remove_unread(&key, revision).await.map_err(failed)? {
            engine.wait_applied(revision).await;
            return Ok(());
        }
    }
}

/// Why the value of a key cannot be read; `None` if it can, or if there is none.
async fn why_unreadable(
    engine: &Engine,
    res: &Resource,
    key: &str,
) -> Result<Option<StoreError>, StoreError> {
    let read = engine.store.range(Range::key(key)).await;
    match read.and_then(|found| res.cache.decode_page(found.kvs)) {
        Ok(_) => Ok(None),
        Err(error @ (StoreError::Corrupt(_) | StoreError::Encryption(_))) => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// The answer to a list of a resource of which something cannot be read: it names what that is. The given one if that cannot be found
/// out, or if all can be read again.
pub(crate) async fn named(engine: &Engine, res: &Resource, req: &ApiRequest, other: Status) -> Status {
    let found =
        req.deadline.within(async { unreadable(engine, res).await.map_err(|e| store_status(&e)) }).await;
    let Ok(mut causes) = found else { return other };
    let Some(first) = causes.first() else { return other };
    let resource = &res.group_resource;
    let mut message = format!("failed to read one or more {resource} from the storage: {}", first.message);
    if causes.len() > 1 {
        message.push_str(&format!(" (and {} more)", causes.len() - 1));
    }
    if causes.len() >= MOST {
        let message = "too many errors, the list is truncated".to_owned();
        causes.push(Cause { reason: "FieldValueTooMany".into(), message, field: String::new() });
    }
    let details = Details {
        name: "list".into(),
        group: resource.group.clone(),
        kind: resource.resource.clone(),
        causes,
        ..Details::default()
    };
    Status { details: Some(Box::new(details)), ..Status::new(500, Reason::StorageReadError, message) }
}

/// What cannot be read of a resource, up to a number.
async fn unreadable(engine: &Engine, res: &Resource) -> Result<Vec<Cause>, StoreError> {
    let (mut causes, mut range) = (vec![], Range::prefix(&res.prefix).limit(PAGE).uncounted());
    loop {
        let keys = engine.store.keys(range.clone()).await?;
        let page = engine.store.range(range.clone()).await;
        if page.and_then(|page| res.cache.decode_page(page.kvs)).is_err() {
            for (key, revision) in &keys {
                if let Some(error) = why_unreadable(engine, res, key).await? {
                    causes.push(cause(key, *revision, &error));
                }
                if causes.len() == MOST {
                    return Ok(causes);
                }
            }
        }
        match keys.last() {
            Some((last, _)) if keys.len() == PAGE => range.start = format!("{last}\0"),
            _ => return Ok(causes),
        }
    }
}

fn cause(key: &str, revision: Revision, error: &StoreError) -> Cause {
    let text = match error {
        StoreError::Corrupt(text) | StoreError::Encryption(text) => text.clone(),
        other => other.to_string(),
    };
    let what = match text.contains("cannot be decoded") {
        true => format!("object not decodable revision={revision}"),
        false => "data from the storage is not transformable revision=0".to_owned(),
    };
    let message = format!(
        "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {what}: {text}"
    );
    Cause { reason: "UnexpectedServerResponse".into(), message, field: key.to_owned() }
}
