//! The audit filter: requests are recorded as the policy says, on their way through the stack. Policy, events and backends
//! are in `kaji_audit`; here is what needs the server's requests and the engine's responses.
//!
//! Invariants:
//! - Without a policy there is no [`Audit`], and requests pay nothing.
//! - A request that is recorded when it arrives is recorded when it ends, also when its client disconnects or its handler
//!   panics.

mod record;
mod response;

pub(crate) use response::status as response_status;

pub use record::Record;

use crate::{authorize, metrics, route::RequestInfo};
use http::{HeaderMap, HeaderValue, request::Parts};
use kaji_audit::{
    AuditDependencies, AuditError, Backends, EncodedHead, Event, Head, Level, Metrics, ObjectRef, Options,
    Policy, Stage,
};
use kaji_meta::{Clock, Random};
use kaji_resource::UserInfo;
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
};

/// The header that carries the id of a request, from the first server on.
pub const ID_HEADER: &str = "audit-id";

/// The address of the connection's peer, which the listener puts into each request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct RemoteAddress(pub IpAddr);

/// Records requests.
pub struct Audit {
    policy: Policy,
    backends: Backends,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
}

impl Audit {
    /// Sets audit up and starts its backends; `None` without a policy, or without a backend.
    ///
    /// # Errors
    /// Something is configured and cannot be used.
    pub fn start(
        options: &Options,
        dependencies: AuditDependencies,
        page: &mut metrics::Metrics,
    ) -> Result<Option<Arc<Audit>>, AuditError> {
        let errors = options.validate();
        if !errors.is_empty() {
            return Err(AuditError::Options(errors));
        }
        let Some(file) = &options.policy_file else {
            if !options.log.path.is_empty() || options.webhook.config_file.is_some() {
                tracing::warn!("No audit policy file provided, no events will be recorded");
            }
            return Ok(None);
        };
        let (policy, strict) = Policy::read(file)?;
        if let Some(strict) = strict {
            tracing::warn!("Audit policy contains errors, falling back to lenient decoding: {strict}");
        }
        if options.log.path.is_empty() && dependencies.webhook.is_none() {
            tracing::warn!(
                "Neither an audit log nor an audit webhook is configured, no events will be recorded"
            );
            return Ok(None);
        }
        let metrics = Arc::new(Metrics::new(page.registry()));
        let clock = dependencies.clock.clone();
        let backends = Backends::start(options, dependencies, metrics.clone())?;
        Ok(Some(Arc::new(Audit { policy, backends, metrics, clock })))
    }

    /// Begins the record of a request, if the policy selects it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        parts: &Parts,
        info: &RequestInfo,
        user: &UserInfo,
        context: &RequestAudit,
    ) -> Option<Arc<Record>> {
        let verdict = self.policy.evaluate(&authorize::attributes(user, info));
        self.metrics.level(verdict.level);
        if verdict.level == Level::None {
            return None;
        }
        let received = context.arrived.unwrap_or_else(|| self.clock.now());
        let event = Event {
            level: verdict.level,
            stage: Stage::RequestReceived,
            head: Arc::new(head(parts, info, user, context, received)),
            impersonated: None,
            object: object(info).map(Arc::new),
            status: None,
            request_object: None,
            response_object: None,
            at: received,
            annotations: Arc::default(),
        };
        Some(Arc::new(Record::new(self.clone(), verdict, event, info.long_running())))
    }

    /// Delivers what was recorded, or reports it as lost, and ends the backends.
    pub async fn shutdown(&self) {
        self.backends.shutdown().await;
    }
}

/// The audit state of a request, from its arrival on.
pub(crate) struct RequestAudit {
    /// The client's id, or a new one.
    pub id: HeaderValue,
    /// When it arrived; set when requests are recorded.
    pub arrived: Option<jiff::Timestamp>,
    /// Its record, once it is authenticated.
    pub record: Option<Arc<Record>>,
}

impl RequestAudit {
    pub fn new(audit: Option<&Arc<Audit>>, headers: &HeaderMap, random: &dyn Random) -> RequestAudit {
        let given = headers.get(ID_HEADER).filter(|id| !id.is_empty()).cloned();
        let id = given.or_else(|| HeaderValue::from_str(&kaji_meta::random::uid(random)).ok());
        let id = id.unwrap_or(HeaderValue::from_static(""));
        RequestAudit { id, arrived: audit.map(|a| a.clock.now()), record: None }
    }
}

fn head(
    parts: &Parts,
    info: &RequestInfo,
    user: &UserInfo,
    context: &RequestAudit,
    received: jiff::Timestamp,
) -> Head {
    let text = |name: &str| parts.headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
    // Requests from within the process have no connection.
    let remote = parts.extensions.get::<RemoteAddress>().map_or(Ipv4Addr::LOCALHOST.into(), |r| r.0);
    let (forwarded, real) = (text("x-forwarded-for"), text("x-real-ip"));
    Head {
        audit_id: String::from_utf8_lossy(context.id.as_bytes()).into_owned(),
        request_uri: parts.uri.path_and_query().map(|p| p.as_str().to_owned()).unwrap_or_default(),
        verb: info.verb.clone(),
        user: user.clone(),
        source_ips: kaji_audit::source_ips(forwarded.as_deref(), real.as_deref(), remote),
        user_agent: kaji_audit::user_agent(&text("user-agent").unwrap_or_default()),
        received,
        encoded: EncodedHead::default(),
    }
}

fn object(info: &RequestInfo) -> Option<ObjectRef> {
    let target = info.resource.as_ref()?;
    Some(ObjectRef {
        resource: target.resource.clone(),
        namespace: target.namespace.clone(),
        name: info.name().to_owned(),
        api_group: target.group.clone(),
        api_version: target.version.clone(),
        subresource: target.subresource.clone(),
        ..ObjectRef::default()
    })
}
