//! The queues of one priority level: shuffle sharding on the way in, fair queuing on the way out.
//! Source: KEP-1040, "Fair Queuing for Server Requests".
//!
//! Invariants:
//! - `seats_in_use` is the sum over the requests that execute or linger; a request starts only when its seats fit under
//!   the limit, or when nothing else runs.
//! - Of the queues, the one that holds the oldest request with the earliest virtual finish time goes first; a wide one at its
//!   head is waited for, not overtaken.
//! - A few seats are not for busy flows: their requests compete for the processors rather than for seats. If they held all
//!   seats, the other flows would wait until a request of theirs had its turn at the processors.
//! - Virtual time is counted in whole seat-nanoseconds and never wound back.

use crate::{
    Nanos,
    config::Queuing,
    demand::Integrator,
    detail::Detail,
    entry::{Ended, Entry, GUESS, Queue, State, Work},
    estimate::Estimate,
    metrics::SchemaMetrics,
    shard::{Dealer, MAX_HAND},
    utilization::{Numbers, Utilization},
};
use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

/// Why a request was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its queue is full.
    QueueFull,
    /// The level has no queues and no free seat.
    ConcurrencyLimit,
    /// It waited as long as it may.
    TimeOut,
}

/// A request that arrives.
pub struct Request {
    /// Its size.
    pub estimate: Estimate,
    /// The hash of its flow.
    pub hash: u64,
    /// Its FlowSchema's handles.
    pub metrics: Arc<SchemaMetrics>,
    /// For the debug pages.
    pub detail: Option<Box<Detail>>,
    /// Whether its flow keeps the processors busy by itself.
    pub busy: bool,
}

/// Seats that are not for busy flows: at most so many, and no more than one in so many.
const SPARE: u32 = 8;

/// What a priority level may do.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Nothing is held back.
    pub exempt: bool,
    /// How requests wait, if they may.
    pub queuing: Option<Queuing>,
    /// Seats.
    pub limit: u32,
    /// Seats that count as all of them in metrics; not 0 where `limit` is.
    pub denominator: u32,
}

/// What became of a request that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Started {
    /// It has its seats.
    Running(u32),
    /// It waits; give it a token.
    Waiting(u32),
    /// It was turned away.
    Rejected(Reason),
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Began to run.
    pub dispatched: u64,
    /// Turned away for whatever reason.
    pub rejected: u64,
    /// Given up while waiting.
    pub cancelled: u64,
}

/// Progress at the last dispatch, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LastDispatch {
    pub(crate) r: Work,
    pub(crate) latest_s: Work,
    pub(crate) s: (Work, Work),
    pub(crate) discounted_s: (Work, Work),
}

/// See the file's text. `T` is what comes back when a waiting request's turn has come.
pub struct QueueSet<T> {
    exempt: bool,
    queuing: Option<(Dealer, u32)>,
    limit: u32,
    /// The limit of busy flows.
    busy_limit: u32,
    pub(crate) queues: Vec<Queue>,
    entries: Vec<Option<Entry<T>>>,
    free: Vec<u32>,
    robin: usize,
    arrivals: u64,
    pub(crate) now: Nanos,
    pub(crate) r: Work,
    active: u64,
    pub(crate) waiting: u64,
    pub(crate) waiting_seats: u64,
    pub(crate) executing: u64,
    pub(crate) seats_in_use: u64,
    lingering: BinaryHeap<Reverse<(Nanos, u32)>>,
    pub(crate) last: LastDispatch,
    /// How many seats it could use.
    pub demand: Integrator,
    pub(crate) utilization: Utilization,
    /// What it did so far.
    pub totals: Totals,
    /// For the caller: whether a timer calls `advance` at [`QueueSet::next_release`].
    pub timed: bool,
}

impl<T> QueueSet<T> {
    /// Without queues and without seats; see [`QueueSet::configure`].
    pub fn new(now: Nanos) -> Self {
        QueueSet {
            exempt: false,
            queuing: None,
            limit: 0,
            busy_limit: 0,
            queues: vec![],
            entries: vec![],
            free: vec![],
            robin: 0,
            arrivals: 0,
            now,
            r: 0,
            active: 0,
            waiting: 0,
            waiting_seats: 0,
            executing: 0,
            seats_in_use: 0,
            lingering: BinaryHeap::new(),
            last: LastDispatch::default(),
            demand: Integrator::new(now),
            utilization: Utilization::new(now),
            totals: Totals::default(),
            timed: false,
        }
    }

