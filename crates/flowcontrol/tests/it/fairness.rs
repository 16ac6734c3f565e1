//! A priority level under load, simulated from seeds: what one flow does must not become another's wait, seats are never
//! oversubscribed and never lost.

use kaji_flowcontrol::{
    Estimate, Nanos, QueueSet, Queuing, Request, SchemaMetrics, Settings, Started, shard,
};
use std::{cmp::Reverse, collections::BinaryHeap, collections::HashMap, sync::Arc};

const MS: Nanos = 1_000_000;

/// A stream of requests.
#[derive(Clone, Copy)]
struct Flow {
    name: &'static str,
    /// Time from one arrival to the next, on average.
    every: Nanos,
    /// Time a request runs.
    takes: Nanos,
    seats: u32,
}

#[derive(Default, Debug)]
struct Outcome {
    waits: Vec<Nanos>,
    rejected: u64,
}

impl Outcome {
    fn p99(&self) -> Nanos {
        let mut sorted = self.waits.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * 99 / 100).copied().unwrap_or_default()
    }
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Arrival(usize),
    End(u32),
}

struct Sim {
    set: QueueSet<usize>,
    /// Request number to flow and arrival.
    requests: Vec<(usize, Nanos, u32)>,
    events: BinaryHeap<Reverse<(Nanos, Event)>>,
    outcomes: Vec<Outcome>,
    running: HashMap<u32, u32>,
    limit: u32,
    until: Nanos,
}

/// Runs flows for a while on `limit` seats.
fn simulate(
    seed: u64,
    limit: u32,
    queuing: Queuing,
    flows: &[Flow],
    length: Nanos,
) -> HashMap<&'static str, Outcome> {
    let mut rng = Rng(seed | 1);
    let mut set = QueueSet::new(0);
    let settings = Settings { exempt: false, queuing: Some(queuing), limit, denominator: limit };
    set.configure(0, settings, &mut vec![]);
    let mut sim = Sim {
        set,
        requests: vec![],
        events: BinaryHeap::new(),
        outcomes: flows.iter().map(|_| Outcome::default()).collect(),
        running: HashMap::new(),
        limit,
        until: length,
    };
    let metrics: Vec<Arc<SchemaMetrics>> = flows.iter().map(|f| SchemaMetrics::detached(f.name)).collect();
    for (i, flow) in flows.iter().enumerate() {
        sim.events.push(Reverse((rng.next() % flow.every, Event::Arrival(i))));
    }
    while let Some(Reverse((now, event))) = sim.events.pop() {
        let mut woken = vec![];
        match event {
            Event::Arrival(i) if now < length => {
                let flow = flows[i];
                sim.events.push(Reverse((now + 1 + rng.next() % (2 * flow.every), Event::Arrival(i))));
                let request = Request {
                    estimate: Estimate { initial: flow.seats, ..Estimate::ONE },
                    hash: shard::hash("s", flow.name),
                    metrics: metrics[i].clone(),
                    detail: None,
                    busy: false,
                };
                match sim.set.start(now, request, &mut woken) {
                    Started::Running(id) => sim.run(now, id, i, now, flows),
                    Started::Waiting(id) => {
                        sim.requests.push((i, now, id));
                        sim.set.set_token(id, sim.requests.len() - 1);
                    }
                    Started::Rejected(_) => sim.outcomes[i].rejected += 1,
                }
            }
            Event::Arrival(_) => {}
            Event::End(id) => {
                sim.running.remove(&id);
                sim.set.finish(now, id, &mut woken);
            }
        }
        for token in woken {
            let (flow, arrival, id) = sim.requests[token];
            sim.run(now, id, flow, arrival, flows);
        }
    }
    assert!(sim.set.idle(), "everything that began ended");
    flows.iter().zip(sim.outcomes).map(|(f, o)| (f.name, o)).collect()
}

impl Sim {
    fn run(&mut self, now: Nanos, id: u32, flow: usize, arrival: Nanos, flows: &[Flow]) {
        assert!(self.running.insert(id, flows[flow].seats).is_none(), "a request runs once");
        let seats: u32 = self.running.values().sum();
        assert!(seats <= self.limit || self.running.len() == 1, "{seats} seats of {}", self.limit);
        // What drains afterwards says nothing about the order of flows.
        if now < self.until {
            self.outcomes[flow].waits.push(now - arrival);
        }
        self.events.push(Reverse((now + flows[flow].takes, Event::End(id))));
    }
}

const QUEUES: Queuing = Queuing { queues: 64, hand: 6, length: 50 };
/// So many that two flows share none.
const APART: Queuing = Queuing { queues: 1024, hand: 4, length: 20 };

#[test]
fn a_flood_does_not_move_anothers_wait() {
    let meek = Flow { name: "meek", every: 20 * MS, takes: 10 * MS, seats: 1 };
    // Fifty times what ten seats can do.
    let flood = Flow { name: "flood", every: MS / 50, takes: 10 * MS, seats: 1 };
    for seed in [1, 7, 42, 1234, 99_991] {
        let alone = simulate(seed, 10, QUEUES, &[meek], 4_000 * MS);
        let both = simulate(seed, 10, QUEUES, &[meek, flood], 4_000 * MS);
        assert_eq!(alone["meek"].p99(), 0);
        assert_eq!(both["meek"].rejected, 0, "seed {seed}");
        // At worst a running request of the flood has to end first.
        assert!(both["meek"].p99() <= 10 * MS, "seed {seed}: {}", both["meek"].p99());
        assert!(both["flood"].rejected > 1_000, "seed {seed}: the flood is turned away instead");
        // And the flood gets what the meek leaves over: nearly all of ten seats.
        let served = both["flood"].waits.len() as u64 + both["meek"].waits.len() as u64;
        assert!(served > 3_900, "seed {seed}: {served}");
    }
}

