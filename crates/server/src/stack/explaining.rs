//! Requests for an explanation, which the server answers by reads on behalf of their callers.
//!
//! Invariants: a read never begins another explanation; an explanation has returned its seat when its reads acquire theirs. Otherwise
//! as many explanations as there are seats would wait for each other.

use super::Stack;
use crate::{
    body::ResponseBody,
    explanations::EXPLANATIONS_PATH,
    flowcontrol::Seat,
    identity::Caller,
    on_behalf::{CallerReads, OnBehalf},
    plain,
    route::RequestInfo,
};
use http::{Method, Response, request::Parts};
use kaji_meta::Status;
use kaji_resource::UserInfo;
use std::sync::Arc;

impl Stack {
    /// Whether a request is one for an explanation.
    pub(super) fn explains(&self, parts: &Parts, info: &RequestInfo) -> bool {
        info.path == EXPLANATIONS_PATH
            && parts.method == Method::GET
            && self.explanations.is_some()
            && parts.extensions.get::<Caller>().is_none()
    }

    /// Explains what the query names.
    pub(super) async fn explain(
        self: &Arc<Self>,
        info: &RequestInfo,
        user: &UserInfo,
        seat: Option<Seat>,
        reads_as: OnBehalf,
    ) -> Result<Response<ResponseBody>, Status> {
        drop(seat);
        let Some(explanations) = &self.explanations else { return Err(Status::generic_not_found()) };
        let reads = CallerReads::new(self.clone(), reads_as);
        let body = explanations.answer(user, reads, &info.query).await?;
        Ok(plain::text(200, "application/json", body))
    }
}
