//! A collector of traces in this process.

use kaji_grpc::{Router, Status, bind, serve};
use kaji_meta::text::hex;
use kaji_traces::{
    Endpoint,
    otlp::{Any, AnyValue, EXPORT, ExportRequest, ExportResponse, KeyValue, Span},
};
use std::{
    fmt::Write as _,
    future::pending,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, UnixStream},
    task::JoinHandle,
};

/// It listens on a socket of its own until it is dropped.
pub struct Collector {
    taken: Arc<Mutex<Vec<ExportRequest>>>,
    connections: Arc<AtomicUsize>,
    path: String,
    task: JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Collector {
    /// One that takes what `decide` does not refuse.
    pub fn start(
        decide: impl Fn(&ExportRequest) -> Result<(), Status> + Clone + Send + Sync + 'static,
    ) -> Collector {
        let taken: Arc<Mutex<Vec<ExportRequest>>> = Arc::default();
        let seen = taken.clone();
        let router = Router::default().unary(EXPORT, move |request: ExportRequest| {
            let decided = decide(&request);
            if decided.is_ok() {
                seen.lock().unwrap().push(request);
            }
            std::future::ready(decided.map(|()| ExportResponse::default()))
        });
        Collector::serve(router, taken)
    }

    /// One that never answers.
    pub fn hanging() -> Collector {
        let hang = |_: ExportRequest| async {
            pending::<()>().await;
            Ok(ExportResponse::default())
        };
        Collector::serve(Router::default().unary(EXPORT, hang), Arc::default())
    }

    fn serve(router: Router, taken: Arc<Mutex<Vec<ExportRequest>>>) -> Collector {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("otel.sock");
        let task = tokio::spawn(serve(bind(&path).unwrap(), router));
        let path = path.to_str().unwrap().to_owned();
        Collector { taken, connections: Arc::default(), path, task, _dir: dir }
    }

    /// Its socket.
    pub fn endpoint(&self) -> Endpoint {
        Endpoint::Unix(self.path.clone())
    }

    /// A port that leads to its socket.
    pub async fn over_tcp(&self) -> Endpoint {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (path, connections) = (self.path.clone(), self.connections.clone());
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let mut socket = UnixStream::connect(&path).await.unwrap();
                tokio::spawn(async move { copy_bidirectional(&mut stream, &mut socket).await });
            }
        });
        Endpoint::Tcp { host: "localhost".into(), port }
    }

    /// Connections by TCP.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    fn spans(&self) -> Vec<Span> {
        let taken = self.taken.lock().unwrap();
        let scopes = taken.iter().flat_map(|r| &r.resource_spans).flat_map(|r| &r.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    /// The names of the spans that it has.
    pub fn names(&self) -> Vec<String> {
        self.spans().into_iter().map(|span| span.name).collect()
    }

    /// All that it has.
    pub fn shown(&self) -> String {
        let mut out = String::new();
        for resource in self.taken.lock().unwrap().iter().flat_map(|request| &request.resource_spans) {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            let _ = writeln!(out, "{}", shown(attributes));
            for scope in &resource.scope_spans {
                let _ = writeln!(out, "by {:?}", scope.scope.as_ref().unwrap().name);
                scope.spans.iter().for_each(|span| out.push_str(&shown_span(span)));
            }
        }
        out
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn shown_span(span: &Span) -> String {
    let (begin, end) = (span.start_time_unix_nano / 1_000_000_000, span.end_time_unix_nano / 1_000_000_000);
    let mut out = format!(
        "{} ({}) {}-{} of {} {:?} flags {:x}, {begin}s to {end}s\n",
        span.name,
        span.kind,
        hex(&span.trace_id),
        hex(&span.span_id),
        hex(&span.parent_span_id),
        span.trace_state,
        span.flags
    );
    if !span.attributes.is_empty() {
        let _ = writeln!(out, "  {}", shown(&span.attributes));
    }
    for event in &span.events {
        let at = event.time_unix_nano / 1_000_000_000;
        let _ = writeln!(out, "  at {at}s {} {}", event.name, shown(&event.attributes));
    }
    for link in &span.links {
        let _ = writeln!(
            out,
            "  linked to {}-{} flags {:x}",
            hex(&link.trace_id),
            hex(&link.span_id),
            link.flags
        );
    }
    if let Some(status) = &span.status {
        let _ = writeln!(out, "  status {} {:?}", status.code, status.message);
    }
    out
}

fn shown(attributes: &[KeyValue]) -> String {
    let pairs = attributes.iter().map(|KeyValue { key, value }| match value {
        Some(AnyValue { value: Some(Any::Text(text)) }) if text.len() > 100 => {
            format!("{key}={} bytes to {:?}", text.len(), &text[text.len() - 12..])
        }
        Some(AnyValue { value: Some(Any::Text(text)) }) => format!("{key}={text}"),
        Some(AnyValue { value: Some(Any::Int(number)) }) => format!("{key}={number}"),
        Some(AnyValue { value: Some(Any::Bool(truth)) }) => format!("{key}={truth}"),
        _ => format!("{key}=?"),
    });
    pairs.collect::<Vec<_>>().join(" ")
}
