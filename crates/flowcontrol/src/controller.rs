//! From configuration objects to routes: which FlowSchema leads where, and how many seats each priority level has.
//!
//! Invariants:
//! - `exempt` and `catch-all` always exist, with default values if they have not been created.
//! - A priority level that is no longer wanted keeps its queues until they have run empty.
//! - Requests read one immutable table; only a change of the configuration, and the adjustment of limits, take the
//!   controller's own lock.

use crate::{
    Digest, Nanos,
    allocation::{Item, allocate},
    bootstrap,
    config::{CATCH_ALL, Condition, EXEMPT, FlowSchema, PriorityLevel},
    demand::Demand,
    metrics::{FlowMetrics, SchemaMetrics, level as level_label},
    queue_set::{QueueSet, Settings},
    retry::Dropped,
};
use arc_swap::ArcSwap;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// How often limits follow demand.
pub const ADJUSTMENT: std::time::Duration = std::time::Duration::from_secs(10);
/// The most that one request may take of its level, of the nominal seats.
const MOST_OF_LEVEL: f64 = 0.15;

/// A priority level's queues.
pub struct Level<T> {
    /// Its name.
    pub name: String,
    queues: Mutex<QueueSet<T>>,
    dropped: Mutex<Dropped>,
}

impl<T> Level<T> {
    /// Its queues; held for moments only.
    pub fn queues(&self) -> MutexGuard<'_, QueueSet<T>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a rejection in this second (of any steady count) and answers `Retry-After` in seconds.
    pub fn dropped(&self, second: u64) -> u64 {
        self.dropped.lock().unwrap_or_else(PoisonError::into_inner).record(second)
    }
}

/// Where the requests of a FlowSchema go.
pub struct Route<T> {
    /// The FlowSchema.
    pub schema: FlowSchema,
    /// Its priority level.
    pub level: Arc<Level<T>>,
    /// The PriorityLevelConfiguration's uid.
    pub level_uid: String,
    /// Whether its requests are never held back.
    pub exempt: bool,
    /// Whether flows matter: there is more than one queue.
    pub sharded: bool,
    /// The most seats of one request; 0 when the level does not say.
    pub most_seats: u32,
    /// Its metrics.
    pub metrics: Arc<SchemaMetrics>,
}

/// The table that requests read.
pub struct Active<T> {
    /// By precedence.
    pub routes: Vec<Route<T>>,
    /// Index of the route for what nothing is about.
    catch_all: usize,
}

impl<T> Active<T> {
    /// The route of a request.
    pub fn classify(&self, digest: &Digest<'_>) -> &Route<T> {
        let found = self.routes.iter().find(|r| r.schema.matches(digest));
        // There is a route for catch-all in every table.
        found.unwrap_or(&self.routes[self.catch_all])
    }
}

/// Seats of a level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Its part by its shares.
    pub nominal: i64,
    /// What it does not lend.
    pub least: i64,
    /// Nominal and what it may borrow.
    pub most: i64,
    /// For now.
    pub current: i64,
}

pub(crate) struct LevelState<T> {
    pub(crate) config: PriorityLevel,
    pub(crate) level: Arc<Level<T>>,
    pub(crate) quiescing: bool,
    limits: Limits,
    demand: Demand,
    /// Its limits are still to be set for the first time.
    fresh: bool,
}

struct Inner<T> {
    levels: BTreeMap<String, LevelState<T>>,
    nominal_sum: i64,
}

/// A FlowSchema's condition that has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marking {
    /// The FlowSchema.
    pub schema: String,
    /// What its `Dangling` condition should be.
    pub condition: Condition,
}

/// See the file's text. `T` is a waiting request's token; those that come back must be woken by the caller.
pub struct Controller<T> {
    seats: u32,
    /// Its metrics.
    pub metrics: FlowMetrics,
    inner: Mutex<Inner<T>>,
    active: ArcSwap<Active<T>>,
}

impl<T> Controller<T> {
    /// A controller of so many seats, with the mandatory configuration only.
    pub fn new(seats: u32, now: Nanos) -> Self {
        let inner = Inner { levels: BTreeMap::new(), nominal_sum: 0 };
        let controller = Controller {
            seats,
            metrics: FlowMetrics::default(),
            inner: Mutex::new(inner),
            active: ArcSwap::from_pointee(Active { routes: vec![], catch_all: 0 }),
        };
        let (_, woken) = controller.configure(now, vec![], vec![]);
        debug_assert!(woken.is_empty());
        controller
    }

    /// The present table.
    pub fn active(&self) -> arc_swap::Guard<Arc<Active<T>>> {
        self.active.load()
    }

    pub(crate) fn levels<R>(&self, read: impl FnOnce(&BTreeMap<String, LevelState<T>>) -> R) -> R {
        read(&self.lock().levels)
    }

    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits of a level.
    pub fn limits(&self, level: &str) -> Option<Limits> {
        self.lock().levels.get(level).map(|l| l.limits)
    }

