//! Audit: requests are recorded as the policy says, on their way through the stack.
//!
//! Invariants:
//! - Without a policy there is no [`Audit`], and requests pay nothing.
//! - In batch mode no request waits for its record; what there is no room for is counted and told of in the log.
//! - Every queue is bounded, by number and, where requests do not wait, by bytes.
//! - A request that is recorded when it comes is recorded when it ends, also when its client goes away or it breaks.

mod answer;
mod log;
mod record;
mod sink;
mod webhook;

pub use log::{FileOptions, LogFile};
pub use record::Record;
pub use webhook::Post;

use crate::{authorize, metrics, route::RequestInfo};
use http::{HeaderMap, HeaderValue, request::Parts};
use kaji_audit::{Event, Head, Level, Metrics, ObjectRef, Options, Policy, Stage};
use kaji_meta::{Clock, Random};
use kaji_resource::UserInfo;
use sink::{Phase, Sink};
use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

/// The header that carries the id of a request, from the first server on.
pub const ID_HEADER: &str = "audit-id";
/// How long events may take to be delivered when the server ends.
const DRAIN: Duration = Duration::from_secs(30);
/// How long those that could not be are given to say so.
const GIVE_UP: Duration = Duration::from_secs(5);

/// Why audit cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// Flags that make no sense.
    #[error("{}", .0.join("\n"))]
    Options(Vec<String>),
    /// The policy.
    #[error("loading audit policy file: {0}")]
    Policy(#[from] kaji_audit::PolicyError),
    /// The log.
    #[error("ensureLogFile: {path}: {source}")]
    Log {
        /// The file.
        path: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The webhook.
    #[error("initializing audit webhook: {0}")]
    Webhook(String),
}

/// The address at the other end of the connection, put into each request's extensions by the transport.
#[derive(Clone, Copy, Debug)]
pub struct Remote(pub IpAddr);

/// Records requests.
pub struct Audit {
    policy: Policy,
    sinks: Vec<Sink>,
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    phase: watch::Sender<Phase>,
    workers: Mutex<JoinSet<()>>,
}

/// What audit needs from outside.
pub struct Means {
    /// The time of events.
    pub clock: Arc<dyn Clock>,
    /// Spreads tries.
    pub random: Arc<dyn Random>,
    /// The webhook's server, if the options name one.
    pub webhook: Option<Arc<dyn Post>>,
}

impl Audit {
    /// Sets audit up and starts its workers; `None` when nothing is to be recorded, or nowhere.
    ///
    /// # Errors
    /// When something is configured and cannot be used.
    pub fn start(
        options: &Options,
        means: Means,
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
        if options.log.path.is_empty() && means.webhook.is_none() {
            tracing::warn!(
                "Neither an audit log nor an audit webhook is configured, no events will be recorded"
            );
            return Ok(None);
        }
        let metrics = Arc::new(Metrics::new(page.registry()));
        let (phase, phases) = watch::channel(Phase::Running);
        let (mut sinks, mut workers) = (vec![], JoinSet::new());
        let mut lost = sink::Lost { metrics: metrics.clone(), clock: means.clock.clone(), plugin: "log" };
        let mode = |result: Result<_, String>| result.map_err(|e| AuditError::Options(vec![e]));
        if !options.log.path.is_empty() {
            let log = log::Log::open(&options.log, lost.clone())?;
            let mode = mode(options.log.batch.mode("log"))?;
            sinks.push(Sink::start(Arc::new(log), mode, &options.log.batch, &phases, &mut workers, &lost));
        }
        if let Some(post) = means.webhook {
            lost.plugin = "webhook";
            let hook = webhook::Webhook {
                post,
                initial: options.webhook.initial_backoff,
                truncate: options.webhook.truncate.clone(),
                random: means.random,
                phases: phases.clone(),
                lost: lost.clone(),
            };
            let mode = mode(options.webhook.batch.mode("webhook"))?;
            let batch = &options.webhook.batch;
            sinks.push(Sink::start(Arc::new(hook), mode, batch, &phases, &mut workers, &lost));
        }
        let workers = Mutex::new(workers);
        Ok(Some(Arc::new(Audit { policy, sinks, metrics, clock: means.clock, phase, workers })))
    }

    /// The beginning of a record, if the policy wants one.
    pub(crate) fn begin(
        self: &Arc<Self>,
        parts: &Parts,
        info: &RequestInfo,
        user: &UserInfo,
        draft: &Draft,
    ) -> Option<Arc<Record>> {
        let verdict = self.policy.evaluate(&authorize::attributes(user, info));
        self.metrics.level(verdict.level);
        if verdict.level == Level::None {
            return None;
        }
        let received = draft.arrived.unwrap_or_else(|| self.clock.now());
        let event = Event {
            level: verdict.level,
            stage: Stage::RequestReceived,
            head: Arc::new(head(parts, info, user, draft, received)),
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

    /// Ends audit: what was recorded is delivered, or said to be lost.
    pub async fn shutdown(&self) {
        self.phase.send_replace(Phase::Draining);
        let mut workers = std::mem::take(&mut *self.workers.lock().unwrap_or_else(PoisonError::into_inner));
        let mut drained = std::pin::pin!(async move { while workers.join_next().await.is_some() {} });
        if tokio::time::timeout(DRAIN, &mut drained).await.is_err() {
            self.phase.send_replace(Phase::GivenUp);
            if tokio::time::timeout(GIVE_UP, drained).await.is_err() {
                tracing::error!("audit did not end in time; events may be lost");
            }
        }
        let untold = self.metrics.kept_back();
        if untold > 0 {
            tracing::error!("further {untold} audit events were lost");
        }
    }
}

/// What is known about a request before anything is done about it.
pub(crate) struct Draft {
    /// The client's id, or a new one.
    pub id: HeaderValue,
    /// When it came; known when requests are recorded.
    pub arrived: Option<jiff::Timestamp>,
    /// Its record, once it is known who asks.
    pub record: Option<Arc<Record>>,
}

impl Draft {
    pub fn new(audit: Option<&Arc<Audit>>, headers: &HeaderMap, random: &dyn Random) -> Draft {
        let given = headers.get(ID_HEADER).filter(|id| !id.is_empty()).cloned();
        let id = given.or_else(|| HeaderValue::from_str(&kaji_meta::random::uid(random)).ok());
        let id = id.unwrap_or(HeaderValue::from_static(""));
        Draft { id, arrived: audit.map(|a| a.clock.now()), record: None }
    }
}

fn head(
    parts: &Parts,
    info: &RequestInfo,
    user: &UserInfo,
    draft: &Draft,
    received: jiff::Timestamp,
) -> Head {
    let text = |name: &str| parts.headers.get(name).map(|v| String::from_utf8_lossy(v.as_bytes()));
    // Parts of this process have no connection.
    let remote = parts.extensions.get::<Remote>().map_or(Ipv4Addr::LOCALHOST.into(), |r| r.0);
    let (forwarded, real) = (text("x-forwarded-for"), text("x-real-ip"));
    Head {
        audit_id: String::from_utf8_lossy(draft.id.as_bytes()).into_owned(),
        request_uri: parts.uri.path_and_query().map(|p| p.as_str().to_owned()).unwrap_or_default(),
        verb: info.verb.clone(),
        user: user.clone(),
        source_ips: kaji_audit::source_ips(forwarded.as_deref(), real.as_deref(), remote),
        user_agent: kaji_audit::user_agent(&text("user-agent").unwrap_or_default()),
        received,
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
