//! The debug pages `/debug/api_priority_and_fairness/dump_*`, as text tables in upstream's layout, and what the metrics
//! page reads from the queues when it is requested.

use crate::{
    Nanos,
    controller::Controller,
    detail::Detail,
    entry::{Entry, State, Work},
    metrics::{bound, level as level_label},
};
use std::fmt::Write;

/// Seat-seconds as upstream writes them.
fn seat_seconds(work: Work) -> String {
    let work = work.max(0);
    format!("{}.{:08}ss", work / 1_000_000_000, work % 1_000_000_000 / 10)
}

fn float(work: Work) -> f64 {
    work as f64 / 1e9
}

/// Columns padded to their widest cell and no narrower than eight.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |c: usize| {
        rows.iter().filter_map(|r| r.get(c)).map(|t| t.chars().count() + 2).max().unwrap_or(0).max(8)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut page = String::new();
    for row in rows {
        for (i, cell) in row.iter().enumerate() {
            // Writing to a String cannot fail.
            let _ = if i + 1 == row.len() {
                write!(page, "{cell}")
            } else {
                write!(page, "{:<width$}", format!("{cell},"), width = widths[i])
            };
        }
        page.push('\n');
    }
    page
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

impl<T> Controller<T> {
    /// `dump_priority_levels`
    pub fn dump_priority_levels(&self) -> String {
        let mut rows = vec![row([
            "PriorityLevelName",
            "ActiveQueues",
            "IsIdle",
            "IsQuiescing",
            "WaitingRequests",
            "ExecutingRequests",
            "DispatchedRequests",
            "RejectedRequests",
            "TimedoutRequests",
            "CancelledRequests",
        ])];
        self.levels(|levels| {
            for (name, state) in levels {
                let set = state.level.queues();
                let active = set.queues.iter().filter(|q| !q.waiting.is_empty()).count();
                let totals = set.totals;
                rows.push(vec![
                    name.clone(),
                    active.to_string(),
                    set.idle().to_string(),
                    state.quiescing.to_string(),
                    set.waiting.to_string(),
                    set.executing.to_string(),
                    totals.dispatched.to_string(),
                    totals.rejected.to_string(),
                    // Upstream counts waits that ended as cancelled only.
                    "0".into(),
                    totals.cancelled.to_string(),
                ]);
            }
        });
        table(&rows)
    }

    /// `dump_queues`
    pub fn dump_queues(&self) -> String {
        let mut rows = vec![row([
            "PriorityLevelName",
            "Index",
            "PendingRequests",
            "ExecutingRequests",
            "SeatsInUse",
            "NextDispatchR",
            "InitialSeatsSum",
            "MaxSeatsSum",
            "TotalWorkSum",
        ])];
        self.levels(|levels| {
            for (name, state) in levels {
                for (i, q) in state.level.queues().queues.iter().enumerate() {
                    rows.push(vec![
                        name.clone(),
                        i.to_string(),
                        q.waiting.len().to_string(),
                        q.executing.to_string(),
                        q.seats_in_use.to_string(),
                        seat_seconds(q.next_dispatch_r),
                        q.initial_seats.to_string(),
                        q.max_seats.to_string(),
                        seat_seconds(q.work),
                    ]);
                }
            }
        });
        table(&rows)
    }

    /// `dump_requests`; `origin` is what zero nanoseconds mean. Requests of exempt levels carry no details.
    pub fn dump_requests(&self, origin: jiff::Timestamp, details: bool) -> String {
        let mut head = row([
            "PriorityLevelName",
            "FlowSchemaName",
            "QueueIndex",
            "RequestIndexInQueue",
            "FlowDistingsher",
            "ArriveTime",
            "InitialSeats",
            "FinalSeats",
            "AdditionalLatency",
            "StartTime",
        ]);
        if details {
            head.extend(row([
                "UserName",
                "Verb",
                "APIPath",
                "Namespace",
                "Name",
                "APIVersion",
                "Resource",
                "SubResource",
            ]));
        }
        let mut rows = vec![head];
        self.levels(|levels| {
            for (name, state) in levels {
                let set = state.level.queues();
                for (i, queue) in set.queues.iter().enumerate() {
                    for (place, id) in queue.waiting.iter().enumerate() {
                        let entry = set.entry(*id);
                        rows.extend(
                            entry.map(|e| {
                                request(name, &i.to_string(), &place.to_string(), e, origin, details)
                            }),
                        );
                    }
                }
                for entry in set.entries().filter(|e| e.state == State::Executing) {
                    let index = entry.queue.map_or_else(|| "-1".to_owned(), |i| i.to_string());
                    rows.push(request(name, &index, "-1", entry, origin, details));
                }
            }
        });
        table(&rows)
    }

    /// Updates the metrics that are not counted continuously; for the metrics page.
    pub fn observe(&self, now: Nanos) {
        let mut utilization = vec![];
        self.levels(|levels| {
            for (name, state) in levels {
                let mut set = state.level.queues();
                utilization.push((name.clone(), set.utilization.snapshot(now)));
                let label = level_label(name);
                self.metrics.current_r.get_or_create(&label).set(float(set.r));
                self.metrics.dispatch_r.get_or_create(&label).set(float(set.last.r));
                self.metrics.latest_s.get_or_create(&label).set(float(set.last.latest_s));
                for (family, bounds) in [
                    (&self.metrics.next_s, set.last.s),
                    (&self.metrics.next_discounted_s, set.last.discounted_s),
                ] {
                    family.get_or_create(&bound(name, "min")).set(float(bounds.0));
                    family.get_or_create(&bound(name, "max")).set(float(bounds.1));
                }
            }
        });
        self.metrics.utilization.set(utilization);
    }
}

fn request<T>(
    level: &str,
    queue: &str,
    place: &str,
    entry: &Entry<T>,
    origin: jiff::Timestamp,
    details: bool,
) -> Vec<String> {
    let time = |nanos: u64| {
        let at = origin.checked_add(std::time::Duration::from_nanos(nanos));
        at.map_or_else(|_| String::new(), |t| t.to_string())
    };
    let never = "0001-01-01T00:00:00Z".to_owned();
    let started = if entry.state == State::Waiting { never } else { time(entry.started) };
    let mut cells = vec![
        level.to_owned(),
        entry.metrics.name.clone(),
        queue.to_owned(),
        place.to_owned(),
        entry.detail.as_ref().map(|d| d.flow().to_owned()).unwrap_or_default(),
        time(entry.arrival),
        entry.estimate.initial.to_string(),
        entry.estimate.last.to_string(),
        format!("{}s", entry.estimate.linger as f64 / 1e9),
        started,
    ];
    if details {
        let columns = entry.detail.as_deref().map(Detail::columns).unwrap_or_default();
        cells.extend(columns.map(str::to_owned));
    }
    cells
}
