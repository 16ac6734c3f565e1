//! The body of a write: decoded in the request's version, with the request's field validation.
//!
//! Invariant: an object that is decoded again after a lost race does not warn again.

use crate::{
    decode::{self, ExpectedKind},
    pipeline::Op,
    request::ApiRequest,
};
use kaji_meta::Status;
use serde_json::Value;

impl Op<'_> {
    /// Decodes the body in the request's version, and defaults it.
    pub fn decode(&self, req: &ApiRequest) -> Result<Value, Status> {
        let mut object = self.decode_as(&self.target.want(), req)?;
        self.default(&mut object)?;
        req.audit.iter().for_each(|t| t.object(&object));
        Ok(object)
    }

    /// Decodes a body of any kind.
    pub fn decode_as(&self, want: &ExpectedKind<'_>, req: &ApiRequest) -> Result<Value, Status> {
        let syntax = decode::syntax(&req.content_type)?;
        let registry = self.engine.registry();
        decode::object(&registry, want, syntax, &req.body, self.options.directive(), &mut |w| {
            self.output.warn(w)
        })
    }

    /// Decodes a body that was accepted before once more; it has warned already.
    pub fn decode_again(&self, req: &ApiRequest) -> Result<Value, Status> {
        let syntax = decode::syntax(&req.content_type)?;
        let registry = self.engine.registry();
        let mut object = decode::object(
            &registry,
            &self.target.want(),
            syntax,
            &req.body,
            decode::Directive::Ignore,
            &mut drop,
        )?;
        self.default(&mut object)?;
        Ok(object)
    }
}