    /// Takes in the whole configuration anew. Returns which conditions of FlowSchemas have to change, and the
    /// requests that may execute now.
    pub fn configure(
        &self,
        now: Nanos,
        levels: Vec<PriorityLevel>,
        mut schemas: Vec<FlowSchema>,
    ) -> (Vec<Marking>, Vec<T>) {
        let mut inner = self.lock();
        let wanted: std::collections::BTreeSet<String> = levels.iter().map(|l| l.name.clone()).collect();
        inner.take_levels(now, levels);
        let mut markings = vec![];
        schemas.retain(|schema| {
            let found = wanted.contains(&schema.level);
            let condition = schema.wanted_condition(found);
            if condition != schema.dangling {
                markings.push(Marking { schema: schema.name.clone(), condition });
            }
            found
        });
        schemas.sort_by(|a, b| (a.precedence, &a.name).cmp(&(b.precedence, &b.name)));
        add_mandatory(&mut schemas);
        let shares: f64 = inner.levels.values().map(|l| f64::from(l.config.shares)).sum();
        inner.nominal_sum = 0;
        for state in inner.levels.values_mut() {
            state.divide(self.seats, shares, &self.metrics);
        }
        inner.nominal_sum = inner.levels.values().map(|l| l.limits.nominal).sum();
        let woken = inner.adjust(now, self.seats, &self.metrics);
        let routes: Vec<Route<T>> =
            schemas.into_iter().filter_map(|schema| inner.route(schema, &self.metrics)).collect();
        let catch_all = routes.iter().position(|r| r.schema.name == CATCH_ALL).unwrap_or(routes.len() - 1);
        self.active.store(Arc::new(Active { routes, catch_all }));
        (markings, woken)
    }

    /// Lets limits follow demand, every [`ADJUSTMENT`]. Returns the requests that may execute now.
    pub fn adjust(&self, now: Nanos) -> Vec<T> {
        let mut inner = self.lock();
        let unused = |l: &LevelState<T>| l.quiescing && l.level.queues().idle();
        if inner.levels.values().any(unused) {
            inner.levels.retain(|_, l| !unused(l));
            let shares: f64 = inner.levels.values().map(|l| f64::from(l.config.shares)).sum();
            for state in inner.levels.values_mut() {
                state.divide(self.seats, shares, &self.metrics);
            }
            inner.nominal_sum = inner.levels.values().map(|l| l.limits.nominal).sum();
        }
        inner.adjust(now, self.seats, &self.metrics)
    }
}

/// The mandatory FlowSchemas in their places, where the configuration lacks them.
fn add_mandatory(schemas: &mut Vec<FlowSchema>) {
    for (object, _) in bootstrap::flow_schemas().iter().filter(|(_, mandatory)| *mandatory) {
        let schema = FlowSchema::parse(object);
        if schemas.iter().any(|s| s.name == schema.name) {
            continue;
        }
        if schema.name == EXEMPT {
            schemas.insert(0, schema);
        } else {
            schemas.push(schema);
        }
    }
}

impl<T> Inner<T> {
    /// The levels of the new configuration; those it lacks stay while they are in use or mandatory.
    fn take_levels(&mut self, now: Nanos, levels: Vec<PriorityLevel>) {
        let mut old = std::mem::take(&mut self.levels);
        for config in levels {
            let state = match old.remove(&config.name) {
                Some(state) => LevelState { config, quiescing: false, ..state },
                None => LevelState::new(config, now),
            };
            self.levels.insert(state.config.name.clone(), state);
        }
        for (name, state) in old {
            if name == EXEMPT || name == CATCH_ALL {
                self.levels.insert(name, state);
            } else if !state.level.queues().idle() {
                self.levels.insert(name, LevelState { quiescing: true, ..state });
            }
        }
        for (object, _) in bootstrap::priority_levels().iter().filter(|(_, mandatory)| *mandatory) {
            // The mandatory ones read; a test says so.
            if let Ok(config) = PriorityLevel::parse(object) {
                self.levels.entry(config.name.clone()).or_insert_with(|| LevelState::new(config, now));
            }
        }
    }

    fn route(&self, schema: FlowSchema, metrics: &FlowMetrics) -> Option<Route<T>> {
        let state = self.levels.get(&schema.level)?;
        let queuing = state.config.queuing;
        let most_seats = queuing.map_or(0, |q| {
            let nominal = state.limits.nominal;
            let part = (nominal as f64 * MOST_OF_LEVEL).ceil() as i64;
            part.min(nominal / i64::from(q.hand)).max(1) as u32
        });
        Some(Route {
            level: state.level.clone(),
            level_uid: state.config.uid.clone(),
            exempt: state.config.exempt,
            sharded: queuing.is_some_and(|q| q.queues > 1),
            most_seats,
            metrics: Arc::new(metrics.schema(&state.config.name, &schema.name)),
            schema,
        })
    }

