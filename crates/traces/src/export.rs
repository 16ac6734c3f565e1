//! The export of spans: batches of what has ended, by OTLP over gRPC. Source: `BatchSpanProcessor` of OpenTelemetry's Go SDK and
//! its exporter `otlptracegrpc`, with their defaults.
//!
//! Invariants: there is one call at a time, with a deadline; a batch is tried again for a bounded time and then given up, and
//! counted with what was dropped; the end waits for the last spans, for a bounded time.

use crate::{
    config::{Config, Endpoint},
    otlp::{self, EXPORT, ExportRequest, ExportResponse},
    queue::Queue,
    sampler::Sampler,
    span::{Tracer, attribute},
};
use http::Uri;
use kaji_grpc::{CallError, Channel, ChannelOptions, Client, Code};
use kaji_meta::{random::Random, time::Clock};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    net::TcpStream,
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

/// What makes the spans.
const SCOPE: &str = "kaji";
/// The longest wait between two attempts.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Bounds of an export.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Spans that wait.
    pub queue: usize,
    /// Spans of a call.
    pub batch: usize,
    /// How long spans wait for their batch to fill.
    pub interval: Duration,
    /// How long a call may take.
    pub call: Duration,
    /// How long a batch is tried again.
    pub retries: Duration,
    /// The wait before the second attempt; further ones grow.
    pub backoff: Duration,
    /// How long the last export may take, at the end.
    pub last: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            queue: 2048,
            batch: 512,
            interval: Duration::from_secs(5),
            call: Duration::from_secs(10),
            retries: Duration::from_secs(30),
            backoff: Duration::from_secs(5),
            last: Duration::from_secs(5),
        }
    }
}

/// The process that spans are of.
#[derive(Clone, Debug)]
pub struct Service {
    /// `service.name`
    pub name: String,
    /// `service.instance.id`
    pub instance: String,
    /// The version of the program.
    pub version: String,
}

/// Makes spans and exports them, until it is shut down or dropped.
pub struct Provider {
    tracer: Tracer,
    queue: Arc<Queue>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl Provider {
    /// Begins to export, in a task of the present runtime. Nothing is connected to before there are spans.
    #[must_use]
    pub fn start(
        config: &Config,
        service: Service,
        limits: Limits,
        clock: Arc<dyn Clock>,
        random: Arc<dyn Random>,
    ) -> Provider {
        let queue = Arc::new(Queue::new(limits.queue, limits.batch));
        let sampler = Sampler::per_million(config.per_million);
        let (stop, stopped) = watch::channel(false);
        let exporter = Exporter {
            line: Line::new(&config.endpoint),
            queue: queue.clone(),
            service,
            limits,
            failing: false,
            reported: 0,
        };
        let task = tokio::spawn(exporter.run(stopped));
        let tracer = Tracer::new(sampler, clock, random, queue.clone());
        Provider { tracer, queue, stop, task: Mutex::new(Some(task)) }
    }

    /// What spans are begun by.
    #[must_use]
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// Spans for which there was no place, or that could not be exported.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    /// Exports what has ended, for a bounded time. Spans that end later are not exported.
    pub async fn shutdown(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task
            && let Err(error) = task.await
        {
            tracing::error!(%error, "the export of traces ended early");
        }
    }
}

struct Exporter {
    line: Line,
    queue: Arc<Queue>,
    service: Service,
    limits: Limits,
    /// The last export failed.
    failing: bool,
    /// Dropped spans that a log has said.
    reported: u64,
}

impl Exporter {
    async fn run(mut self, mut stopped: watch::Receiver<bool>) {
        loop {
            tokio::select! {
                biased;
                // An error says that the provider is gone.
                _ = stopped.wait_for(|stopped| *stopped) => break,
                () = self.queue.full() => {}
                () = sleep(self.limits.interval) => {}
            }
            self.export(&mut stopped).await;
            while self.queue.has_batch() && !self.failing && !*stopped.borrow() {
                self.export(&mut stopped).await;
            }
        }
        let last = self.limits.last;
        let flush = async { while self.export(&mut stopped).await {} };
        if timeout(last, flush).await.is_err() {
            tracing::warn!(?last, "the last traces were not exported in time");
        }
        self.report();
    }

