//! Carrying out [`Actions`]: kills, then the sandbox, then containers in order.

use super::Worker;
use crate::metrics::families;
use crate::pods::admission::{self, PodRejection};
use crate::pods::compute::{Actions, KillReason};
use crate::pods::core::Container;
use crate::pods::images::{self, Needed, StartFailure};
use crate::pods::model::{self, ContainerKind};
use crate::pods::observed::Observed;
use crate::pods::start::{self, ContainerInputs};
use crate::pods::{hooks, kill, resources, restart_backoff, status};
use crate::volumes::{ATTACH_TIMEOUT, NotSetUp};
use kaji_containers::{ContainerState, PodSandboxConfig, RuntimeError};
use kaji_runtime::EventRecord;
use std::net::IpAddr;
use std::time::Duration;

/// The reason of a pod with volumes that the node cannot take.
const ATTACH_LIMIT: &str = "VolumeAttachmentLimitExceeded";
/// After a failed start of a container, unless its own delay is known.
const AGAIN: Duration = Duration::from_secs(1);
/// While a volume is being attached: upstream's `podAttachAndMountRetryInterval`.
const ATTACHING: Duration = Duration::from_millis(300);

impl Worker {
    /// Carries actions out. Answers when to look again, at the latest.
    pub(super) async fn execute(
        &mut self,
        observed: &Observed,
        actions: Actions,
    ) -> Result<Option<Duration>, RuntimeError> {
        let cx = self.cx.clone();
        let pod = self.pod.clone();
        if !actions.reset.is_empty() {
            for id in &actions.reset {
                if let Some(found) = observed.containers.iter().find(|c| c.id() == id)
                    && found.state() != ContainerState::Exited
                {
                    // Without grace, as upstream: no hook is run, and what they do is begun anew.
                    kill::container(&cx, Some(&pod), found, "killing", 0).await?;
                }
                cx.runtime.remove_container(id).await?;
            }
            return Ok(Some(Duration::ZERO));
        }
        if actions.kill_pod {
            kill::all(&cx, Some(&pod), observed).await?;
            for sandbox in &observed.sandboxes {
                cx.runtime.stop_pod_sandbox(&sandbox.info.id).await?;
            }
            if actions.create_sandbox.is_none() {
                return Ok(None);
            }
        }
        for stop in &actions.kill {
            if let Some(found) = observed.containers.iter().find(|c| c.id() == stop.id) {
                let grace = kill::grace_seconds(Some(&pod), found, stop.reason);
                kill::container(&cx, Some(&pod), found, &stop.message, grace).await?;
            }
        }
        let starts = !(actions.init.is_empty() && actions.regular.is_empty() && actions.ephemeral.is_empty());
        if let Some(wait) = self.prepare(starts || actions.create_sandbox.is_some()).await {
            return Ok(Some(wait));
        }
        if !starts {
            return Ok(None);
        }
        if actions.create_sandbox.is_some()
            && let Some(wait) = self.prepare_claims().await
        {
            return Ok(Some(wait));
        }
        let Some((sandbox, config)) = self.sandbox(&actions).await? else { return Ok(Some(AGAIN)) };
        // What was killed just now counts with its exit, and an init container of a former sandbox does not count. But delays of
        // restarts go by the exits before.
        let before = observed;
        let observed = self.observe().await?;
        let status = cx.runtime.pod_sandbox_status(&sandbox).await?;
        let addresses = self.addresses(&status.addresses);
        self.prune(&observed).await?;
        // Its addresses are known before images are pulled. A container that is replaced is not reported between its end and its
        // successor's start, as upstream reports after a synchronization.
        if actions.create_sandbox.is_some() {
            self.report(&observed, false);
        }
        self.start_all(&actions, (before, &observed), (&sandbox, &config), &addresses).await
    }

