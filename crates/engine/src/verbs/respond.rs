//! The answer to a write, with its warnings and audit annotations.
//!
//! Invariant: refusals carry them, too.

use crate::{
    encode,
    pipeline::{Op, Written},
    request::{Accept, Encoding, Form},
    response::{ApiResponse, Body},
    storage, trace,
};
use kaji_meta::Status;

impl Op<'_> {
    /// The answer to a write: the object or the refusal, either with the warnings.
    pub fn answer(&self, accept: &Accept, result: Result<Written, Status>) -> Result<ApiResponse, Status> {
        self.warned(result.and_then(|written| self.respond(accept, written)))
    }

    /// Adds the warnings and annotations to an answer, also to a refusal.
    pub fn warned(&self, result: Result<ApiResponse, Status>) -> Result<ApiResponse, Status> {
        let (warnings, annotations) = (self.take_warnings(), self.output.annotations.take());
        if warnings.is_empty() && annotations.is_empty() {
            return result;
        }
        let mut response = result.unwrap_or_else(ApiResponse::from);
        response.warnings.extend(warnings);
        response.annotations.extend(annotations);
        Ok(response)
    }

    fn respond(&self, accept: &Accept, written: Written) -> Result<ApiResponse, Status> {
        let _span = trace::serialization();
        let plain = accept.form == Form::Object && accept.encoding == Encoding::Json && !accept.pretty;
        match &written.bytes {
            Some(bytes) if plain && self.conversion.is_storage() => Ok(ApiResponse {
                code: written.code,
                content_type: "application/json",
                warnings: vec![],
                annotations: vec![],
                body: encode::ended(Body::Full(match written.revision {
                    0 => bytes.clone(),
                    revision => storage::with_revision(bytes, revision),
                })),
            }),
            _ => {
                let (code, object) = (written.code, written.into_object());
                encode::object_response(
                    self.engine,
                    self.target.res,
                    &self.target.version.name,
                    accept,
                    code,
                    object,
                )
            }
        }
    }

    /// The warnings so far.
    pub fn take_warnings(&self) -> Vec<String> {
        self.output.warnings.lock().map(|mut w| std::mem::take(&mut *w)).unwrap_or_default()
    }
}
