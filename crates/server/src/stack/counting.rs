//! What is counted of a request when it is answered.

use super::Stack;
use crate::{
    api,
    body::ResponseBody,
    metrics::Answered,
    route::{RequestInfo, Target},
};
use http::Response;
use http_body::Body;
use kaji_engine::removed_release;
use std::time::Duration;

/// What is known of a target that is served: the release in which its version is removed if it is deprecated, `""` if its warning
/// names none.
pub(super) type Served = Option<String>;

impl Stack {
    /// Counts an answer: with the time since the request came, and what of it was spent in queues and by webhooks.
    pub(super) fn count(
        &self,
        response: Response<ResponseBody>,
        parts: &http::request::Parts,
        info: &RequestInfo,
        served: Option<Served>,
        cut_short: bool,
        (took, outside): (Duration, Duration),
    ) -> Response<ResponseBody> {
        let (known, code) = (served.is_some(), response.status().as_u16());
        if cut_short {
            self.metrics.terminated(info, known, code);
        }
        if let Some(release) = served.flatten() {
            self.metrics.deprecated(info, &release);
        }
        let apply = api::is_apply(&parts.headers);
        let size = response.body().size_hint().exact();
        match self.metrics.finish(&Answered { info, known, apply, code, took, outside, size }) {
            Some(counted) => response.map(|body| body.measured(counted)),
            None => response,
        }
    }

    /// Whether such a target is served here. Others are counted without names, which the client may choose freely.
    pub(super) fn served(&self, target: &Target) -> Option<Served> {
        let registry = self.engine.registry();
        let resource = registry.lookup(&target.group, &target.version, &target.resource)?;
        let version = resource.def.version(&target.version)?;
        let known = target.subresource.is_empty() || version.subresource(&target.subresource).is_some();
        let release = |warning: &str| removed_release(warning).unwrap_or_default().to_owned();
        known.then(|| version.deprecation.as_deref().map(release))
    }
}
