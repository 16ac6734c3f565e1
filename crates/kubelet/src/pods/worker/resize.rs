//! Giving running containers what their pod was granted.

use super::Worker;
use crate::pods::allocation;
use crate::pods::compute::Actions;
use crate::pods::core::Container;
use crate::pods::memory_qos::Files;
use crate::pods::model;
use crate::pods::observed::Observed;
use crate::pods::resize::{self, Actual, Step};
use crate::pods::{labels, resources};
use kaji_containers::{LinuxResources, PodSandboxFilter, ResourceUpdate, RuntimeError};
use kaji_runtime::EventRecord;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The file of what a pod's containers run with, in the pod's directory.
const FILE: &str = "actual_resources.json";
/// The same of the pod as a whole.
const POD_FILE: &str = "actual_pod_resources.json";

impl Worker {
    fn actuals_file(&self, name: &str) -> PathBuf {
        self.cx.config.pod_dir(model::uid(&self.pod)).join(name)
    }

    /// What the pod and its containers run with, as a kubelet before this one knew it.
    pub(super) fn load_actuals(&mut self) {
        self.resizing.actuals = allocation::load(&self.actuals_file(FILE)).unwrap_or_default();
        self.resizing.pod = allocation::load(&self.actuals_file(POD_FILE));
        let cgroups = self.cx.cgroups.as_ref();
        self.resizing.cgroup = cgroups.and_then(|c| c.limits(&resources::cgroup_path(&self.pod)));
    }

    fn save_actuals(&self) {
        let mut saved = allocation::save(&self.actuals_file(FILE), &self.resizing.actuals);
        if let Some(pod) = &self.resizing.pod {
            saved = saved.and(allocation::save(&self.actuals_file(POD_FILE), pod));
        }
        if let Err(error) = saved {
            tracing::warn!(pod = model::display(&self.pod), %error, "the actuated resources of the pod cannot be checkpointed");
        }
    }

    /// Notes the limits that the pod's cgroup has now, which are those that the pod was granted.
    pub(super) fn note_cgroup(&mut self, limits: LinuxResources) {
        self.resizing.cgroup = Some(limits);
        let of_pod = Actual::of_pod(&self.pod);
        if of_pod.is_some() && self.resizing.pod != of_pod {
            self.resizing.pod = of_pod;
            self.save_actuals();
        }
    }

    /// Notes what a container that starts runs with.
    pub(super) fn note_start(&mut self, container: &Container) {
        let actual = Actual::of(&self.pod, container);
        if self.resizing.actuals.insert(container.name.clone(), actual) != Some(actual) {
            self.save_actuals();
        }
    }

    /// Changes the containers that do not have what they were granted. Those that have to be restarted for it go into `actions`.
    pub(super) async fn resize(&mut self, observed: &Observed, actions: &mut Actions) {
        let pod = self.pod.clone();
        let memory = self.cx.config.memory;
        let allocatable = self.cx.facts.allocatable().get("memory").copied().unwrap_or(0);
        let qos = self.cx.config.memory_qos;
        let of_memory = |container: &Container| {
            if !resources::has_unified_cgroups() {
                return Files::new();
            }
            qos.of_running_container(&pod, container, allocatable)
        };
        let steps = resize::steps(&pod, observed, &self.resizing.actuals, actions, (memory, &of_memory));
        let of_pod = Actual::of_pod(&pod);
        // Before containers start, the pod's cgroup is limited anyway.
        let starts = !(actions.init.is_empty() && actions.regular.is_empty());
        let whole = of_pod.is_some() && of_pod != self.resizing.pod && !starts;
        if steps.is_empty() && !whole {
            self.resizing.error = None;
            return;
        }
        let sandbox = observed.ready_sandbox().map(|sandbox| sandbox.info.id.as_str());
        let outcome = self.actuate(steps, sandbox).await;
        self.save_actuals();
        let error = outcome.err();
        if let Some(error) = error.as_ref().filter(|e| self.resizing.error.as_ref() != Some(e)) {
            let message = allocation::event("Pod resize error", &pod, error);
            self.cx.api.record(EventRecord::warning(model::reference(&pod), "ResizeError", message));
        }
        self.resizing.error = error;
    }

