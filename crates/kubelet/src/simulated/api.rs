//! The kubelet's API of a simulated node: pages, logs of its containers, and commands that are evaluated, not run.
//!
//! Invariants: nothing is run; a command that is not understood fails with code 127 (no such program) or 126, and a line on standard
//! error that says so; a log that is followed ends with its container.

use super::facts::{self, Facts};
use super::files::ContainerFiles;
use super::history;
use super::listeners::PagesOf;
use super::pods::Pods;
use super::runtime::{PodRuntime, Run};
use super::script::{self, Effect, Machine, NotUnderstood};
use super::start;
use crate::pods::core::{Container, Pod};
use crate::pods::log_record::Writer as LogWriter;
use crate::pods::model;
use crate::server::logs::options::{self, BadOptions, LogOptions};
use crate::server::logs::{TEXT, source};
use crate::server::request::{self, Handler, KubeletRequest, ServerBody};
use crate::server::streams::{self, Names};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{Method, Response, StatusCode};
use kaji_containers::{Exit, Session};
use kaji_runtime::objects::Service;
use kaji_streaming::{Action, StreamOptions, Timeouts, Upgrade, UpgradeRejection};
use std::collections::BTreeMap;
use std::io::Cursor;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// A command that takes longer than this is not waited for.
const LONGEST: Duration = Duration::from_secs(3600);

/// Answers the requests of a simulated node.
pub(super) struct NodeApi {
    pub(super) node: String,
    pub(super) pods: Arc<Pods>,
    pub(super) pages: PagesOf,
}

impl Handler for NodeApi {
    fn handle(self: Arc<Self>, request: KubeletRequest) -> BoxFuture<'static, Response<ServerBody>> {
        Box::pin(async move { self.route(request).await })
    }
}

type Answer<T> = Result<T, Response<ServerBody>>;

fn internal(text: impl ToString) -> Response<ServerBody> {
    request::error(StatusCode::INTERNAL_SERVER_ERROR, text.to_string())
}

impl NodeApi {
    async fn route(self: Arc<Self>, request: KubeletRequest) -> Response<ServerBody> {
        if self.pods.faults.down(&self.node) {
            return request::error(StatusCode::SERVICE_UNAVAILABLE, format!("node {} is down", self.node));
        }
        let get = request.method == Method::GET;
        let root = request.segments().first().copied().unwrap_or_default().to_owned();
        match root.as_str() {
            "containerLogs" if get => self.logs(&request).await.unwrap_or_else(|refused| refused),
            "containerLogs" => request::method_not_allowed(),
            "exec" if get || request.method == Method::POST => {
                let answer = self.exec(&request).await;
                streams::upgraded(&request, answer)
            }
            "attach" => internal("a simulated container has no process to attach to"),
            "portForward" => internal("nothing listens in a simulated pod"),
            _ => match (self.pages)(&request.path) {
                None => request::not_found(),
                Some(_) if !get => request::method_not_allowed(),
                Some((content_type, text)) => request::respond(StatusCode::OK, content_type, text),
            },
        }
    }

    /// The pod of this node by name, and what is known of its containers.
    async fn find(&self, namespace: &str, name: &str) -> Answer<Option<(Pod, PodRuntime)>> {
        let found = self.pods.find(&self.node, namespace, name).await.map_err(internal)?;
        Ok(found.map(|(pod, kept)| {
            let runtime = match kept {
                Some(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).pod.runtime.clone(),
                None => PodRuntime::restore(&pod, self.pods.shared().clock.now()),
            };
            (pod, runtime)
        }))
    }

