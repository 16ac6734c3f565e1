//! A profile: the plugins of one scheduler name, in order, and how each extension point runs them.
//!
//! Invariant: a node is filtered with the pods that wait for room on it and are at least as important as the pod, and again
//! without them: neither their coming nor their staying away makes the decision wrong.

use super::{
    Code, Cycle, CycleState, Event, EventInterest, Filter, NodeNames, NodeStatuses, Outcome, Plugin, Points,
    PostFiltered, PreFiltered, PreScored, QueueSort, Status, points::MAX_SCORE,
};
use crate::{
    pod_info::PodInfo,
    snapshot::{NodeInfo, Snapshot},
};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// What a profile is made of, beside its plugins.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProfileConfig {
    /// `default-scheduler`
    pub scheduler_name: String,
    /// Feasible nodes to find before scoring, in percent of all; `None` or 0 adapts to their number.
    pub percentage_of_nodes_to_score: Option<u32>,
}

/// A plugin with the factor of its score.
pub struct Weighted {
    /// Its extension points.
    pub points: Points,
    /// The factor.
    pub weight: i64,
}

/// The plugins of one scheduler name.
pub struct Profile {
    /// What it is made of.
    pub config: ProfileConfig,
    /// Its plugins, in order; 64 at most.
    pub plugins: Vec<Weighted>,
    /// The filters again, with their places: the hottest list.
    filters: Vec<(usize, &'static str, Arc<dyn Filter>)>,
    /// What plugins want another attempt for.
    interests: HashMap<&'static str, Vec<EventInterest>>,
}

/// The outcome of all pre-filters.
pub struct Prepared {
    /// The only nodes that are worth filtering, if not all are.
    pub nodes: Option<NodeNames>,
    /// The plugins that said so.
    pub plugins: BTreeSet<&'static str>,
}

impl Profile {
    /// Of plugins in order.
    pub fn new(config: ProfileConfig, plugins: Vec<Weighted>) -> Self {
        let filters = plugins.iter().enumerate().filter_map(|(place, plugin)| {
            Some((place, plugin.points.plugin.name(), plugin.points.filter.clone()?))
        });
        let interests = plugins.iter().map(|p| (p.points.plugin.name(), p.points.plugin.events()));
        Profile { config, filters: filters.collect(), interests: interests.collect(), plugins }
    }

    /// The plugins' names and extension points.
    pub fn points(&self) -> impl Iterator<Item = &Points> {
        self.plugins.iter().map(|plugin| &plugin.points)
    }

    /// Whether an event concerns a plugin, by name, and the plugin's hint is to queue the pod.
    pub fn wakes(&self, plugin: &str, pod: &PodInfo, event: &Event) -> bool {
        let interests = self.interests.get(plugin);
        interests.is_some_and(|interests| interests.iter().any(|interest| interest.wakes(pod, event)))
    }

    /// The plugins that an event may concern, before any hint.
    pub fn interested<'a>(&'a self, event: &'a Event) -> impl Iterator<Item = &'static str> + 'a {
        let concerns =
            |i: &EventInterest| i.resource == event.resource && i.actions.intersects(event.actions);
        self.interests.iter().filter(move |(_, list)| list.iter().any(concerns)).map(|(name, _)| *name)
    }

    /// The plugin that orders the queue.
    pub fn queue_sort(&self) -> Option<&Arc<dyn QueueSort>> {
        self.points().find_map(|p| p.queue_sort.as_ref())
    }

    /// The first plugin that keeps a pod out of the queue.
    pub fn pre_enqueue(&self, pod: &PodInfo) -> Outcome {
        self.points().try_for_each(|p| match &p.pre_enqueue {
            Some(point) => point.pre_enqueue(pod).map_err(|s| s.by(p.plugin.name())),
            None => Ok(()),
        })
    }

