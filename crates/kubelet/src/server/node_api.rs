//! The kubelet's HTTPS API of a real node: which path is answered by what.
//!
//! A route is a line in [`NodeApi::route`]: the path's first segment, and the function that answers all below it. What a client needs
//! to be allowed for a path is in `auth`.
//!
//! Source: upstream's `pkg/kubelet/server/server.go`.

use super::lookup::NodePods;
use super::metrics::{cadvisor, kubelet, resource};
use super::request::{self, Handler, JSON, KubeletRequest, PLAIN, ServerBody};
use super::usage::UsageReader;
use super::{checkpoint, configz, logs, pods, streams, summary, system_logs};
use crate::node::Housekeeping;
use crate::pods::context::NodeContext;
use crate::pods::{model, resources};
use futures_util::future::BoxFuture;
use http::{Method, Response, StatusCode};
use kaji_containers::{ContainerFilter, PodSandboxFilter, RuntimeError};
use kaji_exposition::slis::Slis;
use kaji_meta::time::SystemClock;
use kaji_server::ZPages;
use std::sync::Arc;

/// Answers the requests of a real node.
pub struct NodeApi {
    /// The node.
    pub cx: Arc<NodeContext>,
    /// Its pods.
    pub pods: Arc<dyn NodePods>,
    /// What an administrator set.
    pub(super) housekeeping: Housekeeping,
    usage: UsageReader,
    requests: kubelet::Requests,
    /// Answers of `/healthz`.
    healthy: Slis,
    zpages: ZPages,
}

/// What is served, for `/statusz`.
const PATHS: [&str; 16] = [
    "/attach",
    "/checkpoint",
    "/configz",
    "/containerLogs",
    "/debug",
    "/exec",
    "/flagz",
    "/healthz",
    "/logs",
    "/metrics",
    "/pods",
    "/portForward",
    "/run",
    "/runningpods",
    "/stats",
    "/statusz",
];

impl NodeApi {
    /// Of a node with these pods, kept in order as configured.
    pub fn new(cx: Arc<NodeContext>, pods: Arc<dyn NodePods>, housekeeping: Housekeeping) -> NodeApi {
        let usage = UsageReader::new(cx.clone(), pods.clone());
        let zpages = ZPages::new("kubelet", cx.config.flag_values.clone(), Arc::new(SystemClock));
        NodeApi {
            cx,
            pods,
            housekeeping,
            usage,
            requests: kubelet::Requests::default(),
            healthy: Slis::default(),
            zpages,
        }
    }

    async fn route(&self, request: KubeletRequest) -> Response<ServerBody> {
        let root = request.segments().first().copied().unwrap_or_default().to_owned();
        let get = request.method == Method::GET;
        match root.as_str() {
            "exec" | "attach" | "portForward" | "run" => streams::handle(self, request).await,
            // Upstream's texts for endpoints that a configuration switches off.
            "debug" if request.path.starts_with("/debug/pprof/") => {
                disabled("profiling endpoint is disabled.")
            }
            "debug" if request.path == "/debug/flags/v" => disabled("flags endpoint is disabled."),
            "checkpoint" => checkpoint::handle(self, request).await,
            "healthz" | "pods" | "runningpods" | "configz" | "containerLogs" | "logs" | "stats"
            | "metrics"
                if !get =>
            {
                request::method_not_allowed()
            }
            "containerLogs" => logs::handle(self, request).await,
            "logs" => system_logs::handle(self, request).await,
            _ => self.page(&request).await,
        }
    }

    /// Pages that are made at once.
    async fn page(&self, request: &KubeletRequest) -> Response<ServerBody> {
        let metrics = |page: String| request::metrics(request, page);
        match request.path.as_str() {
            "/healthz" => {
                // All of them pass as long as the kubelet answers.
                for check in ["ping", "log", "syncloop"] {
                    self.healthy.observe(check, "healthz", true);
                }
                request::respond(StatusCode::OK, PLAIN, "ok")
            }
            "/metrics/slis" => metrics(self.healthy.page()),
            "/healthz/ping" | "/healthz/log" | "/healthz/syncloop" => {
                request::respond(StatusCode::OK, PLAIN, "ok")
            }
            "/pods" | "/pods/" => pods::bound(self),
            "/runningpods" | "/runningpods/" => pods::running(self).await,
            "/configz" => configz::page(self),
            "/statusz" => request::zpage(self.zpages.statusz(&request.headers, PATHS)),
            "/flagz" => request::zpage(self.zpages.flagz(&request.headers)),
            "/stats/summary" | "/stats/summary/" => self.summary(request).await,
            "/metrics" => self.counted().await.map_or_else(|e| failed(&e), metrics),
            "/metrics/probes" => metrics(kubelet::probe_page(&self.cx.probe_metrics)),
            "/metrics/resource" => metrics(match self.usage.read().await {
                Ok(reading) => resource::of(&reading),
                Err(error) => {
                    tracing::warn!(%error, "metrics of resources cannot be read");
                    resource::failed()
                }
            }),
            "/metrics/cadvisor" => metrics(self.cadvisor().await.unwrap_or_else(|error| {
                tracing::warn!(%error, "metrics of containers cannot be read");
                cadvisor::failed()
            })),
            _ => request::not_found(),
        }
    }

    async fn summary(&self, request: &KubeletRequest) -> Response<ServerBody> {
        let cores_and_memory = request.query.flag("only_cpu_and_memory").unwrap_or_default();
        match self.usage.read().await {
            Ok(reading) => {
                let page = summary::page(&self.cx.config.node_name, &reading, cores_and_memory);
                request::respond(StatusCode::OK, JSON, page.to_string())
            }
            Err(error) => failed(&error),
        }
    }

    async fn counted(&self) -> Result<String, RuntimeError> {
        let sandboxes = self.cx.runtime.list_pod_sandboxes(PodSandboxFilter::default()).await?;
        let containers = self.cx.runtime.list_containers(ContainerFilter::default()).await?;
        Ok(kubelet::page(&kubelet::Counted {
            pods: &self.pods.all(),
            usage: self.usage.read().await.ok().as_deref(),
            cx: &self.cx,
            sandboxes: &sandboxes,
            containers: &containers,
            requests: &self.requests,
        }))
    }

    async fn cadvisor(&self) -> Result<String, RuntimeError> {
        let reading = self.usage.read().await?;
        let containers = self.cx.runtime.list_containers(ContainerFilter::default()).await?;
        let pods = self.pods.all();
        let names = cadvisor::Names {
            images: containers.into_iter().map(|c| (c.id, c.image.image)).collect(),
            cgroups: pods.iter().map(|p| (model::uid(p).to_owned(), resources::cgroup_path(p))).collect(),
            machine: (
                std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
                self.cx.config.memory,
            ),
        };
        Ok(cadvisor::page(&reading, &names))
    }
}

impl Handler for NodeApi {
    fn handle(self: Arc<Self>, request: KubeletRequest) -> BoxFuture<'static, Response<ServerBody>> {
        self.requests.count(&request.method, &request.path);
        Box::pin(async move { self.route(request).await })
    }
}

fn disabled(text: &str) -> Response<ServerBody> {
    request::error(StatusCode::METHOD_NOT_ALLOWED, text)
}

fn failed(error: &RuntimeError) -> Response<ServerBody> {
    request::error(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {error}"))
}
