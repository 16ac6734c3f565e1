//! What goes into the memory of refused writes: the request, and the answer if it refuses.
//!
//! Invariant: nothing is decoded unless a write is refused.

use crate::{audit::response_status, route::RequestInfo};
use bytes::Bytes;
use http::{HeaderMap, header};
use kaji_engine::ApiResponse;
use kaji_meta::{Status, object};
use kaji_refusals::{Refusal, Refusals};
use kaji_resource::UserInfo;
use serde_json::Value;
use std::sync::Arc;

/// A longer body is not decoded for the name and owner of its object.
const LONGEST_BODY: usize = 256 << 10;

/// A write that may be refused.
pub(crate) struct PendingWrite {
    user: String,
    body: Bytes,
}

fn is_write(info: &RequestInfo) -> bool {
    matches!(&*info.verb, "create" | "update" | "patch" | "delete" | "deletecollection")
}

/// What is needed of a write after the engine has consumed it; `None` for what is no write.
pub(crate) fn pending(info: &RequestInfo, user: &UserInfo, body: &Bytes) -> Option<PendingWrite> {
    is_write(info).then(|| PendingWrite { user: user.name.clone(), body: body.clone() })
}

impl PendingWrite {
    /// Remembers the write if this answer refuses it.
    pub fn answered(
        self,
        refusals: &Refusals,
        info: &RequestInfo,
        headers: &HeaderMap,
        answer: &ApiResponse,
    ) {
        if answer.code < 400 {
            return;
        }
        let Some(status) = response_status(answer) else { return };
        if !Refusal::is_kept(answer.code, &status.reason, &status.message) {
            return;
        }
        let mut refusal = of_request(info, headers, &self.user);
        (refusal.code, refusal.reason, refusal.message) = (answer.code, status.reason, status.message);
        if refusal.name.is_empty() {
            object::str_at(&status.details, &["name"]).clone_into(&mut refusal.name);
        }
        describe(&mut refusal, &self.body);
        refusals.remember(refusal);
    }
}

/// Remembers a write that was not authorized.
pub(crate) fn unauthorized(
    refusals: &Arc<Refusals>,
    info: &RequestInfo,
    headers: &HeaderMap,
    user: &UserInfo,
    status: &Status,
) {
    if !is_write(info) || info.resource.is_none() {
        return;
    }
    let mut refusal = of_request(info, headers, &user.name);
    refusal.code = status.code;
    refusal.reason = status.reason.as_str().to_owned();
    refusal.message.clone_from(&status.message);
    refusals.remember(refusal);
}

fn of_request(info: &RequestInfo, headers: &HeaderMap, user: &str) -> Refusal {
    let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
    let mut refusal = Refusal {
        user: user.to_owned(),
        user_agent: agent.unwrap_or_default().to_owned(),
        field_manager: info.query.text("fieldManager").to_owned(),
        verb: info.verb.to_string(),
        name: info.name().to_owned(),
        ..Refusal::default()
    };
    if let Some(target) = &info.resource {
        refusal.group.clone_from(&target.group);
        refusal.resource.clone_from(&target.resource);
        refusal.subresource.clone_from(&target.subresource);
        refusal.namespace.clone_from(&target.namespace);
    }
    refusal
}

/// Name and owner of the object in the body, if it is JSON.
fn describe(refusal: &mut Refusal, body: &Bytes) {
    if body.len() > LONGEST_BODY {
        return;
    }
    let Ok(sent) = serde_json::from_slice::<Value>(body) else { return };
    if refusal.name.is_empty() {
        let name = match object::name(&sent) {
            "" => object::generate_name(&sent),
            name => name,
        };
        name.clone_into(&mut refusal.name);
    }
    if let Some(owner) = object::controller_of(&sent) {
        refusal.owner = format!("{} {}", object::str_at(owner, &["kind"]), object::str_at(owner, &["name"]));
    }
}