    /// Changes what it may do. Queues in excess go as they run empty.
    pub fn configure(&mut self, now: Nanos, settings: Settings, woken: &mut Vec<T>) {
        let Settings { exempt, queuing, limit, denominator } = settings;
        self.advance(now, woken);
        self.exempt = exempt;
        self.limit = limit;
        self.busy_limit = limit - SPARE.min(limit / SPARE);
        self.queuing =
            queuing.filter(|_| !exempt).and_then(|q| Some((Dealer::new(q.queues, q.hand)?, q.length)));
        let places = queuing.map_or(0, |q| u64::from(q.queues) * u64::from(q.length));
        self.utilization.divide_by(self.now, denominator.into(), places);
        let wanted = self.wanted_queues(queuing);
        if self.queues.len() < wanted {
            self.queues.resize_with(wanted, Queue::default);
        }
        self.trim(wanted);
        self.dispatch_all(woken);
    }

    fn wanted_queues(&self, queuing: Option<Queuing>) -> usize {
        if self.queuing.is_some() { queuing.map_or(0, |q| q.queues as usize) } else { 0 }
    }

    fn trim(&mut self, wanted: usize) {
        while self.queues.len() > wanted
            && self.queues.last().is_some_and(|q| !q.active() && q.seats_in_use == 0)
        {
            self.queues.pop();
        }
        self.robin = self.robin.min(self.queues.len().saturating_sub(1));
    }

    /// Whether nothing waits and nothing runs.
    pub fn idle(&self) -> bool {
        self.waiting == 0 && self.executing == 0
    }

    /// When the next lingering request gives its seats back.
    pub fn next_release(&self) -> Option<Nanos> {
        self.lingering.peek().map(|Reverse((at, _))| *at)
    }

    /// Lets time pass: virtual time goes on, and lingering requests give their seats back when their time is over.
    pub fn advance(&mut self, now: Nanos, woken: &mut Vec<T>) {
        self.sync(now);
        let mut released = false;
        while let Some(Reverse((at, id))) = self.lingering.peek().copied() {
            if at > now {
                break;
            }
            self.lingering.pop();
            self.release(id);
            released = true;
        }
        if released {
            self.dispatch_all(woken);
        }
    }