    /// Exports a batch, if there is one.
    async fn export(&mut self, stopped: &mut watch::Receiver<bool>) -> bool {
        let spans = self.queue.take();
        let count = spans.len();
        if count == 0 {
            return false;
        }
        match self.deliver(self.request(spans), stopped).await {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the export of traces has recovered");
                }
                self.report();
            }
            Err(error) => {
                self.queue.lose(count);
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::warn!(%error, spans = count, "traces could not be exported");
                }
            }
        }
        true
    }

    fn request(&self, spans: Vec<otlp::Span>) -> ExportRequest {
        let Service { name, instance, version } = &self.service;
        let attributes = vec![attribute("service.name", name), attribute("service.instance.id", instance)];
        let scope = otlp::Scope { name: SCOPE.to_owned(), version: version.clone() };
        let scope_spans = vec![otlp::ScopeSpans { scope: Some(scope), spans }];
        let resource = Some(otlp::Resource { attributes });
        ExportRequest { resource_spans: vec![otlp::ResourceSpans { resource, scope_spans }] }
    }

    /// Sends a batch, again if that may help and there is time.
    async fn deliver(
        &mut self,
        request: ExportRequest,
        stopped: &mut watch::Receiver<bool>,
    ) -> Result<(), CallError> {
        let (since, mut wait) = (Instant::now(), self.limits.backoff);
        loop {
            let error = match self.line.call(request.clone(), self.limits.call).await {
                Ok(answer) => {
                    refused(&answer);
                    return Ok(());
                }
                Err(error) => error,
            };
            let ending = *stopped.borrow() || stopped.has_changed().is_err();
            if ending || !may_help(error.code) || since.elapsed() + wait > self.limits.retries {
                return Err(error);
            }
            tokio::select! {
                biased;
                // One more attempt, without a wait.
                _ = stopped.wait_for(|stopped| *stopped) => {}
                () = sleep(wait) => {}
            }
            wait = wait.saturating_mul(3).div_f64(2.0).min(LONGEST_WAIT);
        }
    }

    fn report(&mut self) {
        let dropped = self.queue.dropped();
        if dropped > self.reported {
            tracing::warn!(spans = dropped - self.reported, "spans were dropped");
            self.reported = dropped;
        }
    }
}

/// Logs what a collector did not take.
fn refused(answer: &ExportResponse) {
    if let Some(partial) = answer.partial_success.as_ref().filter(|p| p.rejected_spans > 0) {
        let (spans, why) = (partial.rejected_spans, partial.error_message.as_str());
        tracing::warn!(spans, why, "the collector has rejected spans");
    }
}

/// Whether another attempt may end otherwise. Source: OTLP's specification, "Failures" of gRPC.
fn may_help(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    )
}

/// The connection to the collector, which is made when there is something to send.
enum Line {
    Unix(Client),
    Tcp { host: String, port: u16, open: Option<Channel> },
}

impl Line {
    fn new(endpoint: &Endpoint) -> Line {
        match endpoint {
            Endpoint::Unix(path) => Line::Unix(Client::new(path)),
            Endpoint::Tcp { host, port } => Line::Tcp { host: host.clone(), port: *port, open: None },
        }
    }

    async fn call(&mut self, request: ExportRequest, time: Duration) -> Result<ExportResponse, CallError> {
        let (host, port, open) = match self {
            Line::Unix(client) => return client.unary(EXPORT, request, time).await,
            Line::Tcp { host, port, open } => (host, *port, open),
        };
        let channel = match open.take().filter(|channel| !channel.is_closed()) {
            Some(channel) => channel,
            None => timeout(time, connect(host, port))
                .await
                .unwrap_or_else(|_| Err(CallError::unconnected("connecting took too long")))?,
        };
        let answer = channel.unary(EXPORT, request, time).await;
        if answer.is_ok() {
            *open = Some(channel);
        }
        answer
    }
}

async fn connect(host: &str, port: u16) -> Result<Channel, CallError> {
    let failed = |why: &dyn std::fmt::Display| CallError::unconnected(format!("{host}:{port}: {why}"));
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let origin = format!("http://{authority}").parse::<Uri>().map_err(|e| failed(&e))?;
    let stream = TcpStream::connect((host, port)).await.map_err(|e| failed(&e))?;
    Channel::over(stream, &ChannelOptions::new(origin)).await.map_err(|e| failed(&e))
}