    fn addresses(&self, own: &[IpAddr]) -> Vec<IpAddr> {
        let hosts = &self.cx.config.addresses;
        let own = if model::host_network(&self.pod) { hosts } else { own };
        status::sorted(own, hosts)
    }

    /// `observed` is what was observed before anything was killed, and after.
    async fn start_all(
        &mut self,
        actions: &Actions,
        observed: (&Observed, &Observed),
        sandbox: (&str, &PodSandboxConfig),
        addresses: &[IpAddr],
    ) -> Result<Option<Duration>, RuntimeError> {
        let pod = self.pod.clone();
        let mut wait: Option<Duration> = None;
        let mut sooner = |next: Option<Duration>| {
            wait = match (wait, next) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        };
        for index in &actions.ephemeral {
            let spec = &model::ephemeral_containers(&pod)[*index];
            let container = model::as_container(spec);
            let target = spec.target_container_name.as_deref().filter(|t| !t.is_empty());
            let target = target.and_then(|t| observed.1.newest(t)).map(|c| c.id().to_owned());
            let kind = (ContainerKind::Ephemeral, target.as_deref());
            sooner(self.start_one(&container, kind, observed, sandbox, addresses).await.err());
        }
        for index in &actions.init {
            let container = &model::init_containers(&pod)[*index];
            let kind = (ContainerKind::Init, None);
            let failed = self.start_one(container, kind, observed, sandbox, addresses).await.err();
            let stop = failed.is_some() && !model::is_sidecar(container);
            sooner(failed);
            if stop {
                break;
            }
        }
        for index in &actions.regular {
            let container = &model::containers(&pod)[*index];
            let kind = (ContainerKind::Regular, None);
            sooner(self.start_one(container, kind, observed, sandbox, addresses).await.err());
        }
        if wait.is_none() {
            // The next step follows from what was started.
            wait = actions.init.first().map(|_| AGAIN);
        }
        Ok(wait)
    }

    /// Cgroup and volumes. How long to wait when they are not ready.
    async fn prepare(&mut self, starts: bool) -> Option<Duration> {
        let cx = self.cx.clone();
        let pod = self.pod.clone();
        let event = |reason: &str, message: String| {
            cx.api.record(EventRecord::warning(model::reference(&pod), reason, message));
        };
        let limits = resources::of_pod_cgroup(&cx, &pod);
        if starts && let Some(cgroups) = &cx.cgroups {
            let ensured = cgroups.ensure(&resources::cgroup_path(&pod), &limits);
            if let Err(error) = ensured {
                event("FailedCreatePodContainer", format!("unable to ensure pod container exists: {error}"));
                return Some(AGAIN);
            }
        }
        if starts {
            self.note_cgroup(limits);
        }
        let now = cx.clock.now();
        if let Some(left) = self.mounts.waits("volumes", now) {
            return starts.then_some(left);
        }
        match cx.volumes.set_up(&cx, &pod).await {
            Ok(()) => {
                self.mounts.reset("volumes");
                None
            }
            Err(NotSetUp { exhausted: Some((drivers, text)), .. }) if starts && self.waited_for_volumes() => {
                drivers.iter().for_each(|driver| cx.volumes.csi_drivers().note_exhausted(driver));
                let refusal = PodRejection { reason: ATTACH_LIMIT.to_owned(), message: text };
                self.failed = Some(admission::refused(&cx, &pod, refusal));
                Some(Duration::ZERO)
            }
            Err(problems) if problems.failures.is_empty() => {
                tracing::debug!(pod = model::display(&pod), %problems, "waiting for volumes");
                starts.then_some(ATTACHING)
            }
            Err(problems) => {
                for failure in problems.failures {
                    event("FailedMount", failure);
                }
                self.mounts.next("volumes", now, now);
                starts.then(|| self.mounts.delay("volumes"))
            }
        }
    }

    /// Whether the pod has waited for its volumes as long as upstream's kubelet waits at a time.
    fn waited_for_volumes(&self) -> bool {
        self.cx.clock.now().duration_since(self.seen).unsigned_abs() >= ATTACH_TIMEOUT
    }