    async fn logs(self: &Arc<Self>, request: &KubeletRequest) -> Answer<Response<ServerBody>> {
        let [_, namespace, name, container] = request.segments()[..] else { return Ok(request::not_found()) };
        let now = self.pods.shared().clock.now();
        let options = options::parse(&request.query, now).map_err(|error| match error {
            BadOptions::Undecodable => {
                request::error(StatusCode::BAD_REQUEST, r#"{"message": "Unable to decode query."}"#)
            }
            BadOptions::Invalid => {
                request::error(StatusCode::UNPROCESSABLE_ENTITY, r#"{"message": "Invalid request."}"#)
            }
        })?;
        let missing = |text: String| request::error(StatusCode::NOT_FOUND, text);
        let found = self.find(namespace, name).await?;
        let (pod, runtime) = found.ok_or_else(|| missing(format!("pod {name:?} does not exist")))?;
        let spec = model::find_container(&pod, container).map(|(c, _)| c);
        let spec =
            spec.ok_or_else(|| missing(format!("container {container:?} not found in pod {name:?}")))?;
        let run = runtime.runs(container).get(usize::from(options.previous));
        let Some(run) = run else {
            let text = source::container_id(&pod, container, options.previous).err();
            let text =
                text.unwrap_or_else(|| "the log is gone with the process that simulated it".to_owned());
            return Err(request::error(StatusCode::BAD_REQUEST, text));
        };
        let lines = history::lines(&pod, &spec, run);
        let sent = history::skipped(&lines, options.tail, &options.selection);
        if options.follow {
            return Ok(self.follow(pod, spec, run.attempt, sent, options));
        }
        let mut out = vec![];
        history::write(&lines[sent..], &mut LogWriter::new(options.selection), &mut out);
        Ok(request::respond(StatusCode::OK, TEXT, out))
    }

    /// The lines after the first `sent`, until the run has ended.
    fn follow(
        self: &Arc<Self>,
        pod: Pod,
        container: Container,
        attempt: u32,
        sent: usize,
        options: LogOptions,
    ) -> Response<ServerBody> {
        struct Follower {
            api: Arc<NodeApi>,
            steps: watch::Receiver<u64>,
            pod: Pod,
            container: Container,
            attempt: u32,
            sent: usize,
            writer: LogWriter,
            over: bool,
        }
        let follower = Follower {
            api: self.clone(),
            steps: self.pods.step_counter(),
            pod,
            container,
            attempt,
            sent,
            writer: LogWriter::new(options.selection),
            over: false,
        };
        let chunks = stream::unfold(follower, |mut f| async move {
            loop {
                if f.over {
                    return None;
                }
                f.steps.borrow_and_update();
                let (namespace, name) = (model::namespace(&f.pod).to_owned(), model::name(&f.pod).to_owned());
                let found = f.api.find(&namespace, &name).await.ok().flatten();
                let found = found.filter(|(pod, _)| model::uid(pod) == model::uid(&f.pod));
                let (pod, runtime) = found?;
                f.pod = pod;
                let run =
                    runtime.runs(&f.container.name).iter().find(|run| run.attempt == f.attempt).cloned();
                let run = run?;
                let lines = history::lines(&f.pod, &f.container, &run);
                let mut out = vec![];
                let more = history::write(&lines[f.sent.min(lines.len())..], &mut f.writer, &mut out);
                f.sent = f.sent.max(lines.len());
                f.over = run.ended.is_some() || !more;
                if !out.is_empty() {
                    return Some((Ok(Bytes::from(out)), f));
                }
                if !f.over && f.steps.changed().await.is_err() {
                    return None;
                }
            }
        });
        request::stream(TEXT, chunks)
    }

    async fn exec(&self, request: &KubeletRequest) -> Result<Upgrade, UpgradeRejection> {
        let options = StreamOptions::of(&request.query)?;
        let segments = request.segments();
        let names = streams::names(segments.get(1..).unwrap_or_default(), true);
        let names = names
            .ok_or_else(|| UpgradeRejection::new(StatusCode::NOT_FOUND, "404: Page Not Found".to_owned()))?;
        let command: Vec<String> = request.query.all("command").map(str::to_owned).collect();
        let effect = self.evaluate(&names, &command).await?;
        let clock = self.pods.shared().clock.clone();
        let open = async move { Ok(session(effect, options, clock)) };
        let action = Action::Exec { command };
        kaji_streaming::remote_command(
            streams::upgrade_of(request),
            options,
            action,
            open,
            Timeouts::default(),
        )
    }

    /// What a command would do in a container that runs.
    async fn evaluate(&self, names: &Names, command: &[String]) -> Result<Effect, UpgradeRejection> {
        let failed = |text: String| UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, text);
        let node = self.pods.find(&self.node, &names.namespace, &names.pod).await;
        let found = node.map_err(|error| failed(error.to_string()))?;
        let missing = || UpgradeRejection::new(StatusCode::NOT_FOUND, "pod does not exist".to_owned());
        let (pod, kept) = found.ok_or_else(missing)?;
        let other = names.uid.as_ref().is_some_and(|uid| uid != model::uid(&pod));
        let spec = model::find_container(&pod, &names.container).filter(|_| !other).map(|(c, _)| c);
        let none = || failed(format!("container not found (\"{}\")", names.container));
        let (spec, kept) = spec.zip(kept).ok_or_else(none)?;
        let shared = self.pods.shared();
        let facts = if facts::variables_refer(&spec) {
            let client = shared.client.named(&super::agent(&self.node));
            self.pods.facts(&client, &pod, shared.clock.now()).await
        } else {
            Facts::default()
        };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        let running = |run: &Run| run.ended.is_none();
        if !kept.pod.runtime.newest(&names.container).is_some_and(running) {
            return Err(none());
        }
        let env = environment(&pod, &spec, &facts, &self.pods.services()).map_err(failed)?;
        let files = &mut kept.pod.runtime.files;
        let mut sees = ContainerFiles { pod: &pod, container: &spec, files, host: self.pods.host_files() };
        let hostname = model::spec(&pod).hostname.clone().unwrap_or_else(|| model::name(&pod).to_owned());
        let random = &*shared.random;
        let mut machine = Machine { env, hostname, files: &mut sees, random: &|| random.u64() };
        Ok(script::run(command, &mut machine).unwrap_or_else(|error| Effect {
            takes: Some(Duration::ZERO),
            code: if matches!(error, NotUnderstood::Program(_)) { 127 } else { 126 },
            stdout: String::new(),
            stderr: format!("{error}\n"),
        }))
    }
}

/// The environment of a command: the container's, and what every container has.
fn environment(
    pod: &Pod,
    container: &Container,
    facts: &Facts,
    services: &[Arc<Service>],
) -> Result<BTreeMap<String, String>, String> {
    let status = pod.status.as_ref();
    let own = status.and_then(|s| s.pod_ips.as_ref()).into_iter().flatten();
    let addresses: Vec<IpAddr> = own.filter_map(|p| p.ip.parse().ok()).collect();
    let host = status.and_then(|s| s.host_ip.as_ref()).and_then(|ip| ip.parse().ok());
    let host = host.unwrap_or(IpAddr::from([127, 0, 0, 1]));
    let mut env = start::of_environment(pod, container, (&addresses, host), facts, services)?;
    let path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    for (name, value) in [("PATH", path), ("HOSTNAME", model::name(pod)), ("HOME", "/root")] {
        env.entry(name.to_owned()).or_insert_with(|| value.to_owned());
    }
    Ok(env)
}

/// A session in which a command prints what it prints, and ends when it would.
fn session(effect: Effect, options: StreamOptions, clock: Arc<dyn kaji_meta::Clock>) -> Session {
    let StreamOptions { stdin, stdout, stderr, tty } = options;
    let (mut out, error) = (effect.stdout, effect.stderr);
    if tty {
        out += &error;
    }
    let takes = effect.takes.unwrap_or(LONGEST).min(LONGEST);
    let reader = |text: String| Box::new(Cursor::new(text.into_bytes())) as kaji_containers::Reader;
    Session {
        stdin: stdin.then(|| Box::new(tokio::io::sink()) as kaji_containers::Writer),
        stdout: stdout.then(|| reader(out)),
        stderr: (stderr && !tty).then(|| reader(error)),
        resize: None,
        exit: Box::pin(async move {
            kaji_runtime::time::sleep(&*clock, takes).await;
            Ok(Exit { code: effect.code })
        }),
    }
}
