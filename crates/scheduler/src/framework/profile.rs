//! A profile: the plugins of one scheduler name, in order, and how each extension point runs them.
//!
//! Invariant: a node is filtered with the pods that wait for room on it and are at least as important as the pod, and again
//! without them: neither their coming nor their staying away makes the decision wrong.

mod prepared;
#[cfg(test)]
mod tests;

pub use prepared::Prepared;

use super::{
    Code, Cycle, CycleState, Event, EventInterest, Filter, Hint, Listers, NodeStatuses, Nomination, Outcome,
    Permission, PermitWait, Plugin, Points, PostFiltered, PreFiltered, PreScored, QueueSort, Score, Status,
    points::MAX_SCORE,
};
use crate::{
    memory::Class,
    metrics::{Ending, FrameworkMetrics, Point, PointMeter, extension},
    pod_info::PodInfo,
    schedule_one::EXTENDER,
    snapshot::NodeInfo,
};
use prometheus_client::metrics::counter::Counter;
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};
use tokio::time::Instant;

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

/// A plugin's filter.
struct AskedFilter {
    place: usize,
    name: &'static str,
    filter: Arc<dyn Filter>,
    asked: Counter,
    metrics: FrameworkMetrics,
}

/// How often a plugin was asked beside its filter.
#[derive(Default)]
struct Asked {
    pre_filter: Counter,
    pre_score: Counter,
    score: Counter,
}

/// The plugins of one scheduler name.
pub struct Profile {
    /// What it is made of.
    pub config: ProfileConfig,
    /// Its plugins, in order; 64 at most.
    pub plugins: Vec<Weighted>,
    /// The filters again, with their places: the hottest list.
    filters: Vec<AskedFilter>,
    /// So many of them, from the first on, look at the node alone.
    local_filters: usize,
    /// The plugins that score by the node alone, by place.
    local_scores: Vec<(usize, Arc<dyn Score>)>,
    /// What plugins want another attempt for.
    interests: HashMap<&'static str, Vec<EventInterest>>,
    /// By place.
    asked: Vec<Asked>,
    /// How long extension points take.
    pub meter: PointMeter,
    extended: bool,
}

impl Profile {
    /// Of plugins in order.
    pub fn new(config: ProfileConfig, plugins: Vec<Weighted>) -> Self {
        let filters = plugins.iter().enumerate().filter_map(|(place, plugin)| {
            let (name, filter) = (plugin.points.plugin.name(), plugin.points.filter.clone()?);
            let (asked, metrics) = (Counter::default(), FrameworkMetrics::default());
            Some(AskedFilter { place, name, filter, asked, metrics })
        });
        let filters: Vec<_> = filters.collect();
        let local = |place: usize| plugins[place].points.plugin.looks_at_node_alone();
        let local_filters = filters.iter().take_while(|filter| local(filter.place)).count();
        let scores = plugins.iter().enumerate().filter(|(place, _)| local(*place));
        let local_scores = scores.filter_map(|(place, plugin)| Some((place, plugin.points.score.clone()?)));
        let local_scores = local_scores.collect();
        let interests = plugins.iter().map(|p| (p.points.plugin.name(), p.points.plugin.events()));
        let interests = interests.collect();
        let asked = plugins.iter().map(|_| Asked::default()).collect();
        let (meter, extended) = (PointMeter::default(), false);
        Profile { config, filters, local_filters, local_scores, interests, asked, meter, plugins, extended }
    }

    /// With extenders, which have a say in every decision.
    pub fn extended(self) -> Self {
        Profile { extended: true, ..self }
    }

    /// Whether there are extenders.
    pub fn is_extended(&self) -> bool {
        self.extended
    }

    /// Counts and times go into these metrics from now on.
    pub fn measure(&mut self, metrics: &FrameworkMetrics) {
        let profile = self.config.scheduler_name.as_str();
        self.meter = PointMeter::new(metrics.clone(), profile);
        for filter in &mut self.filters {
            filter.asked = metrics.asked(filter.name, Point::Filter, profile);
            filter.metrics = metrics.clone();
        }
        for (asked, plugin) in self.asked.iter_mut().zip(&self.plugins) {
            let (points, name) = (&plugin.points, plugin.points.plugin.name());
            for (present, point, counter) in [
                (points.pre_filter.is_some(), Point::PreFilter, &mut asked.pre_filter),
                (points.pre_score.is_some(), Point::PreScore, &mut asked.pre_score),
                (points.score.is_some(), Point::Score, &mut asked.score),
            ] {
                if present {
                    *counter = metrics.asked(name, point, profile);
                }
            }
        }
    }

    /// The plugins' names and extension points.
    pub fn points(&self) -> impl Iterator<Item = &Points> {
        self.plugins.iter().map(|plugin| &plugin.points)
    }

