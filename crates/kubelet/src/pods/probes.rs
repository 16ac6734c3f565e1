//! Probes of containers: one task a probe and container. Upstream's `prober/worker.go`.
//!
//! Invariants: a result changes only after as many equal outcomes in a row as the probe's threshold says; liveness and
//! readiness are not probed before the startup probe has succeeded; a probe ends with its container.

mod grpc;
pub mod http;

use super::compute::ProbeResults;
use super::context::NodeContext;
use super::core::{Container, ContainerPort, EnvVar, Pod, PodStatus, Probe};
use super::model::{self, ContainerKind};
use super::observed::Observed;
use super::{expansion, hooks};
use crate::metrics::families;
use kaji_containers::{ContainerState, RuntimeError};
use kaji_runtime::EventRecord;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What a probe decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProbeKind {
    /// Whether the container has started.
    Startup,
    /// Whether the container may be sent requests.
    Readiness,
    /// Whether the container is alive.
    Liveness,
}

impl ProbeKind {
    fn name(self) -> &'static str {
        match self {
            ProbeKind::Startup => "Startup",
            ProbeKind::Readiness => "Readiness",
            ProbeKind::Liveness => "Liveness",
        }
    }

    fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            ProbeKind::Startup => container.startup_probe.as_ref(),
            ProbeKind::Readiness => container.readiness_probe.as_ref(),
            ProbeKind::Liveness => container.liveness_probe.as_ref(),
        }
    }

    fn results(self, results: &mut ProbeResults) -> &mut std::collections::BTreeMap<String, bool> {
        match self {
            ProbeKind::Startup => &mut results.startup,
            ProbeKind::Readiness => &mut results.readiness,
            ProbeKind::Liveness => &mut results.liveness,
        }
    }
}

/// The probes of one pod.
pub struct PodProbes {
    results: Arc<Mutex<ProbeResults>>,
    tasks: HashMap<(String, ProbeKind), JoinHandle<()>>,
    wake: Arc<Notify>,
}

impl Drop for PodProbes {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

impl PodProbes {
    /// None yet; `wake` is notified when a result changes. Until a probe has run, its result is what the pod's status showed
    /// before the kubelet was started.
    #[must_use]
    pub fn new(wake: Arc<Notify>, shown: &PodStatus) -> PodProbes {
        PodProbes { results: Arc::new(Mutex::new(former_results(shown))), tasks: HashMap::new(), wake }
    }

    /// The results of now.
    #[must_use]
    pub fn results(&self) -> ProbeResults {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts the probes of containers that run, and ends those of containers that do not. While a pod terminates only
    /// readiness goes on.
    pub fn follow(&mut self, cx: &Arc<NodeContext>, pod: &Arc<Pod>, observed: &Observed, terminating: bool) {
        let running: Vec<_> =
            observed.containers.iter().filter(|c| c.state() == ContainerState::Running).collect();
        self.tasks.retain(|(id, kind), task| {
            let keep =
                running.iter().any(|c| c.id() == id) && !(terminating && *kind != ProbeKind::Readiness);
            if !keep {
                task.abort();
            }
            keep
        });
        {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            for kind in [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness] {
                kind.results(&mut results).retain(|id, _| running.iter().any(|c| c.id() == id));
            }
        }
        if terminating {
            return;
        }
        for found in running {
            let Some((container, list)) = model::find_container(pod, &found.name) else { continue };
            let probed = list == ContainerKind::Regular
                || list == ContainerKind::Init && model::is_sidecar(&container);
            if !probed {
                continue;
            }
            for kind in [ProbeKind::Startup, ProbeKind::Readiness, ProbeKind::Liveness] {
                let Some(probe) = kind.of(&container) else { continue };
                let key = (found.id().to_owned(), kind);
                if self.tasks.contains_key(&key) {
                    continue;
                }
                let worker = ProbeWorker {
                    cx: cx.clone(),
                    pod: pod.clone(),
                    container: container.clone(),
                    probe: probe.clone(),
                    kind,
                    id: found.id().to_owned(),
                    started_nanos: found.status.started_at_nanos,
                    address: observed.addresses().first().copied().or(cx.config.addresses.first().copied()),
                    results: self.results.clone(),
                    wake: self.wake.clone(),
                };
                self.tasks.insert(key, tokio::spawn(worker.run()));
            }
        }
    }
}

/// What a status says of running containers. A pod that is not ready has to be probed first: its node may have been lost.
fn former_results(shown: &PodStatus) -> ProbeResults {
    let mut results = ProbeResults::default();
    let conditions = shown.conditions.as_deref().unwrap_or_default();
    let pod_ready = conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True");
    for status in [&shown.container_statuses, &shown.init_container_statuses].into_iter().flatten().flatten()
    {
        let id = status.container_id.as_deref().and_then(|id| id.split_once("://"));
        let Some((_, id)) = id.filter(|_| status.started == Some(true)) else { continue };
        results.startup.insert(id.to_owned(), true);
        if status.ready && pod_ready {
            results.readiness.insert(id.to_owned(), true);
        }
    }
    results
}

struct ProbeWorker {
    cx: Arc<NodeContext>,
    pod: Arc<Pod>,
    container: Container,
    probe: Probe,
    kind: ProbeKind,
    id: String,
    started_nanos: i64,
    address: Option<IpAddr>,
    results: Arc<Mutex<ProbeResults>>,
    wake: Arc<Notify>,
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    Duration::from_secs(value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default))
}

/// The words of a command, with the variables that the container itself sets. Those with a value from another object are empty.
fn words(command: &[String], env: &[EnvVar]) -> Vec<String> {
    let value = |name: &str| {
        let variable = env.iter().rev().find(|variable| variable.name == name)?;
        Some(variable.value.clone().unwrap_or_default())
    };
    command.iter().map(|word| expansion::expand(word, value)).collect()
}

impl ProbeWorker {
    fn set(&self, result: bool) {
        let changed = {
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            self.kind.results(&mut results).insert(self.id.clone(), result) != Some(result)
        };
        if changed {
            self.wake.notify_one();
        }
    }

