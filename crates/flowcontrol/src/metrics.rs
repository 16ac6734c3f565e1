//! Metrics with upstream's names. The handles of a FlowSchema are looked up when the configuration changes, so that a
//! request costs a few atomic operations and no look-up.
//!
//! Not here: `read_vs_write_current_requests`, which would be one more lock that all requests share, and the counter of
//! epochs, of which there is only one (progress is counted in 128 bits).

use crate::utilization::Page;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use std::sync::{Arc, atomic::AtomicU64};

/// A gauge of fractions.
type Float = Gauge<f64, AtomicU64>;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct LevelLabel {
    priority_level: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
pub(crate) struct BoundLabels {
    priority_level: String,
    bound: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct SchemaLabels {
    priority_level: String,
    flow_schema: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct ReasonLabels {
    priority_level: String,
    flow_schema: String,
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct WaitLabels {
    priority_level: String,
    flow_schema: String,
    execute: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct TypeLabels {
    priority_level: String,
    flow_schema: String,
    r#type: &'static str,
}

fn seconds() -> Histogram {
    Histogram::new([0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0])
}

fn lengths() -> Histogram {
    Histogram::new([0.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0])
}

fn seat_numbers() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 100.0])
}

fn watcher_numbers() -> Histogram {
    Histogram::new([0.0, 1.0, 10.0, 100.0, 1000.0, 10000.0])
}

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// All families.
#[derive(Clone)]
pub struct FlowMetrics {
    rejected: Family<ReasonLabels, Counter>,
    dispatched: Family<SchemaLabels, Counter>,
    waiting: Family<SchemaLabels, Gauge>,
    waiting_seats: Family<SchemaLabels, Gauge>,
    executing: Family<SchemaLabels, Gauge>,
    executing_seats: Family<SchemaLabels, Gauge>,
    length: Histograms<SchemaLabels>,
    wait: Histograms<WaitLabels>,
    execution: Histograms<TypeLabels>,
    watchers: Histograms<SchemaLabels>,
    seats: Histograms<SchemaLabels>,
    no_accommodation: Family<SchemaLabels, Counter>,
    pub(crate) current_r: Family<LevelLabel, Float>,
    pub(crate) dispatch_r: Family<LevelLabel, Float>,
    pub(crate) latest_s: Family<LevelLabel, Float>,
    pub(crate) next_s: Family<BoundLabels, Float>,
    pub(crate) next_discounted_s: Family<BoundLabels, Float>,
    pub(crate) nominal: Family<LevelLabel, Gauge>,
    pub(crate) lower: Family<LevelLabel, Gauge>,
    pub(crate) upper: Family<LevelLabel, Gauge>,
    pub(crate) current: Family<LevelLabel, Gauge>,
    pub(crate) demand_high: Family<LevelLabel, Float>,
    pub(crate) demand_average: Family<LevelLabel, Float>,
    pub(crate) demand_deviation: Family<LevelLabel, Float>,
    pub(crate) demand_smoothed: Family<LevelLabel, Float>,
    pub(crate) target: Family<LevelLabel, Float>,
    pub(crate) fair: Float,
    pub(crate) utilization: Page,
}

impl Default for FlowMetrics {
    fn default() -> Self {
        FlowMetrics {
            rejected: Family::default(),
            dispatched: Family::default(),
            waiting: Family::default(),
            waiting_seats: Family::default(),
            executing: Family::default(),
            executing_seats: Family::default(),
            length: Family::new_with_constructor(lengths),
            wait: Family::new_with_constructor(seconds),
            execution: Family::new_with_constructor(seconds),
            watchers: Family::new_with_constructor(watcher_numbers),
            seats: Family::new_with_constructor(seat_numbers),
            no_accommodation: Family::default(),
            current_r: Family::default(),
            dispatch_r: Family::default(),
            latest_s: Family::default(),
            next_s: Family::default(),
            next_discounted_s: Family::default(),
            nominal: Family::default(),
            lower: Family::default(),
            upper: Family::default(),
            current: Family::default(),
            demand_high: Family::default(),
            demand_average: Family::default(),
            demand_deviation: Family::default(),
            demand_smoothed: Family::default(),
            target: Family::default(),
            fair: Float::default(),
            utilization: Page::default(),
        }
    }
}

impl FlowMetrics {
    /// Makes them part of a page.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("apiserver_flowcontrol");
        self.register_requests(registry);
        self.register_virtual_time(registry);
        self.register_limits(registry);
        self.register_demand(registry);
        self.utilization.register(registry);
    }

    /// What becomes of requests, and how long it takes.
    fn register_requests(&self, registry: &mut Registry) {
        registry.register(
            "rejected_requests_total",
            "[BETA] Number of requests rejected by API Priority and Fairness subsystem",
            self.rejected.clone(),
        );
        registry.register(
            "dispatched_requests_total",
            "[BETA] Number of requests executed by API Priority and Fairness subsystem",
            self.dispatched.clone(),
        );
        registry.register(
            "current_inqueue_requests",
            "[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem",
            self.waiting.clone(),
        );
        registry.register(
            "current_inqueue_seats",
            "[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem",
            self.waiting_seats.clone(),
        );
        registry.register("current_executing_requests", "[BETA] Number of requests in initial (for a WATCH) or any (for a non-WATCH) execution stage in the API Priority and Fairness subsystem", self.executing.clone());
        registry.register("current_executing_seats", "[BETA] Concurrency (number of seats) occupied by the currently executing (initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem", self.executing_seats.clone());
        registry.register("request_queue_length_after_enqueue", "[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued", self.length.clone());
        registry.register(
            "request_wait_duration_seconds",
            "[BETA] Length of time a request spent waiting in its queue",
            self.wait.clone(),
        );
        registry.register("request_execution_seconds", "[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API Priority and Fairness subsystem", self.execution.clone());
        registry.register(
            "watch_count_samples",
            "[ALPHA] count of watchers for mutating requests in API Priority and Fairness",
            self.watchers.clone(),
        );
        registry.register("work_estimated_seats", "[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority and Fairness", self.seats.clone());
        registry.register("request_dispatch_no_accommodation_total", "[ALPHA] Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats", self.no_accommodation.clone());
    }

    /// The virtual time of fair queuing: R of a priority level, S of its queues.
    fn register_virtual_time(&self, registry: &mut Registry) {
        registry.register("current_r", "[ALPHA] R(time of last change)", self.current_r.clone());
        registry.register("dispatch_r", "[ALPHA] R(time of last dispatch)", self.dispatch_r.clone());
        registry.register("latest_s", "[ALPHA] S(most recently dispatched request)", self.latest_s.clone());
        registry.register(
            "next_s_bounds",
            "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)",
            self.next_s.clone(),
        );
        registry.register(
            "next_discounted_s_bounds",
            "[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress",
            self.next_discounted_s.clone(),
        );
    }

    /// The seats that a priority level may use.
    fn register_limits(&self, registry: &mut Registry) {
        registry.register(
            "nominal_limit_seats",
            "[BETA] Nominal number of execution seats configured for each priority level",
            self.nominal.clone(),
        );
        registry.register(
            "lower_limit_seats",
            "[ALPHA] Configured lower bound on number of execution seats available to each priority level",
            self.lower.clone(),
        );
        registry.register(
            "upper_limit_seats",
            "[ALPHA] Configured upper bound on number of execution seats available to each priority level",
            self.upper.clone(),
        );
        registry.register(
            "current_limit_seats",
            "[ALPHA] current derived number of execution seats available to each priority level",
            self.current.clone(),
        );
    }

    /// The seats that a priority level could use, and what follows for its limit.
    fn register_demand(&self, registry: &mut Registry) {
        registry.register(
            "demand_seats_high_watermark",
            "[ALPHA] High watermark, over last adjustment period, of demand_seats",
            self.demand_high.clone(),
        );
        registry.register(
            "demand_seats_average",
            "[ALPHA] Time-weighted average, over last adjustment period, of demand_seats",
            self.demand_average.clone(),
        );
        registry.register(
            "demand_seats_stdev",
            "[ALPHA] Time-weighted standard deviation, over last adjustment period, of demand_seats",
            self.demand_deviation.clone(),
        );
        registry.register(
            "demand_seats_smoothed",
            "[ALPHA] Smoothed seat demands",
            self.demand_smoothed.clone(),
        );
        registry.register("target_seats", "[ALPHA] Seat allocation targets", self.target.clone());
        registry.register(
            "seat_fair_frac",
            "[ALPHA] Fair fraction of server's concurrency to allocate to each priority level that can use it",
            self.fair.clone(),
        );
    }

    pub(crate) fn schema(&self, level: &str, schema: &str) -> SchemaMetrics {
        let (priority_level, flow_schema) = (level.to_owned(), schema.to_owned());
        let labels =
            SchemaLabels { priority_level: priority_level.clone(), flow_schema: flow_schema.clone() };
        let rejected = |reason| {
            let (priority_level, flow_schema) = (priority_level.clone(), flow_schema.clone());
            self.rejected.get_or_create_owned(&ReasonLabels { priority_level, flow_schema, reason })
        };
        let wait = |execute| {
            let (priority_level, flow_schema) = (priority_level.clone(), flow_schema.clone());
            self.wait.get_or_create_owned(&WaitLabels { priority_level, flow_schema, execute })
        };
        let execution = |r#type| {
            let (priority_level, flow_schema) = (priority_level.clone(), flow_schema.clone());
            self.execution.get_or_create_owned(&TypeLabels { priority_level, flow_schema, r#type })
        };
        SchemaMetrics {
            name: schema.to_owned(),
            rejected: ["queue-full", "concurrency-limit", "time-out"].map(rejected),
            dispatched: self.dispatched.get_or_create_owned(&labels),
            waiting: self.waiting.get_or_create_owned(&labels),
            waiting_seats: self.waiting_seats.get_or_create_owned(&labels),
            executing: self.executing.get_or_create_owned(&labels),
            executing_seats: self.executing_seats.get_or_create_owned(&labels),
            length: self.length.get_or_create_owned(&labels),
            wait: ["false", "true"].map(wait),
            execution: ["regular", "watch"].map(execution),
            watchers: self.watchers.get_or_create_owned(&labels),
            seats: self.seats.get_or_create_owned(&labels),
            no_accommodation: self.no_accommodation.get_or_create_owned(&labels),
        }
    }
}

pub(crate) fn level(name: &str) -> LevelLabel {
    LevelLabel { priority_level: name.to_owned() }
}

pub(crate) fn bound(name: &str, bound: &'static str) -> BoundLabels {
    BoundLabels { priority_level: name.to_owned(), bound }
}

/// The handles of one FlowSchema on its priority level.
pub struct SchemaMetrics {
    /// The FlowSchema's name.
    pub name: String,
    pub(crate) rejected: [Counter; 3],
    pub(crate) dispatched: Counter,
    pub(crate) waiting: Gauge,
    pub(crate) waiting_seats: Gauge,
    pub(crate) executing: Gauge,
    pub(crate) executing_seats: Gauge,
    pub(crate) length: Histogram,
    wait: [Histogram; 2],
    execution: [Histogram; 2],
    watchers: Histogram,
    seats: Histogram,
    pub(crate) no_accommodation: Counter,
}

impl SchemaMetrics {
    /// A request waited so long, and then ran or did not.
    pub fn waited(&self, seconds: f64, ran: bool) {
        self.wait[usize::from(ran)].observe(seconds);
    }

    /// A request held its seats so long.
    pub fn executed(&self, seconds: f64, watch: bool) {
        self.execution[usize::from(watch)].observe(seconds);
    }

    /// A request was estimated.
    pub fn estimated(&self, seats: u32) {
        self.seats.observe(f64::from(seats));
    }

    /// So many watch what a request writes.
    pub fn watched(&self, watchers: u64) {
        self.watchers.observe(watchers as f64);
    }

    /// Handles that count on no page.
    pub fn detached(name: &str) -> Arc<SchemaMetrics> {
        Arc::new(FlowMetrics::default().schema("", name))
    }
}
