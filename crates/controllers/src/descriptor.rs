//! What the controller manager has of a controller, as upstream's `ControllerDescriptor`: a constant in the controller's file.

use crate::Config;
use kaji_runtime::{Controller, Informers, Shared};
use std::sync::Arc;
use tokio::{sync::watch, task::JoinSet};

/// The names of a controller, and how it starts.
#[derive(Clone, Copy)]
pub struct Descriptor {
    /// The name in `--controllers` (upstream's `cmd/kube-controller-manager/names`).
    pub name: &'static str,
    /// The components that it runs: their name is the client's `User-Agent` and the source of their events.
    pub components: &'static [&'static str],
    /// The service account in `kube-system`, bound to the role `system:controller:NAME` of the default policy
    /// (`crates/auth/src/authz/policy.txt`); without one it acts as the controller manager.
    pub service_account: Option<&'static str>,
    /// The flag that says how many objects it works on at the same time, for those that have one.
    pub workers: Option<WorkersFlag>,
    /// How it starts.
    pub start: Start,
}

impl Descriptor {
    /// Starts it; its tasks end when `stop` turns true.
    pub(crate) fn spawn(&self, tasks: &mut JoinSet<()>, context: &ControllerContext<'_>) {
        let ControllerContext { informers, shared, config, stop } = context;
        match self.start {
            Start::Reconcilers(build) => {
                for mut controller in build(informers, config) {
                    if let Some(workers) = config.loops.workers.get(self.name) {
                        controller = controller.workers(*workers);
                    }
                    tasks.spawn(kaji_runtime::run(controller, (*shared).clone(), stop.clone()));
                }
            }
            Start::Tasks(spawn) => spawn(tasks, context.clone()),
            Start::External => {}
        }
    }
}

/// A flag of kube-controller-manager for the workers of a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersFlag {
    /// Without its dashes: `concurrent-job-syncs`.
    pub name: &'static str,
    /// Upstream's default.
    pub default: usize,
}

/// What controllers start with, as upstream's `ControllerContext`.
#[derive(Clone)]
pub struct ControllerContext<'a> {
    /// The informers that all controllers share.
    pub informers: &'a Arc<Informers>,
    /// The client, the clock and randomness.
    pub shared: &'a Shared,
    /// What the controllers are configured with.
    pub config: &'a Config,
    /// Turns true when they are to end.
    pub stop: watch::Receiver<bool>,
}

/// How a controller starts.
#[derive(Clone, Copy)]
pub enum Start {
    /// As reconcilers, which the runtime drives. Building one starts its informers. None where the configuration lacks what
    /// they need.
    Reconcilers(fn(&Arc<Informers>, &Config) -> Vec<Controller>),
    /// As tasks, for controllers that drive their queue themselves.
    Tasks(fn(&mut JoinSet<()>, ControllerContext<'_>)),
    /// By another crate.
    External,
}