#[test]
fn a_single_queue_would_not_protect() {
    // The same flood without sharding: this is what the queues are for.
    let one = Queuing { queues: 1, hand: 1, length: 300 };
    let meek = Flow { name: "meek", every: 20 * MS, takes: 10 * MS, seats: 1 };
    let flood = Flow { name: "flood", every: MS / 50, takes: 10 * MS, seats: 1 };
    let both = simulate(7, 10, one, &[meek, flood], 4_000 * MS);
    assert!(both["meek"].p99() > 100 * MS || both["meek"].rejected > 0);
}

#[test]
fn equal_floods_get_equal_parts() {
    let a = Flow { name: "a", every: MS, takes: 10 * MS, seats: 1 };
    for seed in [3, 5, 8] {
        // Twice the arrivals, and still no more than half of the seats.
        let b = Flow { name: "b", every: MS / 2, takes: 10 * MS, seats: 1 };
        let got = simulate(seed, 4, APART, &[a, b], 4_000 * MS);
        let (a, b) = (got["a"].waits.len() as f64, got["b"].waits.len() as f64);
        assert!((a / b - 1.0).abs() < 0.05, "seed {seed}: {a} {b}");
    }
}

#[test]
fn wide_and_long_requests_pay_for_what_they_take() {
    for seed in [3, 5, 8] {
        let thin = Flow { name: "thin", every: MS / 2, takes: 5 * MS, seats: 1 };
        let wide = Flow { name: "wide", every: MS / 2, takes: 5 * MS, seats: 4 };
        let got = simulate(seed, 8, APART, &[thin, wide], 4_000 * MS);
        let ratio = got["thin"].waits.len() as f64 / got["wide"].waits.len() as f64;
        assert!(
            (3.2..4.8).contains(&ratio),
            "seed {seed}: {ratio} {got:?}",
            got = got.iter().map(|(k, o)| (*k, o.waits.len(), o.rejected)).collect::<Vec<_>>()
        );
        let long = Flow { name: "long", every: MS / 2, takes: 20 * MS, seats: 1 };
        let got = simulate(seed, 8, APART, &[thin, long], 4_000 * MS);
        let ratio = got["thin"].waits.len() as f64 / got["long"].waits.len() as f64;
        assert!(
            (3.2..4.8).contains(&ratio),
            "seed {seed}: {ratio} {got:?}",
            got = got.iter().map(|(k, o)| (*k, o.waits.len(), o.rejected)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn a_request_wider_than_the_level_runs_alone() {
    let wide = Flow { name: "wide", every: 50 * MS, takes: 5 * MS, seats: 10 };
    let thin = Flow { name: "thin", every: 5 * MS, takes: 5 * MS, seats: 1 };
    let got = simulate(11, 4, QUEUES, &[wide, thin], 10_000 * MS);
    assert!(got["wide"].waits.len() > 150, "{}", got["wide"].waits.len());
    assert!(got["thin"].waits.len() > 1_500);
}

#[test]
fn the_last_seats_are_not_for_busy_flows() {
    let mut set = QueueSet::new(0);
    let settings = Settings { exempt: false, queuing: Some(QUEUES), limit: 16, denominator: 16 };
    set.configure(0, settings, &mut vec![]);
    let metrics = SchemaMetrics::detached("all");
    let start = |set: &mut QueueSet<&'static str>, name: &'static str, seats: u32| {
        let estimate = Estimate { initial: seats, ..Estimate::ONE };
        let (hash, busy) = (shard::hash("s", name), name != "user");
        let request = Request { estimate, hash, metrics: metrics.clone(), detail: None, busy };
        let started = set.start(0, request, &mut vec![]);
        if let Started::Waiting(id) = started {
            set.set_token(id, name);
        }
        started
    };
    let flood: Vec<Started> = (0..20).map(|_| start(&mut set, "flood", 1)).collect();
    let running = flood.iter().filter(|s| matches!(s, Started::Running(_))).count();
    assert_eq!(running, 14);
    let users: Vec<Started> = (0..3).map(|_| start(&mut set, "user", 1)).collect();
    let [Started::Running(user), Started::Running(_), Started::Waiting(_)] = users[..] else {
        panic!("{users:?}")
    };
    let end = |set: &mut QueueSet<&'static str>, id: u32| {
        let mut woken = vec![];
        set.finish(1, id, &mut woken);
        woken
    };
    let id = |i: usize| if let Started::Running(id) = flood[i] { id } else { panic!("{i} waits") };
    assert_eq!(end(&mut set, id(0)), ["user"], "the flood is at its own limit");
    assert_eq!(end(&mut set, id(1)), [""; 0]);
    assert_eq!(end(&mut set, user), [""; 0]);
    assert_eq!(end(&mut set, id(2)), ["flood"]);
    // A wide one of the flood waits for its seats; narrow ones of the flood do not overtake it, others do.
    let Started::Waiting(_) = start(&mut set, "wide", 4) else { panic!() };
    let Started::Running(_) = start(&mut set, "user", 1) else { panic!() };
}
