//! Giving running containers what their pod was granted.

use super::Worker;
use crate::pods::allocation;
use crate::pods::compute::Actions;
use crate::pods::core::Container;
use crate::pods::model;
use crate::pods::observed::Observed;
use crate::pods::resize::{self, Actual, Actuals, Step};
use crate::pods::resources;
use kaji_containers::ResourceUpdate;
use kaji_runtime::EventRecord;
use std::path::PathBuf;

/// The file of what a pod's containers run with, in the pod's directory.
const FILE: &str = "actual_resources.json";

impl Worker {
    fn actuals_file(&self) -> PathBuf {
        self.cx.config.pod_dir(model::uid(&self.pod)).join(FILE)
    }

    /// What the pod's containers run with, as a kubelet before this one knew it.
    pub(super) fn load_actuals(&self) -> Actuals {
        allocation::load(&self.actuals_file()).unwrap_or_default()
    }

    fn save_actuals(&self) {
        if let Err(error) = allocation::save(&self.actuals_file(), &self.resizing.actuals) {
            tracing::warn!(pod = model::display(&self.pod), %error, "what containers run with cannot be kept");
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
        let steps = resize::steps(&pod, observed, &self.resizing.actuals, actions, memory);
        if steps.is_empty() {
            self.resizing.error = None;
            return;
        }
        let outcome = self.actuate(steps).await;
        self.save_actuals();
        let error = outcome.err();
        if let Some(error) = error.as_ref().filter(|e| self.resizing.error.as_ref() != Some(e)) {
            let message = allocation::event("Pod resize error", &pod, error);
            self.cx.api.record(EventRecord::warning(model::reference(&pod), "ResizeError", message));
        }
        self.resizing.error = error;
    }

    async fn actuate(&mut self, steps: Vec<Step>) -> Result<(), String> {
        for step in &steps {
            self.check_memory(step).await?;
        }
        let cgroup = resources::cgroup_path(&self.pod);
        let wanted = self.cx.managers.of_pod(&self.pod, resources::of_pod(&self.pod));
        let before = self.pod_limits.clone().unwrap_or_else(|| wanted.clone());
        // The pod has room for its containers at any time.
        if let Some(cgroups) = &self.cx.cgroups {
            cgroups.ensure(&cgroup, &resize::larger(&before, &wanted))?;
        }
        for step in steps {
            let update = ResourceUpdate { resources: step.resources, ..ResourceUpdate::default() };
            let updated = self.cx.runtime.update_container_resources(&step.id, update).await;
            updated.map_err(|error| error.to_string())?;
            self.resizing.actuals.insert(step.name, step.then);
        }
        if let Some(cgroups) = &self.cx.cgroups {
            cgroups.ensure(&cgroup, &wanted)?;
        }
        self.pod_limits = Some(wanted);
        Ok(())
    }

    /// A limit below what is in use would have the kernel kill the container, or refuse it.
    async fn check_memory(&self, step: &Step) -> Result<(), String> {
        let limit = u64::try_from(step.resources.memory_limit_bytes).unwrap_or(0);
        let now = self.resizing.actuals.get(&step.name).map_or(0, |now| now.memory_limit);
        if limit == 0 || now > 0 && step.then.memory_limit >= now {
            return Ok(());
        }
        match self.cx.runtime.container_stats(&step.id).await {
            Ok(stats) if stats.memory.usage > limit => Err(format!(
                "attempting to set container \"{}\" memory limit ({limit}) below current usage ({})",
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
        self.resizing.in_progress = resize::in_progress(&self.pod, observed, &self.resizing.actuals);
        if was && !self.resizing.in_progress {
            let message = allocation::event("Pod resize completed", &self.pod, "");
            self.cx.api.record(EventRecord::normal(model::reference(&self.pod), "ResizeCompleted", message));
        }
    }
}
