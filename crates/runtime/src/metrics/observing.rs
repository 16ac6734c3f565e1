//! The observations of one plan while it is carried out.

use super::{ControllerMetrics, Moment, Observation};
use crate::client::Target;
use std::collections::HashMap;
use tokio::time::Instant;

/// The observations of a plan, and since when its key is worked on.
pub(crate) struct Observing<'a> {
    metrics: &'a ControllerMetrics,
    /// Those of the plan as a whole.
    whole: Vec<Observation>,
    /// Those of writes.
    writes: HashMap<Target, Vec<Observation>>,
    began: Instant,
}

impl<'a> Observing<'a> {
    /// Counts what counts before any write.
    pub fn new(metrics: &'a ControllerMetrics, observations: Vec<Observation>, began: Instant) -> Self {
        let mut observing = Observing { metrics, whole: vec![], writes: HashMap::new(), began };
        for observation in observations {
            match &observation.moment {
                Moment::Written(target) | Moment::NotWritten(target) => {
                    observing.writes.entry(target.clone()).or_default().push(observation);
                }
                Moment::Decided => observing.count(&observation),
                Moment::Succeeded | Moment::Failed => observing.whole.push(observation),
            }
        }
        observing
    }

    fn count(&self, Observation { sample, elapsed, .. }: &Observation) {
        let passed = if *elapsed { self.began.elapsed().as_secs_f64() } else { 0.0 };
        self.metrics.observe_value(sample, sample.value + passed);
    }

    /// A write has succeeded, or failed.
    pub fn written(&self, target: &Target, succeeded: bool) {
        let all = self.writes.get(target).into_iter().flatten();
        all.filter(|o| matches!(o.moment, Moment::Written(_)) == succeeded).for_each(|o| self.count(o));
    }

    /// The plan has been carried out, or a write has failed.
    pub fn done(&self, succeeded: bool) {
        let all = self.whole.iter();
        all.filter(|o| (o.moment == Moment::Succeeded) == succeeded).for_each(|o| self.count(o));
    }
}