    /// Source: KEP-1040, borrowing: each level gets seats by its demand, between what it does not lend and what it may
    /// borrow; exempt levels take theirs first.
    fn adjust(&mut self, now: Nanos, seats: u32, metrics: &FlowMetrics) -> Vec<T> {
        let mut left = self.nominal_sum;
        let (mut least_sum, mut wanted_sum, mut items) = (0, 0, vec![]);
        for state in self.levels.values_mut() {
            let observed = state.level.queues().demand.take(now);
            state.demand.update(observed);
            let wanted = state.wanted();
            if state.config.exempt {
                left -= wanted;
            } else {
                let low = wanted as f64;
                items.push(Item {
                    low,
                    high: state.limits.most as f64,
                    target: low.max(state.demand.smoothed),
                });
                least_sum += state.limits.least;
                wanted_sum += wanted;
            }
        }
        let tight = left <= wanted_sum;
        let solved = if tight { None } else { allocate(self.nominal_sum as f64, &items).ok() };
        metrics.fair.set(solved.as_ref().map_or(0.0, |(_, fair)| *fair));
        let part = if left <= least_sum {
            0.0
        } else {
            (left - least_sum) as f64 / ((wanted_sum - least_sum).max(1)) as f64
        };
        let mut allocations = solved.map(|(all, _)| all.into_iter());
        let mut woken = vec![];
        for state in self.levels.values_mut() {
            let Limits { least, current, .. } = state.limits;
            let wanted = state.wanted();
            state.limits.current = if state.config.exempt {
                wanted
            } else if tight {
                least + ((wanted - least) as f64 * part).round() as i64
            } else {
                // A problem without a solution leaves limits as they are.
                allocations.as_mut().and_then(Iterator::next).map_or(current, |part| part.round() as i64)
            };
            state.apply(now, seats, metrics, &mut woken);
        }
        woken
    }
}

impl<T> LevelState<T> {
    fn new(config: PriorityLevel, now: Nanos) -> Self {
        let level = Arc::new(Level {
            name: config.name.clone(),
            queues: Mutex::new(QueueSet::new(now)),
            dropped: Mutex::default(),
        });
        LevelState {
            config,
            level,
            quiescing: false,
            limits: Limits::default(),
            demand: Demand::default(),
            fresh: true,
        }
    }

    fn divide(&mut self, seats: u32, shares: f64, metrics: &FlowMetrics) {
        let config = &self.config;
        // Rounding up makes the sum a little more than the server's seats, and no level has less than one.
        let share = if shares > 0.0 { f64::from(config.shares) / shares } else { 0.0 };
        let nominal = (f64::from(seats) * share).ceil() as i64;
        let percent = |p: u32| (nominal as f64 * f64::from(p) / 100.0).round() as i64;
        let lendable = percent(config.lendable_percent);
        let borrowed = config.borrowing_percent.map_or(i64::from(seats), percent);
        let current = if self.fresh { nominal - lendable / 2 } else { self.limits.current };
        self.fresh = false;
        self.limits = Limits { nominal, least: nominal - lendable, most: nominal + borrowed, current };
        let label = level_label(&config.name);
        metrics.nominal.get_or_create(&label).set(nominal);
        metrics.lower.get_or_create(&label).set(self.limits.least);
        metrics.upper.get_or_create(&label).set(self.limits.most);
    }

    /// The seats it should not have less of now.
    fn wanted(&self) -> i64 {
        let Limits { nominal, least, .. } = self.limits;
        let high = self.demand.high;
        if self.config.exempt { least.max(high) } else { least.max(nominal.min(high)) }
    }

    fn apply(&self, now: Nanos, seats: u32, metrics: &FlowMetrics, woken: &mut Vec<T>) {
        let label = level_label(&self.config.name);
        metrics.current.get_or_create(&label).set(self.limits.current);
        metrics.demand_high.get_or_create(&label).set(self.demand.high as f64);
        metrics.demand_average.get_or_create(&label).set(self.demand.average);
        metrics.demand_deviation.get_or_create(&label).set(self.demand.deviation);
        metrics.demand_smoothed.get_or_create(&label).set(self.demand.smoothed);
        metrics.target.get_or_create(&label).set((self.wanted() as f64).max(self.demand.smoothed));
        let limit = u32::try_from(self.limits.current).unwrap_or(0);
        let denominator = if limit > 0 { limit } else { (f64::from(seats) / 10.0).round().max(1.0) as u32 };
        let PriorityLevel { exempt, queuing, .. } = self.config;
        let settings = Settings { exempt, queuing, limit, denominator };
        self.level.queues().configure(now, settings, woken);
    }
}