    async fn actuate(&mut self, steps: Vec<Step>, sandbox: Option<&str>) -> Result<(), String> {
        let wanted = resources::of_pod_cgroup(&self.cx, &self.pod);
        let before = self.resizing.cgroup.clone().unwrap_or_else(|| wanted.clone());
        self.check_pod_memory(&before, &wanted).await?;
        for step in &steps {
            self.check_memory(step).await?;
        }
        // The pod has room for its containers at any time.
        self.limit_pod(sandbox, resize::larger(&before, &wanted)).await?;
        for step in steps {
            let update = ResourceUpdate { resources: step.resources, ..ResourceUpdate::default() };
            let updated = self.cx.runtime.update_container_resources(&step.id, update).await;
            updated.map_err(|error| error.to_string())?;
            self.resizing.actuals.insert(step.name, step.then);
        }
        self.limit_pod(sandbox, wanted).await?;
        self.resizing.pod = Actual::of_pod(&self.pod);
        Ok(())
    }

    /// Sets the limits of the pod's cgroup, which the runtime may refuse.
    async fn limit_pod(&mut self, sandbox: Option<&str>, limits: LinuxResources) -> Result<(), String> {
        let Some(cgroups) = self.cx.cgroups.clone() else { return Ok(()) };
        if self.resizing.cgroup.as_ref() == Some(&limits) {
            return Ok(());
        }
        if let Some(id) = sandbox {
            let overhead = Some(resources::of_overhead(&self.pod));
            match self.cx.runtime.update_pod_sandbox_resources(id, overhead, Some(limits.clone())).await {
                Ok(()) | Err(RuntimeError::Unimplemented(_)) => {}
                // containerd 2.2 has no code for it.
                Err(error) if error.to_string().contains("not implemented") => {}
                Err(error) => {
                    return Err(format!("updatePodSandboxResources failed for sanboxID \"{id}\": {error}"));
                }
            }
        }
        cgroups.ensure(&resources::cgroup_path(&self.pod), &limits)?;
        self.resizing.cgroup = Some(limits);
        Ok(())
    }

    /// The same as [`Worker::check_memory`] for the pod as a whole.
    async fn check_pod_memory(&self, before: &LinuxResources, then: &LinuxResources) -> Result<(), String> {
        let limit = u64::try_from(then.memory_limit_bytes).unwrap_or(0);
        let grows = before.memory_limit_bytes > 0 && then.memory_limit_bytes >= before.memory_limit_bytes;
        if limit == 0 || grows || self.cx.cgroups.is_none() || before == then {
            return Ok(());
        }
        let labels = BTreeMap::from([(labels::POD_UID.to_owned(), model::uid(&self.pod).to_owned())]);
        let filter = PodSandboxFilter { labels, ..PodSandboxFilter::default() };
        let unknown = format!("unable to read memory usage for pod \"{}\"", model::display(&self.pod));
        let stats = self.cx.runtime.list_pod_sandbox_stats(filter).await;
        let stats = stats.map_err(|error| format!("{unknown}: {error}"))?;
        match stats.first().map(|pod| pod.memory.usage) {
            Some(usage) if usage >= limit => Err(format!(
                "cannot decrease memory limits: attempting to set pod memory limit ({limit}) below current usage ({usage})"
            )),
            Some(_) => Ok(()),
            None => Err(unknown),
        }
    }

    /// A limit below what is in use would have the kernel kill the container, or refuse it.
    async fn check_memory(&self, step: &Step) -> Result<(), String> {
        let limit = u64::try_from(step.resources.memory_limit_bytes).unwrap_or(0);
        let now = self.resizing.actuals.get(&step.name).map_or(0, |now| now.memory_limit);
        if limit == 0 || now > 0 && step.then.memory_limit >= now {
            return Ok(());
        }
        match self.cx.runtime.container_stats(&step.id).await {
            Ok(stats) if stats.memory.usage >= limit => Err(format!(
                "cannot decrease memory limits: attempting to set container \"{}\" memory limit ({limit}) below current usage ({})",
                step.name, stats.memory.usage
            )),
            Ok(_) => Ok(()),
            Err(error) => {
                Err(format!("unable to read the memory usage of container \"{}\": {error}", step.name))
            }
        }
    }

    /// Notes whether a resize is under way, and its end.
    pub(super) fn follow_resize(&mut self, observed: &Observed) {
        let was = self.resizing.in_progress;
        self.resizing.in_progress =
            resize::in_progress(&self.pod, observed, &self.resizing.actuals, self.resizing.pod.as_ref());
        if was && !self.resizing.in_progress {
            let message = allocation::event("Pod resize completed", &self.pod, "");
            self.cx.api.record(EventRecord::normal(model::reference(&self.pod), "ResizeCompleted", message));
        }
    }
}
