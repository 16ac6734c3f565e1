//! `/containerLogs/{namespace}/{pod}/{container}`: a container's log, and what is added to it while a client follows.
//!
//! Invariants:
//! - A response is made a block at a time, as its client reads; reading and waiting end with the client's connection.
//! - A log that is followed ends when its container has ended and all of it was sent.
//!
//! Source: upstream's `getContainerLogs`, `GetKubeletContainerLogs` and `cri-client/pkg/logs`.

pub(crate) mod options;
mod reader;
pub(crate) mod source;
mod wait;

use super::node_api::NodeApi;
use super::request::{self, KubeletRequest, ServerBody};
use crate::pods::context::NodeContext;
use crate::pods::log_record::{Streams, Writer};
use crate::pods::model;
use bytes::Bytes;
use futures_util::{Stream, StreamExt, stream};
use http::{Response, StatusCode};
use kaji_containers::{ContainerState, RuntimeError};
use options::{BadOptions, LogOptions};
use reader::{LogFile, Reader, Step};
use std::io;
use std::path::Path;
use std::sync::Arc;
use wait::Changes;

/// The content type of logs.
pub(crate) const TEXT: &str = "text/plain";

/// Answers a request for logs.
pub(super) async fn handle(api: &NodeApi, request: KubeletRequest) -> Response<ServerBody> {
    let [_, namespace, name, container] = request.segments()[..] else { return request::not_found() };
    let missing =
        |what: &str| request::error(StatusCode::BAD_REQUEST, format!("{{\"message\": \"Missing {what}.\"}}"));
    match (namespace, name, container) {
        (_, "", _) => return missing("podID"),
        (_, _, "") => return missing("container name"),
        ("", _, _) => return missing("podNamespace"),
        _ => {}
    }
    let options = match options::parse(&request.query, api.cx.clock.now()) {
        Ok(options) => options,
        Err(BadOptions::Undecodable) => {
            return request::error(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#);
        }
        Err(BadOptions::Invalid) => {
            return request::error(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#);
        }
    };
    let Some(pod) = api.pods.by_name(namespace, name) else {
        return request::error(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist"));
    };
    if model::find_container(&pod, container).is_none() {
        let text = format!("container {container:?} not found in pod {name:?}");
        return request::error(StatusCode::NOT_FOUND, text);
    }
    let id = match source::container_id(&pod, container, options.previous) {
        Ok(id) => id,
        Err(text) => {
            let newest = source::newest_id(&*api.cx.runtime, &pod, container).await;
            match newest.filter(|_| !options.previous) {
                Some(id) => format!("{}://{id}", api.cx.config.runtime_name),
                None => return request::error(StatusCode::BAD_REQUEST, text),
            }
        }
    };
    let stderr_only = options.selection.streams == Streams::Stderr;
    match open(&api.cx, &id, options).await {
        Ok(log) => request::stream(TEXT, log.stream()),
        // Upstream has begun its response by now, unless only standard error was asked for.
        Err(text) if !stderr_only => request::respond(StatusCode::OK, TEXT, text),
        Err(text) => request::error(StatusCode::BAD_REQUEST, text),
    }
}

/// Opens the log of a container, by its id with the runtime's scheme.
async fn open(cx: &Arc<NodeContext>, id: &str, options: LogOptions) -> Result<Log, String> {
    let bare = id.split_once("://").map_or(id, |(_, bare)| bare).to_owned();
    let status = cx.runtime.container_status(&bare).await.map_err(|error| {
        tracing::debug!(%error, id, "no status of a container with logs");
        format!("unable to retrieve container logs for {id}")
    })?;
    let path = status.log_path;
    let place = LogFile::new(&cx.config.pod_log_dir, Path::new(&path)).map_err(|e| e.to_string())?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            format!(
                "failed to try resolving symlinks in path {path:?}: lstat {path}: no such file or directory"
            )
        }
        _ => format!("failed to open log file {path:?}: {error}"),
    };
    let writer = Writer::new(options.selection);
    let file = place.clone();
    let opened = blocking(move || Reader::open(file, options.tail, !options.follow, writer)).await;
    let reader = opened.map_err(failed)?;
    let at_end = match options.follow {
        true => AtEnd::Wait(Box::new(Follow { cx: cx.clone(), id: bare, place, changes: None })),
        false => AtEnd::SendRest,
    };
    Ok(Log { reader: Some(reader), at_end })
}

/// Runs what reads files on a thread for it.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

/// What following a log needs.
struct Follow {
    cx: Arc<NodeContext>,
    /// Of the container.
    id: String,
    place: LogFile,
    /// Watched since the end of the file was reached first.
    changes: Option<Changes>,
}

impl Follow {
    /// Waits until there may be more to read. Whether the container still runs: if not, nothing is added any more.
    async fn wait(&mut self) -> io::Result<bool> {
        let Some(changes) = &mut self.changes else {
            // What was written before the watch began is read first.
            self.changes = Some(Changes::watch(&self.cx, &self.id, &self.place).await);
            return Ok(runs(&self.cx, &self.id).await);
        };
        Ok(match changes.wait().await? {
            wait::Change::File => true,
            wait::Change::Container => runs(&self.cx, &self.id).await,
        })
    }
}

/// Whether a container runs.
async fn runs(cx: &NodeContext, id: &str) -> bool {
    match cx.runtime.container_status(id).await {
        Ok(status) => status.info.state == ContainerState::Running,
        Err(RuntimeError::NotFound(_)) => false,
        // A runtime that is away for a while: its containers go on.
        Err(_) => true,
    }
}

/// What is done at the end of the file.
enum AtEnd {
    /// A last line without an end is sent, and that is all.
    SendRest,
    /// More is waited for.
    Wait(Box<Follow>),
    /// The container has ended.
    Stop,
}

/// A log that is being sent.
struct Log {
    /// `None` once all was sent.
    reader: Option<Reader>,
    at_end: AtEnd,
}

impl Log {
    fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send {
        let chunks = stream::unfold(self, |mut log| async move {
            match log.next().await {
                Ok(chunk) => chunk.map(|chunk| (Ok(chunk), log)),
                Err(error) => {
                    // The response has begun: the text follows what was sent, as upstream's does.
                    log.reader = None;
                    Some((Ok(Bytes::from(error.to_string())), log))
                }
            }
        });
        // Blocks without a record for the client are no part of the response.
        chunks.filter(|chunk| std::future::ready(!matches!(chunk, Ok(bytes) if bytes.is_empty())))
    }

    /// The next piece, or `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            let Some(mut reader) = self.reader.take() else { return Ok(None) };
            let work = move || Ok((reader.step()?, reader));
            let (step, mut reader) = blocking(work).await?;
            match (step, &mut self.at_end) {
                (Step::Done, _) | (Step::AtEnd, AtEnd::Stop) => return Ok(None),
                (Step::Text(text), _) => {
                    self.reader = Some(reader);
                    return Ok(Some(text));
                }
                (Step::AtEnd, AtEnd::SendRest) => return reader.rest().map(Some),
                (Step::AtEnd, AtEnd::Wait(follow)) => {
                    let work = move || Ok((reader.follow_rotation()?, reader));
                    let (rotated, reader) = blocking(work).await?;
                    self.reader = Some(reader);
                    if !rotated && !follow.wait().await? {
                        self.at_end = AtEnd::Stop;
                    }
                }
            }
        }
    }
}