    fn result(&self) -> Option<bool> {
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        self.kind.results(&mut results).get(&self.id).copied()
    }

    fn started(&self) -> bool {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        self.container.startup_probe.is_none() || results.startup.get(&self.id) == Some(&true)
    }

    async fn run(self) {
        match self.kind {
            // Alive until the contrary is known; ready and started only once it is known.
            ProbeKind::Liveness => self.set(true),
            ProbeKind::Readiness if self.result().is_none() => self.set(false),
            ProbeKind::Startup if self.result() == Some(true) => return,
            ProbeKind::Readiness | ProbeKind::Startup => {}
        }
        let period = seconds(self.probe.period_seconds, 10);
        let begun = self.started_nanos / 1_000_000_000;
        let delay = i64::from(self.probe.initial_delay_seconds.unwrap_or(0));
        let passed = self.cx.clock.now().as_second() - begun;
        if passed < delay {
            let left = Duration::from_secs((delay - passed).unsigned_abs());
            kaji_runtime::time::sleep(&*self.cx.clock, left).await;
        }
        let (mut last, mut run) = (None, 0);
        loop {
            if self.kind != ProbeKind::Startup && !self.started() {
                kaji_runtime::time::sleep(&*self.cx.clock, Duration::from_millis(250).min(period)).await;
                continue;
            }
            if let Some(outcome) = self.once().await {
                run = if last == Some(outcome) { run + 1 } else { 1 };
                last = Some(outcome);
                let threshold = if outcome {
                    self.probe.success_threshold.unwrap_or(1)
                } else {
                    self.probe.failure_threshold.unwrap_or(3)
                };
                if run >= threshold.max(1) {
                    self.set(outcome);
                    let decided =
                        self.kind == ProbeKind::Startup || self.kind == ProbeKind::Liveness && !outcome;
                    if decided {
                        // The container is restarted, or started for good.
                        return;
                    }
                }
            }
            kaji_runtime::time::sleep(&*self.cx.clock, period).await;
        }
    }