    /// Runs the pre-filters. After a rejection that removing pods may resolve the others run too: preemption needs their state.
    ///
    /// # Errors
    /// The status of the one that rejects the pod, or that leaves no node.
    pub fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<Prepared> {
        let mut prepared = Prepared { nodes: None, plugins: BTreeSet::new() };
        let mut rejected = None;
        for (place, plugin) in self.plugins.iter().enumerate() {
            let name = plugin.points.plugin.name();
            let Some(point) = &plugin.points.pre_filter else { continue };
            match point.pre_filter(cycle, state) {
                Err(status) if status.code == Code::Unschedulable => rejected = Some(status.by(name)),
                Err(status) => return Err(status.by(name)),
                Ok(PreFiltered::AllNodes) => {}
                Ok(PreFiltered::Skip) => state.skip_filter |= 1 << place,
                Ok(PreFiltered::Nodes(nodes)) => {
                    prepared.plugins.insert(name);
                    let left = match prepared.nodes.take() {
                        Some(former) => former.intersection(&nodes).cloned().collect(),
                        None => nodes,
                    };
                    if left.is_empty() {
                        return Err(no_node_left(&prepared.plugins).by(name));
                    }
                    prepared.nodes = Some(left);
                }
            }
        }
        rejected.map_or(Ok(prepared), Err)
    }

    /// Runs the filters on one node, as it is.
    pub fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        for (place, name, filter) in &self.filters {
            if state.skip_filter & (1 << place) == 0
                && let Err(status) = filter.filter(cycle, state, node)
            {
                return Err(status.by(name));
            }
        }
        Ok(())
    }

    /// Runs the filters on one node with the more important pods that are nominated for it, then without them.
    pub fn filter_with_nominated(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let nominated = cycle.nominator.on(node.name());
        let more_important =
            |p: &&Arc<PodInfo>| p.priority() >= cycle.pod.priority() && p.uid() != cycle.pod.uid();
        let mut nominated = nominated.iter().filter(more_important).peekable();
        if nominated.peek().is_some() {
            let (mut node, mut state) = (node.clone(), state.clone());
            for pod in nominated {
                node.add_pod(pod);
                self.add_pod(cycle, &mut state, pod, &node);
            }
            self.filter(cycle, &state, &node)?;
        }
        self.filter(cycle, state, node)
    }

    /// Brings the state up to date after a pod was added to a copy of a node.
    pub fn add_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, added: &PodInfo, node: &NodeInfo) {
        for (place, plugin) in self.plugins.iter().enumerate() {
            if let Some(point) =
                plugin.points.pre_filter.as_ref().filter(|_| state.skip_filter & (1 << place) == 0)
            {
                point.add_pod(cycle, state, added, node);
            }
        }
    }

    /// Brings the state up to date after a pod was removed from a copy of a node.
    pub fn remove_pod(&self, cycle: &Cycle<'_>, state: &mut CycleState, removed: &PodInfo, node: &NodeInfo) {
        for (place, plugin) in self.plugins.iter().enumerate() {
            if let Some(point) =
                plugin.points.pre_filter.as_ref().filter(|_| state.skip_filter & (1 << place) == 0)
            {
                point.remove_pod(cycle, state, removed, node);
            }
        }
    }

    /// Runs the post-filters until one makes room; `None` without any.
    pub fn post_filter(
        &self,
        cycle: &Cycle<'_>,
        state: &CycleState,
        statuses: &NodeStatuses,
    ) -> Option<PostFiltered> {
        let mut last: Option<PostFiltered> = None;
        for points in self.points() {
            let Some(point) = &points.post_filter else { continue };
            let mut result = point.post_filter(self, cycle, state, statuses);
            result.status = result.status.map_err(|status| status.by(points.plugin.name()));
            let done = result.status.is_ok();
            last = Some(result);
            if done {
                break;
            }
        }
        last
    }

    /// Scores nodes: for each the weighted sum of the plugins' scores.
    ///
    /// # Errors
    /// The failure of a plugin.
    pub fn score(
        &self,
        cycle: &Cycle<'_>,
        state: &mut CycleState,
        nodes: &[Arc<NodeInfo>],
    ) -> Outcome<Vec<i64>> {
        for (place, plugin) in self.plugins.iter().enumerate() {
            let Some(point) = &plugin.points.pre_score else { continue };
            let scored = point.pre_score(cycle, state, nodes);
            if scored.map_err(|status| status.by(plugin.points.plugin.name()))? == PreScored::Skip {
                state.skip_score |= 1 << place;
            }
        }
        let mut sums = vec![0_i64; nodes.len()];
        let mut scores = vec![0_i64; nodes.len()];
        for (place, plugin) in self.plugins.iter().enumerate() {
            let Some(point) = plugin.points.score.as_ref().filter(|_| state.skip_score & (1 << place) == 0)
            else {
                continue;
            };
            for (score, node) in scores.iter_mut().zip(nodes) {
                *score = point.score(cycle, state, node);
            }
            point.normalize(cycle, state, nodes, &mut scores);
            for (sum, score) in sums.iter_mut().zip(&scores) {
                *sum += plugin.weight * (*score).clamp(0, MAX_SCORE);
            }
        }
        Ok(sums)
    }

    /// Runs the reservations; after a failure everything is unreserved again, in reverse order.
    pub fn reserve(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome {
        for points in self.points() {
            let Some(point) = &points.reserve else { continue };
            if let Err(status) = point.reserve(cycle, state, node) {
                self.unreserve(cycle.pod, state, node);
                return Err(status.by(points.plugin.name()));
            }
        }
        Ok(())
    }

    /// Undoes the reservations, in reverse order.
    pub fn unreserve(&self, pod: &PodInfo, state: &mut CycleState, node: &str) {
        for point in self.plugins.iter().rev().filter_map(|p| p.points.reserve.as_ref()) {
            point.unreserve(pod, state, node);
        }
    }

    /// How many feasible nodes are enough, of so many.
    pub fn nodes_to_find(&self, nodes: usize) -> usize {
        /// Upstream's least number of feasible nodes, and least percentage.
        const LEAST: usize = 100;
        const LEAST_PERCENT: usize = 5;
        if nodes < LEAST {
            return nodes;
        }
        let configured = self.config.percentage_of_nodes_to_score.unwrap_or_default() as usize;
        let percent = match configured {
            0 => 50_usize.saturating_sub(nodes / 125).max(LEAST_PERCENT),
            percent => percent,
        };
        (nodes * percent / 100).clamp(LEAST, nodes)
    }
}

