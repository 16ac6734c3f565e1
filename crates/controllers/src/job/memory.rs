//! What is remembered of a job's failures when their pods are gone: how often, and when, pods failed since the last success.
//!
//! Invariants:
//! - A pod counts once, however often it is seen.
//! - Of each job the last [`MOST`] failures are kept: more of them make no longer wait.
//! - A job that is gone, has finished, or was made anew under its name, is forgotten.

use super::pods;
use jiff::Timestamp;
use kaji_runtime::{
    Key,
    objects::{Job, Pod},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// 10 s, doubled so often, is beyond the longest wait.
const MOST: usize = 8;

/// Failures since the last success.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    /// How many, [`MOST`] at most.
    pub count: usize,
    /// When the last one was.
    pub last: Option<Timestamp>,
}

#[derive(Default)]
struct Ends {
    /// Of the job.
    uid: String,
    success: Option<Timestamp>,
    /// When pods failed, with their uids.
    failures: BTreeSet<(Timestamp, String)>,
}

impl Ends {
    fn learn(&mut self, job: &Job, all: &[Arc<Pod>]) {
        for pod in all {
            let Some(at) = pods::finished_at(pod) else { continue };
            if pod.status.phase == "Succeeded" {
                self.success = self.success.max(Some(at));
            } else if pods::failed(pod, job) {
                // The time of a pod that is being deleted may change until its containers have ended.
                self.failures.retain(|(_, uid)| *uid != pod.metadata.uid);
                self.failures.insert((at, pod.metadata.uid.clone()));
            }
        }
        let success = self.success;
        self.failures.retain(|(at, _)| success.is_none_or(|success| *at > success));
        while self.failures.len() > MOST {
            self.failures.pop_first();
        }
    }
}

/// The ends of the pods of jobs that had failures or successes.
#[derive(Default)]
pub struct Memory {
    jobs: Mutex<HashMap<Key, Ends>>,
}

impl Memory {
    fn jobs(&self) -> MutexGuard<'_, HashMap<Key, Ends>> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a job.
    pub fn forget(&self, key: &Key) {
        self.jobs().remove(key);
    }

    /// The failures of a job since its last success, those of pods that are gone included.
    pub fn learn(&self, key: &Key, job: &Job, all: &[Arc<Pod>]) -> Failures {
        let mut jobs = self.jobs();
        let mut ends = jobs.remove(key).filter(|ends| ends.uid == job.metadata.uid).unwrap_or_default();
        ends.learn(job, all);
        let failures = Failures { count: ends.failures.len(), last: ends.failures.last().map(|(at, _)| *at) };
        if failures.count > 0 || ends.success.is_some() {
            ends.uid.clone_from(&job.metadata.uid);
            jobs.insert(key.clone(), ends);
        }
        failures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ago, now, object};
    use serde_json::json;

    fn ended(name: &str, phase: &str, seconds: i64) -> Arc<Pod> {
        let state = json!({"terminated": {"exitCode": 1, "finishedAt": ago(seconds)}});
        Arc::new(object(json!({"metadata": {"name": name, "uid": name}, "status": {"phase": phase,
            "containerStatuses": [{"name": "c", "state": state}]}})))
    }

    fn job(uid: &str) -> Job {
        object(json!({"metadata": {"name": "j", "uid": uid}, "spec": {"template": {}}}))
    }

    fn seconds(failures: &Failures) -> (usize, Option<i64>) {
        (failures.count, failures.last.map(|at| now().duration_since(at).as_secs()))
    }

    #[test]
    fn remembers_failures_of_pods_that_are_gone() {
        let (memory, key) = (Memory::default(), Key::new("ns", "j"));
        let learn = |pods: &[Arc<Pod>]| seconds(&memory.learn(&key, &job("1"), pods));
        assert_eq!(learn(&[]), (0, None));
        assert_eq!(learn(&[ended("a", "Failed", 90)]), (1, Some(90)));
        assert_eq!(learn(&[ended("a", "Failed", 90), ended("b", "Failed", 50)]), (2, Some(50)));
        assert_eq!(learn(&[]), (2, Some(50)));
        assert_eq!(learn(&[ended("c", "Succeeded", 70)]), (1, Some(50)));
        assert_eq!(learn(&[ended("d", "Succeeded", 20)]), (0, None));
        // What failed before a success does not count when it is seen late.
        assert_eq!(learn(&[ended("e", "Failed", 30)]), (0, None));
        assert_eq!(learn(&[ended("f", "Failed", 10)]), (1, Some(10)));
        assert_eq!(seconds(&memory.learn(&key, &job("2"), &[])), (0, None));
    }

    #[test]
    fn keeps_a_few_of_many() {
        let (memory, key) = (Memory::default(), Key::new("ns", "j"));
        for i in 0..50 {
            memory.learn(&key, &job("1"), &[ended(&format!("p{i}"), "Failed", 500 - i)]);
        }
        assert_eq!(seconds(&memory.learn(&key, &job("1"), &[])), (MOST, Some(451)));
        memory.forget(&key);
        assert!(memory.jobs().is_empty());
    }
}
