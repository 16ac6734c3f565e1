//! What decisions about equal pods have in common: the verdicts and scores of plugins that look at one node alone, by node.
//!
//! A pod's decision changes one node. The next pod of the same template is decided on what is known of all others: a look at a
//! number each, instead of every filter and score again.
//!
//! Invariants:
//! - What is known of a node holds for its present generation only.
//! - Pods are equal if these plugins cannot tell them apart: their needs and what they share with their template are equal.
//! - At most [`CLASSES`] classes of pods are remembered; the one that was used the longest ago is forgotten first.

use crate::{framework::Status, pod_info::PodInfo};
use std::{collections::HashMap, sync::Arc};

/// Classes of equal pods that are remembered.
const CLASSES: usize = 16;

/// What is known of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verdict {
    #[default]
    Unknown,
    Fits,
    Rejected,
}

/// What is known of all nodes, for equal pods.
pub struct Class {
    pod: Arc<PodInfo>,
    used: u64,
    /// By the slots of nodes, as all that follows.
    generations: Vec<u64>,
    verdicts: Vec<Verdict>,
    scored: Vec<bool>,
    /// Scores of so many plugins for each node.
    scores: Vec<i64>,
    width: usize,
    statuses: HashMap<usize, Status>,
}

impl Class {
    fn new(pod: Arc<PodInfo>) -> Self {
        Class {
            pod,
            used: 0,
            generations: vec![],
            verdicts: vec![],
            scored: vec![],
            scores: vec![],
            width: 0,
            statuses: HashMap::new(),
        }
    }

    fn is_of(&self, pod: &PodInfo) -> bool {
        let (known, asked) = (&*self.pod.pod.spec, &*pod.pod.spec);
        (std::ptr::eq(known, asked) || known == asked) && self.pod.same_needs(pod)
    }

    /// Forgets what was known of a former generation of a node.
    fn renew(&mut self, slot: usize, generation: u64) {
        if self.generations.len() <= slot {
            self.generations.resize(slot + 1, 0);
            self.verdicts.resize(slot + 1, Verdict::Unknown);
            self.scored.resize(slot + 1, false);
        }
        if self.generations[slot] != generation {
            self.generations[slot] = generation;
            self.verdicts[slot] = Verdict::Unknown;
            self.scored[slot] = false;
        }
    }

    /// Whether a node passes the filters that look at it alone; `filter` says it if that is not known.
    ///
    /// # Errors
    /// Why it does not.
    pub fn verdict(
        &mut self,
        (slot, generation): (usize, u64),
        filter: impl FnOnce() -> Result<(), Status>,
    ) -> Result<(), Status> {
        self.renew(slot, generation);
        match self.verdicts[slot] {
            Verdict::Fits => return Ok(()),
            Verdict::Rejected => {
                if let Some(status) = self.statuses.get(&slot) {
                    return Err(status.clone());
                }
            }
            Verdict::Unknown => {}
        }
        let outcome = filter();
        match &outcome {
            Ok(()) => self.verdicts[slot] = Verdict::Fits,
            // A failure is no verdict.
            Err(status) if status.is_rejection() => {
                self.verdicts[slot] = Verdict::Rejected;
                self.statuses.insert(slot, status.clone());
            }
            Err(_) => {}
        }
        outcome
    }

    /// A node's scores by `width` plugins; `score` says them if they are not known.
    pub fn scores(
        &mut self,
        (slot, generation): (usize, u64),
        width: usize,
        score: impl FnOnce(&mut [i64]),
    ) -> &[i64] {
        self.renew(slot, generation);
        if self.width != width {
            self.width = width;
            self.scored.fill(false);
        }
        let (from, to) = (slot * width, (slot + 1) * width);
        if self.scores.len() < to {
            self.scores.resize(to, 0);
        }
        let scores = &mut self.scores[from..to];
        if !std::mem::replace(&mut self.scored[slot], true) {
            score(scores);
        }
        scores
    }
}

/// What one decision leaves to the next.
#[derive(Default)]
pub struct Memory {
    /// The place of the first node to look at; it moves on, so that all nodes are looked at in turn.
    pub start: usize,
    classes: Vec<Class>,
    uses: u64,
}

impl Memory {
    /// What is known for pods like this one, and the place of the first node to look at.
    pub fn of(&mut self, pod: &Arc<PodInfo>) -> (&mut Class, &mut usize) {
        self.uses += 1;
        let known = self.classes.iter().position(|class| class.is_of(pod));
        let place = known.unwrap_or_else(|| {
            let new = Class::new(pod.clone());
            if self.classes.len() < CLASSES {
                self.classes.push(new);
                return self.classes.len() - 1;
            }
            let oldest = self.classes.iter().enumerate().min_by_key(|(_, class)| class.used);
            let oldest = oldest.map_or(0, |(place, _)| place);
            self.classes[oldest] = new;
            oldest
        });
        let class = &mut self.classes[place];
        class.used = self.uses;
        (class, &mut self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Cluster, node, pod};
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn a_node(number: usize, cpu: usize) -> Value {
        let taint = json!([{"key": "k", "effect": if cpu == 2 { "NoSchedule" } else { "PreferNoSchedule" }}]);
        let spec = if cpu > 1 { json!({"taints": taint}) } else { json!({}) };
        json!({"name": format!("n{number}"), "labels": {"zone": format!("z{}", number % 2)}, "spec": spec,
            "allocatable": {"cpu": format!("{}", cpu + 1), "pods": "4"}})
    }

    fn a_pod(number: usize, template: usize) -> Value {
        let spec = match template {
            0 => json!({"tolerations": [{"key": "k", "operator": "Exists"}]}),
            1 => json!({"nodeSelector": {"zone": "z0"}}),
            _ => json!({}),
        };
        json!({"name": format!("p{number}"), "cpu": format!("{}00m", template + 3), "spec": spec})
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn decisions_are_the_same_without_memory(
            cpus in proptest::collection::vec(0..4_usize, 1..6),
            steps in proptest::collection::vec((0..6_usize, 0..4_usize), 1..40),
        ) {
            let nodes: Vec<Value> = cpus.iter().enumerate().map(|(n, cpu)| a_node(n, *cpu)).collect();
            let (mut with, mut without) = (Cluster::new(&nodes), Cluster::new(&nodes));
            let mut placed = vec![];
            for (number, (step, choice)) in steps.into_iter().enumerate() {
                without.memory = Memory { start: without.memory.start, ..Memory::default() };
                match step {
                    0 if !placed.is_empty() => {
                        let gone = placed.remove(choice % placed.len());
                        with.cache.remove_pod(&gone);
                        without.cache.remove_pod(&gone);
                    }
                    1 => {
                        let changed = node(&a_node(choice % cpus.len(), choice));
                        let name = changed.metadata.name.clone();
                        with.cache.set_node(&name, Some(changed.clone()));
                        without.cache.set_node(&name, Some(changed));
                    }
                    _ => {
                        let value = a_pod(number, choice);
                        prop_assert_eq!(with.show(&value), without.show(&value));
                        let node = with.place(&value);
                        without.memory = Memory { start: without.memory.start, ..Memory::default() };
                        prop_assert_eq!(&node, &without.place(&value));
                        placed.extend(node.map(|_| pod(&value).key()));
                    }
                }
            }
        }
    }
}