fn no_node_left(plugins: &BTreeSet<&'static str>) -> Status {
    let names: Vec<&str> = plugins.iter().copied().collect();
    let text = format!("node(s) didn't satisfy plugin(s) {} simultaneously", list(&names));
    match names.as_slice() {
        [one] => Status::unresolvable(format!("node(s) didn't satisfy plugin {one}")),
        _ => Status::unresolvable(text),
    }
}

/// Names as Go prints a slice: `[A B]`.
pub fn list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

impl Prepared {
    /// What is said of the nodes that are not worth filtering.
    pub fn others(&self) -> Option<Status> {
        self.nodes.as_ref()?;
        let names: Vec<&str> = self.plugins.iter().copied().collect();
        Some(Status::unresolvable(format!("node(s) didn't satisfy plugin(s) {}", list(&names))))
    }

    /// The nodes to filter that there are, in the order of the snapshot from a place on.
    pub fn candidates<'a>(&'a self, snapshot: &'a Snapshot, from: usize) -> Candidates<'a> {
        let nodes = self
            .nodes
            .as_ref()
            .map(|names| names.iter().filter_map(|name| snapshot.node(name)).cloned().collect::<Vec<_>>());
        let len = nodes.as_ref().map_or(snapshot.len(), Vec::len);
        Candidates { snapshot, nodes, from, len }
    }
}

/// The nodes to filter.
pub struct Candidates<'a> {
    snapshot: &'a Snapshot,
    nodes: Option<Vec<Arc<NodeInfo>>>,
    from: usize,
    len: usize,
}

impl Candidates<'_> {
    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// One of them.
    pub fn nth(&self, place: usize) -> Option<&Arc<NodeInfo>> {
        let place = (self.from + place) % self.len.max(1);
        match &self.nodes {
            Some(nodes) => nodes.get(place),
            None => self.snapshot.nth(place),
        }
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plugins: Vec<&str> = self.points().map(|points| points.plugin.name()).collect();
        f.debug_struct("Profile").field("config", &self.config).field("plugins", &plugins).finish()
    }
}

/// A plugin of which the name is known.
impl std::fmt::Debug for dyn Plugin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