    /// Has the pod's claims prepared. How long to wait when that has failed.
    async fn prepare_claims(&mut self) -> Option<Duration> {
        let (cx, now) = (self.cx.clone(), self.cx.clock.now());
        if let Some(left) = self.mounts.waits("claims", now) {
            return Some(left);
        }
        let Err(error) = cx.dra.prepare(&*cx.sources, &self.pod).await else {
            self.mounts.reset("claims");
            return None;
        };
        let message = format!("Failed to prepare dynamic resources: {error}");
        let reference = model::reference(&self.pod);
        cx.api.record(EventRecord::warning(reference, "FailedPrepareDynamicResources", message));
        self.mounts.next("claims", now, now);
        Some(self.mounts.delay("claims"))
    }

    /// The sandbox to start containers in, created if need be; `None` after an event about a failure.
    async fn sandbox(
        &mut self,
        actions: &Actions,
    ) -> Result<Option<(String, PodSandboxConfig)>, RuntimeError> {
        let cx = self.cx.clone();
        let event = |message: String| {
            let reference = model::reference(&self.pod);
            cx.api.record(EventRecord::warning(reference, "FailedCreatePodSandBox", message));
        };
        let config = match start::sandbox_config(&cx, &self.pod, actions.create_sandbox.unwrap_or(0)).await {
            Ok(config) => config,
            Err(error) => {
                event(format!("Failed to create pod sandbox: {error}"));
                return Ok(None);
            }
        };
        let Some(attempt) = actions.create_sandbox else {
            return Ok(actions.sandbox.clone().map(|id| (id, config)));
        };
        if attempt > 0 {
            let reference = model::reference(&self.pod);
            let message = "Pod sandbox changed, it will be killed and re-created.";
            cx.api.record(EventRecord::normal(reference, "SandboxChanged", message));
        }
        if !model::host_network(&self.pod) {
            let conditions = cx.runtime.status().await?.conditions;
            if let Some(network) = conditions.iter().find(|c| c.kind == "NetworkReady" && !c.status) {
                let message = format!(
                    "network is not ready: container runtime network not ready: NetworkReady=false reason:{} message:{}",
                    network.reason, network.message
                );
                let reference = model::reference(&self.pod);
                cx.api.record(EventRecord::warning(reference, "NetworkNotReady", message));
                return Ok(None);
            }
        }
        std::fs::create_dir_all(&config.log_directory)?;
        let handler = [("runtime_handler", config.runtime_handler.as_str())];
        let began = tokio::time::Instant::now();
        let started = cx.runtime.run_pod_sandbox(config.clone()).await;
        cx.metrics.count(&families::STARTED_PODS, &[]);
        cx.metrics.observe(&families::SANDBOX_TIMES, &handler, began.elapsed());
        if started.is_err() {
            cx.metrics.count(&families::SANDBOX_ERRORS, &handler);
            cx.metrics.count(&families::FAILED_PODS, &[]);
        }
        match started {
            Ok(id) => Ok(Some((id, config))),
            Err(error) => {
                event(format!("Failed to create pod sandbox: {error}"));
                Ok(None)
            }
        }
    }

    /// Removes containers that a newer one of their name has followed twice.
    async fn prune(&self, observed: &Observed) -> Result<(), RuntimeError> {
        let mut seen: std::collections::BTreeMap<&str, u32> = Default::default();
        for found in &observed.containers {
            let count = seen.entry(found.name.as_str()).or_default();
            *count += 1;
            if *count > 2 && found.state() == ContainerState::Exited {
                self.cx.runtime.remove_container(found.id()).await?;
                self.cx.remove_log(&self.pod, found);
            }
        }
        Ok(())
    }

