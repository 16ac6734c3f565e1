//! Scheduler extenders: HTTP servers of the user that filter and score nodes, choose among victims, and bind pods.
//!
//! - `config`: the `extenders` of a configuration.
//! - `wire`: what is sent and answered (`k8s.io/kube-scheduler/extender/v1`).
//! - `transport`: one call.
//! - `whole`: pods and nodes with all of their fields, which extenders get.
//!
//! Invariants:
//! - A decision stays pure: extenders are asked before and after its parts, never within one.
//! - An extender that is ignorable is asked after all others, and its failures change nothing.
//! - Time and size of an answer are bounded.
//!
//! Source: upstream's `pkg/scheduler/extender.go`; Kubernetes, "Scheduler Configuration".

mod config;
#[cfg(test)]
mod tests;
mod transport;
mod whole;
mod wire;

pub use config::{ExtenderConfig, parse};
pub use whole::{WholeNode, WholePod};

use crate::{
    framework::{Code, Listers, Nomination, Outcome, Reads, Status},
    plugins::{Candidate, best_candidate},
    pod_info::PodInfo,
    schedule_one::{ExtenderScores, Found, Unschedulable},
    snapshot::{NodeInfo, Snapshot},
};
use futures_util::future::join_all;
use kaji_runtime::{Client, objects::Container};
use serde_json::value::RawValue;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};
use transport::{Transport, encode};
use wire::{BindingArgs, ExtenderArgs, FilterResult, Items, PreemptionArgs, Victims};

/// The best score that an extender gives.
const MAX_EXTENDER_SCORE: i64 = 10;
/// The best score of a plugin for one that an extender gives.
const SCALE: i64 = crate::framework::points::MAX_SCORE / MAX_EXTENDER_SCORE;

/// Why an extender is of no help.
#[derive(Debug, thiserror::Error)]
enum ExtenderError {
    /// The call.
    #[error(transparent)]
    Call(#[from] transport::TransportError),
    /// An object that is to be sent.
    #[error("failed to read what extender {url:?} is sent: {error}")]
    Object { url: String, error: kaji_runtime::Error },
    /// What was answered.
    #[error("{0}")]
    Answer(String),
}

/// An extender.
#[derive(Debug)]
struct Extender {
    config: ExtenderConfig,
    transport: Transport,
}

impl Extender {
    fn is_interested(&self, pod: &PodInfo) -> bool {
        let managed = &self.config.managed;
        let manages = |container: &Container| {
            let resources = &container.resources;
            resources.requests.iter().chain(resources.limits.iter()).any(|(name, _)| managed.contains(name))
        };
        let spec = &pod.pod.spec;
        managed.is_empty() || spec.containers.iter().chain(spec.init_containers.iter()).any(manages)
    }
}

/// The extenders of a configuration; those that are ignorable come last.
#[derive(Debug, Default)]
pub struct Extenders(Vec<Extender>);

impl Extenders {
    /// # Errors
    /// For addresses and certificates that cannot be used.
    pub fn new(mut configs: Vec<ExtenderConfig>) -> Result<Self, String> {
        configs.sort_by_key(|config| config.ignorable);
        let made = configs.into_iter().map(|config| -> Result<Extender, String> {
            let transport = Transport::new(&config)?;
            Ok(Extender { config, transport })
        });
        made.collect::<Result<_, String>>().map(Extenders)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Extended resources that the scheduler leaves to extenders.
    pub fn ignored_resources(&self) -> Vec<&str> {
        self.0.iter().flat_map(|extender| &extender.config.ignored).map(String::as_str).collect()
    }

    /// Whole objects are read only if they are sent.
    pub fn read(&self, reads: &mut Reads<'_>) {
        let sends = |c: &ExtenderConfig| c.filter.is_some() || c.prioritize.is_some();
        if self.0.iter().any(|e| sends(&e.config) || e.config.preempt.is_some()) {
            reads.read_quietly::<WholePod>();
        }
        if self.0.iter().any(|e| sends(&e.config) && !e.config.node_cache_capable) {
            reads.read_quietly::<WholeNode>();
        }
    }
}

/// The extenders, and what they are sent.
pub struct ExtenderCalls {
    extenders: Arc<Extenders>,
    listers: Listers,
    client: Client,
}

impl ExtenderCalls {
    /// What informers do not show yet is read with the client.
    pub fn new(extenders: Arc<Extenders>, listers: Listers, client: Client) -> Self {
        ExtenderCalls { extenders, listers, client }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.extenders.is_empty()
    }

    fn interested(&self, pod: &PodInfo) -> Vec<&Extender> {
        self.extenders.0.iter().filter(|extender| extender.is_interested(pod)).collect()
    }