    fn sync(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.now);
        self.now = self.now.max(now);
        let seats = (self.seats_in_use + self.waiting_seats).min(u64::from(self.limit));
        let work = Work::from(seats) * Work::from(passed);
        self.r += match u64::try_from(work) {
            // The usual case, and much cheaper.
            Ok(work) => work.checked_div(self.active).map_or(0, Work::from),
            Err(_) => work.checked_div(Work::from(self.active)).unwrap_or(0),
        };
    }

    /// A request arrives.
    pub fn start(&mut self, now: Nanos, request: Request, woken: &mut Vec<T>) -> Started {
        self.advance(now, woken);
        let Some((dealer, length)) = self.queuing else { return self.start_without_queue(request) };
        let index = self.pick(dealer, request.hash);
        // Upstream lets a queue grow past its length while some seats are free but too few for what goes first; here a
        // full queue is full.
        if self.queues[index].waiting.len() >= length as usize {
            self.bound(index);
            return self.reject(&request.metrics, Reason::QueueFull);
        }
        let free = self.seats_in_use < u64::from(self.limit);
        if free && self.waiting == 0 && self.fits(request.estimate.seats(), request.busy) {
            return self.start_at_once(index, request);
        }
        let id = self.enqueue(index, request);
        self.dispatch_all(woken);
        match self.entry(id).map(|e| e.state) {
            Some(State::Waiting) => Started::Waiting(id),
            _ => Started::Running(id),
        }
    }

    /// The usual case: no request waits, so the queue is passed through at once.
    fn start_at_once(&mut self, index: usize, request: Request) -> Started {
        request.metrics.length.observe(1.0);
        let id = self.insert(Some(index), request);
        let r = self.r;
        let queue = &mut self.queues[index];
        queue.next_dispatch_r = if queue.active() { queue.next_dispatch_r.max(r) } else { r };
        self.begin(index, id);
        Started::Running(id)
    }

    fn start_without_queue(&mut self, request: Request) -> Started {
        if !self.fits(request.estimate.seats(), false) {
            return self.reject(&request.metrics, Reason::ConcurrencyLimit);
        }
        let id = self.insert(None, request);
        self.run(id);
        Started::Running(id)
    }

    fn reject(&mut self, metrics: &SchemaMetrics, reason: Reason) -> Started {
        self.totals.rejected += 1;
        metrics.rejected[reason as usize].inc();
        Started::Rejected(reason)
    }

    /// The queue of the flow's hand with the least work waiting; the scan begins at another card each time.
    fn pick(&mut self, dealer: Dealer, hash: u64) -> usize {
        let mut cards = [0; MAX_HAND];
        let hand = dealer.deal(hash, &mut cards);
        let offset = (self.arrivals % hand as u64) as usize;
        self.arrivals += 1;
        (0..hand).map(|i| cards[(offset + i) % hand]).min_by_key(|q| self.queues[*q].work).unwrap_or_default()
    }

    fn insert(&mut self, queue: Option<usize>, request: Request) -> u32 {
        let Request { estimate, metrics, detail, busy, hash: _ } = request;
        let entry = Entry {
            state: State::Waiting,
            queue,
            estimate,
            arrival: self.now,
            started: 0,
            metrics,
            detail,
            busy,
            arrival_r: self.r,
            number: self.arrivals,
            token: None,
        };
        match self.free.pop() {
            Some(id) => {
                self.entries[id as usize] = Some(entry);
                id
            }
            None => {
                self.entries.push(Some(entry));
                (self.entries.len() - 1) as u32
            }
        }
    }

    pub(crate) fn entry(&self, id: u32) -> Option<&Entry<T>> {
        self.entries.get(id as usize)?.as_ref()
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry<T>> {
        self.entries.iter().flatten()
    }

    fn enqueue(&mut self, index: usize, request: Request) -> u32 {
        let (estimate, metrics) = (request.estimate, request.metrics.clone());
        let id = self.insert(Some(index), request);
        let work = self.entry(id).map_or(0, Entry::work);
        let queue = &mut self.queues[index];
        if !queue.active() {
            queue.next_dispatch_r = self.r;
            self.active += 1;
        }
        queue.waiting.push_back(id);
        queue.initial_seats += u64::from(estimate.initial);
        queue.max_seats += u64::from(estimate.seats());
        queue.work += work;
        self.waiting += 1;
        self.waiting_seats += u64::from(estimate.seats());
        metrics.waiting.inc();
        metrics.waiting_seats.inc_by(i64::from(estimate.seats()));
        metrics.length.observe(queue.waiting.len() as f64);
        self.note();
        self.bound(index);
        id
    }

    /// Gives a waiting request what comes back when its turn has come.
    pub fn set_token(&mut self, id: u32, token: T) {
        if let Some(Some(entry)) = self.entries.get_mut(id as usize) {
            entry.token = Some(token);
        }
    }

    /// What runs or waits has changed.
    fn note(&mut self) {
        let demand = self.seats_in_use + self.waiting_seats;
        self.demand.set(self.now, demand as f64);
        let (seats, executing, waiting) = (self.seats_in_use, self.executing, self.waiting);
        self.utilization.set(self.now, Numbers { seats, executing, waiting, demand });
    }

    fn fits(&self, seats: u32, busy: bool) -> bool {
        let limit = if busy { self.busy_limit } else { self.limit };
        // Wider than the whole level: it runs alone.
        self.exempt
            || if seats > limit {
                self.executing == 0
            } else {
                self.seats_in_use + u64::from(seats) <= u64::from(limit)
            }
    }

    fn dispatch_all(&mut self, woken: &mut Vec<T>) {
        while self.waiting > 0 && self.seats_in_use < u64::from(self.limit) {
            let Some(index) = self.next_queue() else { return };
            if !self.dispatch_from(index, woken) {
                return;
            }
        }
    }

    /// The queue with the earliest virtual finish time of an oldest request; ties go to the one that was served longest ago.
    /// A busy flow's that has to wait for its seats does not hold up others.
    fn next_queue(&mut self) -> Option<usize> {
        let n = self.queues.len();
        let (mut calm, mut busy) = (None, None);
        let (mut s, mut discounted) = ((Work::MAX, Work::MIN), (Work::MAX, Work::MIN));
        for i in 1..=n {
            let index = (self.robin + i) % n;
            let queue = &self.queues[index];
            let Some(oldest) = queue.waiting.front().and_then(|id| self.entry(*id)) else { continue };
            let start = queue.next_dispatch_r;
            let less = start - Work::from(queue.seats_in_use) * Work::from(GUESS);
            s = (s.0.min(start), s.1.max(start));
            discounted = (discounted.0.min(less), discounted.1.max(less));
            let candidate = (start + oldest.work(), i);
            let best = if oldest.busy { &mut busy } else { &mut calm };
            if best.is_none_or(|least: (Work, usize)| candidate < least) {
                *best = Some(candidate);
            }
        }
        let mut first = match (calm, busy) {
            (Some(calm), Some(busy)) => calm.min(busy),
            (calm, busy) => calm.or(busy)?,
        };
        let at = |i: usize| (self.robin + i) % n;
        if let (Some(calm), true) = (calm, Some(first) == busy) {
            let oldest = self.queues[at(first.1)].waiting.front().and_then(|id| self.entry(*id));
            if oldest.is_some_and(|oldest| !self.fits(oldest.seats(), true)) {
                first = calm;
            }
        }
        let index = at(first.1);
        self.last.s = s;
        self.last.discounted_s = discounted;
        Some(index)
    }

    /// Starts the oldest request of a queue, if its seats are free.
    fn dispatch_from(&mut self, index: usize, woken: &mut Vec<T>) -> bool {
        let Some(id) = self.queues[index].waiting.front().copied() else { return false };
        let Some(entry) = self.entry(id) else { return false };
        if !self.fits(entry.seats(), entry.busy) {
            entry.metrics.no_accommodation.inc();
            return false;
        }
        self.leave_queue(id);
        if let Some(Some(entry)) = self.entries.get_mut(id as usize) {
            woken.extend(entry.token.take());
        }
        self.begin(index, id);
        self.bound(index);
        true
    }

    /// Gives a request of a queue its seats.
    fn begin(&mut self, index: usize, id: u32) {
        self.robin = index;
        let limit = self.limit;
        let Some(Some(entry)) = self.entries.get_mut(id as usize) else { return };
        let work = entry.work();
        // More lingering seats than there are: the same work on fewer, for longer.
        if entry.estimate.last > limit && limit > 0 {
            let all = u64::from(entry.estimate.last) * entry.estimate.linger;
            entry.estimate.last = limit;
            entry.estimate.linger = all / u64::from(limit);
        }
        self.last.r = self.r;
        self.last.latest_s = self.queues[index].next_dispatch_r;
        self.run(id);
        self.queues[index].next_dispatch_r += work;
    }

    /// Takes a waiting request out of its queue.
    fn leave_queue(&mut self, id: u32) {
        let Some(entry) = self.entry(id) else { return };
        let (Some(index), estimate, work, number) = (entry.queue, entry.estimate, entry.work(), entry.number)
        else {
            return;
        };
        entry.metrics.waiting.dec();
        entry.metrics.waiting_seats.dec_by(i64::from(estimate.seats()));
        // Numbers grow along a queue.
        let at = self.queues[index]
            .waiting
            .binary_search_by_key(&number, |other| self.entry(*other).map_or(0, |e| e.number));
        let queue = &mut self.queues[index];
        if let Ok(at) = at {
            queue.waiting.remove(at);
        }
        queue.initial_seats -= u64::from(estimate.initial);
        queue.max_seats -= u64::from(estimate.seats());
        queue.work -= work;
        self.waiting -= 1;
        self.waiting_seats -= u64::from(estimate.seats());
        if !queue.active() {
            self.active -= 1;
        }
    }

    fn run(&mut self, id: u32) {
        let now = self.now;
        let Some(Some(entry)) = self.entries.get_mut(id as usize) else { return };
        entry.state = State::Executing;
        entry.started = now;
        let (queue, seats) = (entry.queue, entry.seats());
        entry.metrics.executing.inc();
        entry.metrics.executing_seats.inc_by(i64::from(seats));
        entry.metrics.dispatched.inc();
        self.executing += 1;
        self.seats_in_use += u64::from(seats);
        self.totals.dispatched += 1;
        if let Some(queue) = queue.map(|index| &mut self.queues[index]) {
            if !queue.active() {
                self.active += 1;
            }
            queue.executing += 1;
            queue.seats_in_use += seats;
        }
        self.note();
    }

    /// A running request has ended.
    pub fn finish(&mut self, now: Nanos, id: u32, woken: &mut Vec<T>) -> Ended<T> {
        self.advance(now, woken);
        let now = self.now;
        let Some(Some(entry)) = self.entries.get_mut(id as usize) else { return Ended::default() };
        if entry.state != State::Executing {
            return Ended::default();
        }
        entry.state = State::Lingering;
        entry.metrics.executing.dec();
        let Estimate { initial, last, linger } = entry.estimate;
        let (queue, took) = (entry.queue, now.saturating_sub(entry.started));
        self.executing -= 1;
        if let Some(index) = queue {
            let queue = &mut self.queues[index];
            queue.executing -= 1;
            // The guess was part of the queue's virtual start; now the truth is known.
            queue.next_dispatch_r += Work::from(initial) * (Work::from(took) - Work::from(GUESS));
            if !queue.active() {
                self.active -= 1;
            }
            self.bound(index);
        }
        let later = (last > 0 && linger > 0).then(|| now.saturating_add(linger));
        let remains = match later {
            Some(at) => {
                self.lingering.push(Reverse((at, id)));
                self.note();
                None
            }
            None => self.release(id),
        };
        self.dispatch_all(woken);
        Ended { later, remains }
    }

    /// Gives the seats of an ended request back.
    fn release(&mut self, id: u32) -> Option<Entry<T>> {
        let entry = self.entries.get_mut(id as usize).and_then(Option::take)?;
        self.free.push(id);
        let seats = entry.seats();
        entry.metrics.executing_seats.dec_by(i64::from(seats));
        self.seats_in_use -= u64::from(seats);
        if let Some(index) = entry.queue {
            self.queues[index].seats_in_use -= seats;
            let wanted = self.queuing.map_or(0, |(dealer, _)| dealer.deck());
            self.trim(wanted);
        }
        self.note();
        Some(entry)
    }

    /// A request that may still wait gives up. Whether it did wait; if not, it runs and has to be finished.
    pub fn cancel(&mut self, now: Nanos, id: u32, woken: &mut Vec<T>) -> bool {
        if self.entry(id).is_none_or(|entry| entry.state != State::Waiting) {
            return false;
        }
        self.advance(now, woken);
        // Time may have brought its turn.
        if self.entry(id).is_none_or(|entry| entry.state != State::Waiting) {
            return false;
        }
        self.leave_queue(id);
        let Some(entry) = self.entries.get_mut(id as usize).and_then(Option::take) else { return true };
        self.free.push(id);
        self.totals.cancelled += 1;
        let _ = self.reject(&entry.metrics, Reason::TimeOut);
        if let Some(index) = entry.queue {
            self.bound(index);
        }
        self.note();
        self.dispatch_all(woken);
        true
    }

    /// A queue that does not use what it is given must not save it up: its oldest request cannot start, virtually,
    /// before it arrived.
    fn bound(&mut self, index: usize) {
        let oldest = self.queues[index].waiting.front().and_then(|id| self.entry(*id)).map(|e| e.arrival_r);
        if let Some(arrival) = oldest {
            let queue = &mut self.queues[index];
            queue.next_dispatch_r = queue.next_dispatch_r.max(arrival);
        }
    }
}