    /// One probe; up to three tries when it cannot be carried out. `None` when its outcome is unknown.
    async fn once(&self) -> Option<bool> {
        for attempt in 0..3 {
            let began = tokio::time::Instant::now();
            let outcome = self.attempt().await;
            if attempt == 2 || outcome.is_ok() {
                self.measured(&outcome, began.elapsed());
            }
            let kind = self.kind.name();
            let event = |message: String| {
                let reference = model::container_reference(&self.pod, &self.container.name);
                self.cx.api.record(EventRecord::warning(reference, "Unhealthy", message));
            };
            match outcome {
                Ok(Ok(())) => return Some(true),
                Ok(Err(text)) => {
                    event(format!("{kind} probe failed: {text}"));
                    return Some(false);
                }
                Err(text) if attempt == 2 => {
                    event(format!("{kind} probe errored and resulted in unknown state: {text}"))
                }
                Err(_) => {}
            }
        }
        None
    }

    fn measured(&self, outcome: &Result<Result<(), String>, String>, took: Duration) {
        let own = [
            ("probe_type", self.kind.name()),
            ("container", self.container.name.as_str()),
            ("pod", model::name(&self.pod)),
            ("namespace", model::namespace(&self.pod)),
        ];
        let result = match outcome {
            Ok(Ok(())) => "successful",
            Ok(Err(_)) => "failed",
            Err(_) => "unknown",
        };
        let more = [("result", result), ("pod_uid", model::uid(&self.pod))];
        self.cx.probe_metrics.count(&families::PROBES, &[own.as_slice(), &more].concat());
        if result != "failed" {
            self.cx.probe_metrics.observe(&families::PROBE_TIMES, &own, took);
        }
    }

    async fn attempt(&self) -> Result<Result<(), String>, String> {
        let limit = seconds(self.probe.timeout_seconds, 1);
        let ports: &[ContainerPort] = self.container.ports.as_deref().unwrap_or_default();
        if let Some(exec) = &self.probe.exec {
            let env = self.container.env.as_deref().unwrap_or_default();
            return self.exec(words(exec.command.as_deref().unwrap_or_default(), env), limit).await;
        }
        if let Some(action) = &self.probe.http_get {
            let target = hooks::http_target(action, ports, self.address)?;
            let answer = http::get(&target, limit, "kube-probe").await;
            if let Some(answer) = answer.as_ref().ok().filter(|answer| answer.code >= 300) {
                let text = format!("Probe terminated redirects, Response body: {}", answer.text);
                let reference = model::container_reference(&self.pod, &self.container.name);
                let message = format!("{} probe warning: {text}", self.kind.name());
                self.cx.api.record(EventRecord::warning(reference, "ProbeWarning", message));
            }
            return Ok(answer.map(drop));
        }
        if let Some(action) = &self.probe.tcp_socket {
            let port = hooks::port(&action.port, ports)?;
            let host = match action.host.as_deref().filter(|h| !h.is_empty()) {
                Some(host) => host.to_owned(),
                None => self.address.ok_or("the pod has no address")?.to_string(),
            };
            let connected = tokio::net::TcpStream::connect((host.as_str(), port));
            return Ok(match tokio::time::timeout(limit, connected).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(error)) => Err(format!("dial tcp {host}:{port}: {}", http::dial(&error))),
                Err(_) => Err(format!("dial tcp {host}:{port}: i/o timeout")),
            });
        }
        if let Some(action) = &self.probe.grpc {
            let port =
                u16::try_from(action.port).map_err(|_| format!("invalid port number: {}", action.port))?;
            let address = self.address.ok_or("the pod has no address")?;
            let service = action.service.as_deref().unwrap_or_default();
            if action.mode.as_deref().is_some_and(|mode| !mode.is_empty() && mode != "Plaintext") {
                return Err("gRPC probes with TLS are not supported by this node".to_owned());
            }
            return Ok(grpc::check(address, port, service, limit).await);
        }
        Err(format!("missing probe handler for {}:{}", model::display(&self.pod), self.container.name))
    }

    async fn exec(&self, command: Vec<String>, limit: Duration) -> Result<Result<(), String>, String> {
        let shown = command.join(" ");
        match self.cx.runtime.exec_sync(&self.id, command, limit).await {
            Ok(output) if output.exit_code == 0 => Ok(Ok(())),
            Ok(output) => {
                let text = [output.stdout, output.stderr].concat();
                Ok(Err(String::from_utf8_lossy(&text[..text.len().min(10 << 10)]).into_owned()))
            }
            Err(RuntimeError::DeadlineExceeded(_)) => {
                Ok(Err(format!("command timed out: \"{shown}\" timed out after {}s", limit.as_secs())))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}