    /// Takes the nodes away that extenders reject.
    ///
    /// # Errors
    /// The failure of an extender that is not ignorable.
    pub async fn filter(&self, pod: &PodInfo, snapshot: &Snapshot, found: &mut Found) -> Outcome {
        let before = found.feasible.len();
        for extender in self.interested(pod) {
            if found.feasible.is_empty() {
                break;
            }
            let Some(verb) = &extender.config.filter else { continue };
            match self.filtered(extender, verb, pod, &found.feasible).await {
                Ok((left, result)) => {
                    note(snapshot, found, result);
                    found.feasible = left;
                }
                Err(error) if extender.config.ignorable => skipped(extender, verb, &error),
                Err(error) => return Err(Status::error(error)),
            }
        }
        found.by_extenders = found.feasible.len() != before;
        Ok(())
    }

    async fn filtered(
        &self,
        extender: &Extender,
        verb: &str,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
    ) -> Result<(Vec<Arc<NodeInfo>>, FilterResult), ExtenderError> {
        let answer = self.ask(extender, verb, pod, nodes).await?;
        let mut result = FilterResult::parse(&answer).map_err(ExtenderError::Answer)?;
        if !result.error.is_empty() {
            return Err(ExtenderError::Answer(result.error));
        }
        let names = match (extender.config.node_cache_capable, result.node_names.take()) {
            (true, Some(names)) => names,
            _ => result.nodes.take().unwrap_or_default(),
        };
        let (mut seen, mut left) = (HashSet::new(), vec![]);
        let known: HashMap<&str, &Arc<NodeInfo>> = nodes.iter().map(|node| (node.name(), node)).collect();
        for name in names {
            let Some(node) = known.get(name.as_str()) else {
                return Err(ExtenderError::Answer(format!(
                    "extender {:?} claims a filtered node {name:?} which is not found in the input node list",
                    extender.config.url_prefix
                )));
            };
            if seen.insert(name) {
                left.push(Arc::clone(node));
            }
        }
        Ok((left, result))
    }

    /// The scores of nodes by all extenders, scaled to those of plugins. An extender that fails gives none.
    pub async fn prioritize(&self, pod: &PodInfo, nodes: &[Arc<NodeInfo>]) -> ExtenderScores {
        let mut calls = vec![];
        for extender in self.interested(pod) {
            if let Some(verb) = &extender.config.prioritize {
                calls.push(self.scored(extender, verb, pod, nodes));
            }
        }
        let mut sums = ExtenderScores::new();
        for (weight, scores) in join_all(calls).await {
            for (node, score) in scores {
                let scaled = score.saturating_mul(weight).saturating_mul(SCALE);
                let sum = sums.entry(node).or_default();
                *sum = sum.saturating_add(scaled);
            }
        }
        sums
    }

    async fn scored(
        &self,
        extender: &Extender,
        verb: &str,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
    ) -> (i64, Vec<(String, i64)>) {
        let answer = self.ask(extender, verb, pod, nodes).await;
        let scores = answer.and_then(|text| wire::scores(&text).map_err(ExtenderError::Answer));
        let scores = scores.inspect_err(|error| skipped(extender, verb, error));
        (extender.config.weight, scores.unwrap_or_default())
    }

    /// Sends a pod and nodes: their names if the extender knows them.
    async fn ask(
        &self,
        extender: &Extender,
        verb: &str,
        pod: &PodInfo,
        nodes: &[Arc<NodeInfo>],
    ) -> Result<Vec<u8>, ExtenderError> {
        let failed = |error| ExtenderError::Object { url: extender.config.url_prefix.clone(), error };
        let whole_pod = whole::pod(&self.listers, &self.client, pod).await.map_err(failed)?;
        let mut whole_nodes = vec![];
        if !extender.config.node_cache_capable {
            let known = self.listers.get::<WholeNode>();
            for node in nodes {
                whole_nodes.push(whole::node(&known, &self.client, node.name()).await.map_err(failed)?);
            }
        }
        let names = || nodes.iter().map(|node| node.name()).collect();
        let items = || whole_nodes.iter().map(|node| node.json()).collect();
        let args = ExtenderArgs {
            pod: whole_pod.json(),
            nodes: (!extender.config.node_cache_capable).then(|| Items { items: items() }),
            node_names: extender.config.node_cache_capable.then(names),
        };
        Ok(extender.transport.call(verb, encode(&args)?).await?)
    }

    /// Has extenders choose among the nodes that room could be made on.
    pub async fn preempt(&self, pod: &PodInfo, snapshot: &Snapshot, why: &mut Unschedulable) {
        let mut candidates = std::mem::take(&mut why.candidates);
        let mut asked = false;
        for extender in self.interested(pod) {
            let Some(verb) = &extender.config.preempt else { continue };
            if candidates.is_empty() {
                break;
            }
            asked = true;
            match self.preempted(extender, verb, pod, snapshot, &candidates).await {
                Ok(left) => candidates = left,
                Err(error) if extender.config.ignorable => skipped(extender, verb, &error),
                Err(error) => return no_room(why, &error.to_string()),
            }
        }
        if asked {
            let Some(best) = best_candidate(candidates) else {
                return no_room(why, "no candidate node for preemption");
            };
            why.nomination = Nomination::Node(best.node.name().to_owned());
            why.victims = best.victims;
        }
        why.tell_placement();
    }