    /// Starts one container. Answers in how long to try again if that failed or has to wait.
    async fn start_one(
        &mut self,
        container: &Container,
        kind: (ContainerKind, Option<&str>),
        (before, observed): (&Observed, &Observed),
        sandbox: (&str, &PodSandboxConfig),
        addresses: &[IpAddr],
    ) -> Result<(), Duration> {
        self.restart_delay(container, before)?;
        self.note_start(container);
        let cx = self.cx.clone();
        let pod = self.pod.clone();
        let started = async {
            let images = images::ensure_all(&cx, &pod, container, sandbox.1, &mut self.pulls).await?;
            let inputs = ContainerInputs {
                pod: &pod,
                container,
                observed,
                addresses,
                images: &images,
                kind: kind.0,
                target: kind.1,
            };
            start::run(&cx, &inputs, sandbox.0).await
        };
        let kind = match kind.0 {
            ContainerKind::Regular => "container",
            ContainerKind::Init => "init_container",
            ContainerKind::Ephemeral => "ephemeral_container",
        };
        let started = started.await;
        let outcome = match started {
            Ok(id) => Box::pin(self.post_start(container, &id, addresses.first().copied())).await,
            Err(failed) => Err(failed),
        };
        cx.metrics.count(&families::STARTED_CONTAINERS, &[("container_type", kind)]);
        match outcome {
            Ok(()) => {
                self.waiting.remove(&container.name);
                Ok(())
            }
            Err(failed) => {
                let labels = [("container_type", kind), ("code", failed.reason)];
                cx.metrics.count(&families::FAILED_CONTAINERS, &labels);
                let needed = Needed::by_volumes(&pod, container).into_iter();
                let mut needed = needed.chain([Needed::by_container(&pod, container)]);
                let now = cx.clock.now();
                let wait = needed.find_map(|image| self.pulls.waits(&image.backoff_key(), now));
                let wait = wait.unwrap_or(AGAIN);
                let message = self.image_message(container, &failed);
                self.waiting.insert(container.name.clone(), (failed.reason.to_owned(), message));
                Err(wait)
            }
        }
    }

    /// Runs the postStart hook of a container that was just started. The container is killed when that fails.
    async fn post_start(
        &self,
        container: &Container,
        id: &str,
        address: Option<IpAddr>,
    ) -> Result<(), StartFailure> {
        let hook = hooks::post_start(&self.cx, &self.pod, container, id, address);
        let Err(message) = hook.await else { return Ok(()) };
        let killed = async {
            let observed = self.observe().await?;
            let Some(found) = observed.containers.iter().find(|c| c.id() == id) else { return Ok(()) };
            let grace = kill::grace_seconds(Some(&self.pod), found, KillReason::Other);
            kill::container(&self.cx, Some(&self.pod), found, "FailedPostStartHook", grace).await
        };
        if let Err(error) = killed.await {
            tracing::warn!(container = id, %error, "the container could not be stopped after its postStart hook had failed");
        }
        Err(StartFailure { reason: "PostStartHookError", message })
    }

    /// A pull that waits shows why the last one failed.
    fn image_message(&self, container: &Container, failed: &StartFailure) -> String {
        if failed.reason != "ImagePullBackOff" {
            return failed.message.clone();
        }
        match self.waiting.get(&container.name) {
            Some((reason, message)) if reason == "ImagePullBackOff" => message.clone(),
            Some((reason, message)) => format!("{}: {reason}: {message}", failed.message),
            None => failed.message.clone(),
        }
    }

    /// Whether a container that has exited may run again already, by what was observed before anything was killed.
    fn restart_delay(&mut self, container: &Container, before: &Observed) -> Result<(), Duration> {
        let (last, now) = (before.last_ended(&container.name), self.cx.clock.now());
        restart_backoff::check(&mut self.restarts, &self.pod, container, last, now).map_err(|backoff| {
            self.cx.api.record(backoff.event);
            self.waiting.insert(container.name.clone(), backoff.waiting);
            backoff.left
        })
    }
}