    /// Whether an event concerns a plugin, by name, and the plugin's hint is to queue the pod.
    pub fn wakes(&self, plugin: &str, pod: &PodInfo, event: &Event) -> bool {
        // What extenders reject pods for is not known.
        if plugin == EXTENDER {
            return true;
        }
        let Some((name, interests)) = self.interests.get_key_value(plugin) else { return false };
        let mut concerned = interests.iter().filter(|interest| interest.concerns(event));
        concerned.any(|interest| self.meter.hint(name, event, || interest.hint(pod, event)) == Hint::Queue)
    }

    /// The plugins that an event may concern, before any hint.
    pub fn interested<'a>(&'a self, event: &'a Event) -> impl Iterator<Item = &'static str> + 'a {
        let concerned = move |list: &[EventInterest]| list.iter().any(|interest| interest.concerns(event));
        let plugins = self.interests.iter().filter(move |(_, list)| concerned(list)).map(|(name, _)| *name);
        plugins.chain(self.extended.then_some(EXTENDER))
    }

    /// The plugin that orders the queue.
    pub fn queue_sort(&self) -> Option<&Arc<dyn QueueSort>> {
        self.points().find_map(|p| p.queue_sort.as_ref())
    }

    /// The first plugin that keeps a pod out of the queue.
    pub fn pre_enqueue(&self, pod: &PodInfo, listers: &Listers) -> Outcome {
        let timed = self.meter.samples_queued();
        self.meter.timed(Point::PreEnqueue, || {
            self.points().try_for_each(|p| {
                let (name, Some(point)) = (p.plugin.name(), &p.pre_enqueue) else { return Ok(()) };
                let at = (name, extension::PRE_ENQUEUE);
                let outcome = self.meter.plugin(timed, at, Ending::of, || point.pre_enqueue(pod, listers));
                outcome.map_err(|s| s.by(name))
            })
        })
    }

    /// Runs the pre-filters. After a rejection that removing pods may resolve the others run too: preemption needs their state.
    ///
    /// # Errors
    /// The status of the one that rejects the pod, or that leaves no node.
    pub fn pre_filter(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<Prepared> {
        self.meter.timed(Point::PreFilter, || self.run_pre_filters(cycle, state))
    }

    fn run_pre_filters(&self, cycle: &Cycle<'_>, state: &mut CycleState) -> Outcome<Prepared> {
        let mut prepared = Prepared { nodes: None, plugins: BTreeSet::new() };
        let mut rejected = None;
        for (place, plugin) in self.plugins.iter().enumerate() {
            let name = plugin.points.plugin.name();
            let Some(point) = &plugin.points.pre_filter else { continue };
            let (at, timed) = ((name, extension::PRE_FILTER), state.timed);
            let filtered =
                self.meter.plugin(timed, at, PreFiltered::ending, || point.pre_filter(cycle, state));
            if !matches!(filtered, Ok(PreFiltered::Skip)) {
                self.asked[place].pre_filter.inc();
            }
            match filtered {
                Err(status) if status.code == Code::Unschedulable => rejected = Some(status.by(name)),
                Err(status) => return Err(status.at("PreFilter", name)),
                Ok(PreFiltered::AllNodes) => {}
                Ok(PreFiltered::Skip) => state.skip_filter |= 1 << place,
                Ok(PreFiltered::Nodes(nodes)) => {
                    prepared.plugins.insert(name);
                    let left = match prepared.nodes.take() {
                        Some(former) => former.intersection(&nodes).cloned().collect(),
                        None => nodes,
                    };
                    if left.is_empty() {
                        return Err(prepared.no_node_left().by(name));
                    }
                    prepared.nodes = Some(left);
                }
            }
        }
        rejected.map_or(Ok(prepared), Err)
    }

    /// Runs the filters on one node, as it is.
    pub fn filter(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        run(&self.filters, cycle, state, node)
    }

    /// Runs all filters on one node, as it is: every rejection, not only the first.
    pub fn filter_all(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Vec<Status> {
        let asked = self.filters.iter().filter(|filter| state.skip_filter & (1 << filter.place) == 0);
        asked.filter_map(|filter| filter.ask(cycle, state, node).err()).collect()
    }

    /// Runs the filters on a node of the table, with what is known of it.
    pub fn filter_known(
        &self,
        cycle: &Cycle<'_>,
        state: &CycleState,
        node: &NodeInfo,
        class: &mut Class,
    ) -> Outcome {
        if !cycle.nominator.is_empty() && !cycle.nominator.on(node.name()).is_empty() {
            return self.filter_with_nominated(cycle, state, node);
        }
        // Whether a node has devices for extended resources depends on more than the node.
        let known = if cycle.pod.request.other.is_empty() { self.local_filters } else { 0 };
        let (local, others) = self.filters.split_at(known);
        let generation = cycle.snapshot.generation(node.slot);
        class.verdict((node.slot, generation), || run(local, cycle, state, node))?;
        run(others, cycle, state, node)
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

    /// Runs the post-filters until one makes room; `None` without any. The reasons of those that could not help are joined, and
    /// what they want written is not lost.
    pub fn post_filter(
        &self,
        cycle: &Cycle<'_>,
        state: &CycleState,
        statuses: &NodeStatuses,
    ) -> Option<PostFiltered> {
        let since = Instant::now();
        let mut all: Option<PostFiltered> = None;
        for points in self.points() {
            let Some(point) = &points.post_filter else { continue };
            let at = (points.plugin.name(), extension::POST_FILTER);
            let ending = |made: &PostFiltered| Ending::from(&made.status);
            let mut result = self
                .meter
                .plugin(state.timed, at, ending, || point.post_filter(self, cycle, state, statuses));
            result.status = result.status.map_err(|status| status.by(points.plugin.name()));
            let done = !matches!(&result.status, Err(status) if status.code == Code::Unschedulable);
            if let Some(former) = all.take() {
                result = after(former, result);
            }
            all = Some(result);
            if done {
                break;
            }
        }
        if let Some(all) = &all {
            self.meter.observe(Point::PostFilter, Ending::from(&all.status), since);
        }
        all
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
        class: &mut Class,
    ) -> Outcome<Vec<i64>> {
        self.meter.timed(Point::PreScore, || self.run_pre_scores(cycle, state, nodes))?;
        self.meter.timed(Point::Score, || Ok(self.run_scores(cycle, state, nodes, class)))
    }

    fn run_pre_scores(&self, cycle: &Cycle<'_>, state: &mut CycleState, nodes: &[Arc<NodeInfo>]) -> Outcome {
        for (place, plugin) in self.plugins.iter().enumerate() {
            let Some(point) = &plugin.points.pre_score else { continue };
            let (at, timed) = ((plugin.points.plugin.name(), extension::PRE_SCORE), state.timed);
            let scored =
                self.meter.plugin(timed, at, PreScored::ending, || point.pre_score(cycle, state, nodes));
            if !matches!(scored, Ok(PreScored::Skip)) {
                self.asked[place].pre_score.inc();
            }
            // Even a rejection is a failure here.
            let failed = |status| Status { code: Code::Error, ..status }.at("PreScore", at.0);
            if scored.map_err(failed)? == PreScored::Skip {
                state.skip_score |= 1 << place;
            }
        }
        Ok(())
    }

    fn run_scores(
        &self,
        cycle: &Cycle<'_>,
        state: &CycleState,
        nodes: &[Arc<NodeInfo>],
        class: &mut Class,
    ) -> Vec<i64> {
        let mut sums = vec![0_i64; nodes.len()];
        let mut scores = vec![0_i64; nodes.len()];
        let known = self.known_scores(cycle, state, nodes, class);
        for (place, plugin) in self.plugins.iter().enumerate() {
            let Some(point) = plugin.points.score.as_ref().filter(|_| state.skip_score & (1 << place) == 0)
            else {
                continue;
            };
            match known.iter().find(|(of, _)| *of == place) {
                Some((_, column)) => scores.copy_from_slice(column),
                None => {
                    self.asked[place].score.inc_by(nodes.len() as u64);
                    for (score, node) in scores.iter_mut().zip(nodes) {
                        *score = self.score_of(place, &**point, cycle, state, node);
                    }
                }
            }
            let at = (plugin.points.plugin.name(), extension::NORMALIZE);
            self.meter.plugin(
                state.timed,
                at,
                |()| Ending::Success,
                || point.normalize(cycle, state, nodes, &mut scores),
            );
            for (sum, score) in sums.iter_mut().zip(&scores) {
                *sum += plugin.weight * (*score).clamp(0, MAX_SCORE);
            }
        }
        sums
    }

    /// A node's score by the plugin at a place.
    fn score_of(
        &self,
        place: usize,
        point: &dyn Score,
        cycle: &Cycle<'_>,
        state: &CycleState,
        node: &NodeInfo,
    ) -> i64 {
        let at = (self.plugins[place].points.plugin.name(), extension::SCORE);
        self.meter.plugin(state.timed, at, |_| Ending::Success, || point.score(cycle, state, node))
    }

    /// The scores of nodes by the plugins that look at a node alone, each with its place.
    fn known_scores(
        &self,
        cycle: &Cycle<'_>,
        state: &CycleState,
        nodes: &[Arc<NodeInfo>],
        class: &mut Class,
    ) -> Vec<(usize, Vec<i64>)> {
        let column = |(place, _): &(usize, Arc<dyn Score>)| (*place, Vec::with_capacity(nodes.len()));
        let mut columns: Vec<(usize, Vec<i64>)> = self.local_scores.iter().map(column).collect();
        for node in nodes {
            let generation = cycle.snapshot.generation(node.slot);
            let row = class.scores((node.slot, generation), self.local_scores.len(), |scores| {
                for (score, (place, point)) in scores.iter_mut().zip(&self.local_scores) {
                    self.asked[*place].score.inc();
                    *score = self.score_of(*place, &**point, cycle, state, node);
                }
            });
            columns.iter_mut().zip(row).for_each(|((_, column), score)| column.push(*score));
        }
        columns
    }

    /// Runs the reservations; after a failure everything is unreserved again, in reverse order.
    pub fn reserve(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome {
        let reserved = self.meter.timed(Point::Reserve, || {
            self.points().try_for_each(|points| match &points.reserve {
                Some(point) => {
                    let (name, timed) = (points.plugin.name(), state.timed);
                    let reserve = || point.reserve(cycle, state, node);
                    let reserved = self.meter.plugin(timed, (name, extension::RESERVE), Ending::of, reserve);
                    reserved.map_err(|s| s.at("Reserve", name))
                }
                None => Ok(()),
            })
        });
        if reserved.is_err() {
            self.unreserve(cycle.pod, state, node);
        }
        reserved
    }

    /// Asks for permits: the plugins that the pod has to wait for.
    ///
    /// # Errors
    /// The status of the plugin that refuses it.
    pub fn permit(&self, cycle: &Cycle<'_>, state: &mut CycleState, node: &str) -> Outcome<Vec<PermitWait>> {
        /// Upstream's limit.
        const LONGEST: Duration = Duration::from_secs(15 * 60);
        let since = Instant::now();
        let mut ask = || -> Outcome<Vec<PermitWait>> {
            let mut waits = vec![];
            for points in self.points() {
                let Some(point) = &points.permit else { continue };
                let (name, timed) = (points.plugin.name(), state.timed);
                let permit = || point.permit(cycle, state, node);
                let at = (name, extension::PERMIT);
                let permitted = self.meter.plugin(timed, at, Permission::ending, permit);
                match permitted.map_err(|s| s.at("Permit", name))? {
                    Permission::Allow => {}
                    Permission::Wait(longest) => {
                        waits.push(PermitWait { plugin: name, longest: longest.min(LONGEST) });
                    }
                }
            }
            Ok(waits)
        };
        let outcome = ask();
        let ending = match &outcome {
            Ok(waits) if !waits.is_empty() => Ending::Wait,
            outcome => Ending::from(outcome),
        };
        self.meter.observe(Point::Permit, ending, since);
        outcome
    }

    /// Undoes the reservations, in reverse order.
    pub fn unreserve(&self, pod: &PodInfo, state: &mut CycleState, node: &str) {
        let since = Instant::now();
        for points in self.plugins.iter().rev().map(|plugin| &plugin.points) {
            let Some(point) = &points.reserve else { continue };
            let (at, timed) = ((points.plugin.name(), extension::UNRESERVE), state.timed);
            self.meter.plugin(timed, at, |()| Ending::Success, || point.unreserve(pod, state, node));
        }
        self.meter.observe(Point::Unreserve, Ending::Success, since);
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

/// What a post-filter decided after one that could not help.
fn after(former: PostFiltered, mut result: PostFiltered) -> PostFiltered {
    result.writes.splice(..0, former.writes);
    if let (Err(was), Err(is)) = (former.status, &mut result.status)
        && matches!(is.code, Code::Unschedulable | Code::Pending)
    {
        is.reasons = was.reasons.iter().chain(is.reasons.iter()).cloned().collect::<Vec<_>>().into();
    }
    if result.nomination == Nomination::Keep {
        result.nomination = former.nomination;
    }
    result
}

impl AskedFilter {
    fn run(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        let asked = self.ask(cycle, state, node);
        asked.map_err(|status| status.failed(|| format!("running {:?} filter plugin: ", self.name)))
    }

    fn ask(&self, cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
        self.asked.inc();
        let at = (self.name, extension::FILTER);
        let filtered =
            self.metrics.plugin(state.timed, at, Ending::of, || self.filter.filter(cycle, state, node));
        filtered.map_err(|status| status.by(self.name))
    }
}

/// Runs filters on a node, except those that have nothing to filter.
fn run(filters: &[AskedFilter], cycle: &Cycle<'_>, state: &CycleState, node: &NodeInfo) -> Outcome {
    let mut asked = filters.iter().filter(|filter| state.skip_filter & (1 << filter.place) == 0);
    asked.try_for_each(|filter| filter.run(cycle, state, node))
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
