//! What a request on its path has with it.

use crate::{
    audit::{Record, RequestAudit},
    body::ResponseBody,
    flowcontrol::{self, Seat},
    on_behalf::OnBehalf,
    receive::Received,
    request_trace::RequestTrace,
    route::{RequestInfo, Target},
};
use http::{HeaderValue, Response};
use kaji_engine::{Deadline, WebhookTime};
use kaji_meta::Status;
use kaji_resource::UserInfo;
use kaji_traces::Parent;
use std::sync::Arc;

/// A request that may be served.
pub(super) struct Authorized {
    pub user: UserInfo,
    pub record: Option<Arc<Record>>,
    pub seat: Option<Seat>,
    /// Of a request for an explanation: the identity that its reads have.
    pub reads_as: Option<Box<OnBehalf>>,
}

/// Why a request is not served.
pub(super) enum Rejection {
    Response(Response<ResponseBody>),
    Status(Status),
}

impl From<Status> for Rejection {
    fn from(status: Status) -> Self {
        Rejection::Status(status)
    }
}

/// A request for the engine, with its body.
pub(super) struct ReceivedRequest<'a> {
    pub info: &'a RequestInfo,
    pub target: &'a Target,
    pub received: Received,
    pub deadline: Deadline,
    pub audit_id: HeaderValue,
    pub webhooks: Arc<WebhookTime>,
    pub trace: Option<Parent>,
}

/// The state of a request on its path.
pub(super) struct RequestContext {
    pub deadline: Deadline,
    pub classification: flowcontrol::Classification,
    pub warnings: Vec<String>,
    pub audit: RequestAudit,
    pub webhooks: Arc<WebhookTime>,
    /// Its spans, if requests are traced.
    pub trace: Option<Box<RequestTrace>>,
}

impl RequestContext {
    pub fn new(audit: RequestAudit) -> RequestContext {
        let (classification, webhooks) = (flowcontrol::Classification::default(), Arc::default());
        let deadline = Deadline::default();
        RequestContext { deadline, classification, warnings: vec![], audit, webhooks, trace: None }
    }

    /// Begins the span of a step.
    pub fn enter(&mut self, step: &str) {
        if let Some(trace) = &mut self.trace {
            trace.enter(step);
        }
    }

    /// What children of the present step are begun by.
    pub fn parent(&self) -> Option<Parent> {
        self.trace.as_ref().and_then(|trace| trace.parent())
    }
}