    async fn preempted(
        &self,
        extender: &Extender,
        verb: &str,
        pod: &PodInfo,
        snapshot: &Snapshot,
        candidates: &[Candidate],
    ) -> Result<Vec<Candidate>, ExtenderError> {
        let failed = |error| ExtenderError::Object { url: extender.config.url_prefix.clone(), error };
        let preemptor = whole::pod(&self.listers, &self.client, pod).await.map_err(failed)?;
        let mut whole_victims: Vec<Vec<Arc<WholePod>>> = vec![];
        if !extender.config.node_cache_capable {
            for candidate in candidates {
                let mut all = vec![];
                for victim in &candidate.victims {
                    all.push(whole::pod(&self.listers, &self.client, victim).await.map_err(failed)?);
                }
                whole_victims.push(all);
            }
        }
        let meta = candidates.iter().map(|candidate| {
            let pods = candidate.victims.iter().map(|victim| wire::MetaPod { uid: victim.uid() }).collect();
            (candidate.node.name(), Victims { pods, violations: candidate.violations })
        });
        let whole = candidates.iter().zip(&whole_victims).map(|(candidate, victims)| {
            let pods: Vec<&RawValue> = victims.iter().map(|victim| victim.json()).collect();
            (candidate.node.name(), Victims { pods, violations: candidate.violations })
        });
        let capable = extender.config.node_cache_capable;
        let args = PreemptionArgs {
            pod: preemptor.json(),
            node_name_to_victims: (!capable).then(|| whole.collect::<BTreeMap<_, _>>()),
            node_name_to_meta_victims: capable.then(|| meta.collect::<BTreeMap<_, _>>()),
        };
        let answer = extender.transport.call(verb, encode(&args)?).await?;
        let chosen = wire::victims(&answer).map_err(ExtenderError::Answer)?;
        let mut left = vec![];
        for (name, uids, violations) in chosen {
            if uids.is_empty() {
                if extender.config.ignorable {
                    continue;
                }
                let text = format!("expected at least one victim pod on node {name:?}");
                return Err(ExtenderError::Answer(text));
            }
            left.push(candidate(extender, snapshot, &name, &uids, violations)?);
        }
        Ok(left)
    }

    /// Has the extender that binds pods bind this one. False if there is none for it.
    ///
    /// # Errors
    /// The failure of an extender that is not ignorable.
    pub async fn bind(&self, pod: &PodInfo, node: &str) -> Outcome<bool> {
        for extender in self.interested(pod) {
            let Some(verb) = &extender.config.bind else { continue };
            let meta = &pod.pod.metadata;
            let args = BindingArgs { name: &meta.name, namespace: &meta.namespace, uid: &meta.uid, node };
            match bound(extender, verb, &args).await {
                Err(error) if extender.config.ignorable => skipped(extender, verb, &error),
                outcome => return outcome.map(|()| true).map_err(Status::error),
            }
        }
        Ok(false)
    }
}

async fn bound(extender: &Extender, verb: &str, args: &BindingArgs<'_>) -> Result<(), ExtenderError> {
    let answer = extender.transport.call(verb, encode(args)?).await?;
    wire::bound(&answer).map_err(ExtenderError::Answer)
}

/// The nodes that an extender rejected have its reasons.
fn note(snapshot: &Snapshot, found: &mut Found, result: FilterResult) {
    let FilterResult { mut failed, unresolvable, .. } = result;
    failed.retain(|node, _| !unresolvable.contains_key(node));
    let failed = failed.into_iter().map(|(node, reason)| (node, Code::Unschedulable, reason));
    let unresolvable =
        unresolvable.into_iter().map(|(node, why)| (node, Code::UnschedulableAndUnresolvable, why));
    for (node, code, reason) in unresolvable.chain(failed) {
        if let Some(node) = snapshot.node(&node) {
            found.statuses.replace(node.slot, Status::new(code, reason));
        }
    }
}

/// What an extender chose to have deleted on a node.
fn candidate(
    extender: &Extender,
    snapshot: &Snapshot,
    name: &str,
    uids: &[String],
    violations: usize,
) -> Result<Candidate, ExtenderError> {
    let missing = || ExtenderError::Answer(format!("nodeinfo not found for node name {name:?}"));
    let node = snapshot.node(name).ok_or_else(missing)?;
    let victim = |uid: &String| {
        node.pods().find(|pod| pod.uid() == uid).cloned().ok_or_else(|| {
            ExtenderError::Answer(format!(
                "extender: {} claims to preempt pod (UID: {uid}) on node: {name}, but the pod is not found on that node",
                extender.config.url_prefix
            ))
        })
    };
    let victims = uids.iter().map(victim).collect::<Result<Vec<_>, _>>()?;
    Ok(Candidate { node: node.clone(), victims, violations })
}

fn no_room(why: &mut Unschedulable, text: &str) {
    why.victims.clear();
    why.nomination = Nomination::Keep;
    why.message = format!("{} preemption: {text}", why.message);
}

fn skipped(extender: &Extender, verb: &str, error: &ExtenderError) {
    tracing::info!(extender = extender.config.url_prefix, verb, %error, "skipped an extender that failed");
}
