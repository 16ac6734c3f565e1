//! The search for devices on one node: request by request, device by device, back and on where it ends. The first solution is
//! taken.
//!
//! The search is a loop over a stack of frames, one a device that is to be found, so that no claim is too large for the stack.
//! A frame takes the first device from its place on that will do; when those after it find nothing, its device is given back
//! and it looks on. Devices of one request are taken in order only: other orders are the same set. Once a request has run out of
//! devices, it is known how many would do for it, and no frame looks on where fewer are left than it needs.
//!
//! Invariants:
//! - Pure: the same requests, inventory, usage, node and random bits give the same allocation.
//! - What a frame has taken is given back before it takes another, in reverse order.
//! - The search ends after [`Limit::steps`].

use super::{
    capacity,
    constraints::Constraint,
    inventory::Inventory,
    pool::{Counters, Entry, Health, Pool, counters_of},
    requests::{Alternative, DeviceRequests, Wanted},
    results,
    usage::{Amounts, Shares, Usage},
};
use kaji_meta::random::Random;
use kaji_runtime::objects::{DeviceAllocation, Node};
use std::{collections::HashMap, ops::ControlFlow};

/// The most devices of a claim.
pub const MAX_RESULTS: usize = 32;
/// Devices that are tried between two looks at the time.
const STEPS_PER_CLOCK_READ: u64 = 1024;

/// How long a search may take.
pub struct Limit<'a> {
    /// Devices that may be tried.
    pub steps: u64,
    /// Whether the time is over.
    pub expired: &'a dyn Fn() -> bool,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// The claims or their classes are wrong, whatever the node.
    #[error("{0}")]
    Wrong(String),
    /// The node's devices are.
    #[error("invalid resource pools were encountered")]
    InvalidPools,
    /// The search took too long.
    #[error("timed out trying to allocate devices")]
    TookTooLong,
}

fn wrong(text: String) -> AllocationError {
    AllocationError::Wrong(text)
}

/// A device that a node reaches.
pub struct Candidate<'a> {
    /// Its pool, by place.
    pool: usize,
    /// The device.
    pub entry: &'a Entry,
}

/// A device that was chosen.
pub struct Chosen {
    /// The request, by place.
    pub request: usize,
    /// The candidate, by place.
    pub candidate: usize,
    /// What is taken of a device that allows several allocations.
    pub shared: Option<Amounts>,
    /// Counters of its pool were charged.
    charged: bool,
}

/// One device that is to be found.
struct Frame {
    request: usize,
    alternative: usize,
    slot: usize,
    /// The candidate to try next, or the place in the list of all devices.
    next: usize,
    has_taken: bool,
}

/// What the search does next.
enum Step {
    /// Begin with an alternative of a request.
    Enter(usize, usize),
    /// Let the last frame look on.
    Advance,
    /// An alternative has no solution.
    Failed(usize, usize),
    /// An alternative would take more devices than a claim may have.
    TooMany(usize, usize),
    /// Give the last frame's device back.
    Back,
}

struct ReachedPool<'a> {
    pool: &'a Pool,
    left: Option<Counters>,
}

struct Search<'a> {
    requested: &'a DeviceRequests,
    usage: &'a Usage,
    node: &'a Node,
    limit: &'a Limit<'a>,
    steps: u64,
    pools: Vec<ReachedPool<'a>>,
    /// Devices of pools that may be used, in order.
    candidates: Vec<Candidate<'a>>,
    /// The claims that have a candidate, by its place. Shared devices are not among them.
    holders: Vec<Vec<usize>>,
    /// What this search takes of shared devices.
    shares: Vec<Shares>,
    constraints: Vec<Vec<Constraint<'a>>>,
    /// The candidates of alternatives that want all devices.
    all: Vec<Vec<Vec<usize>>>,
    chosen: Vec<Vec<Chosen>>,
    /// The alternative in use, by request.
    selected: Vec<usize>,
    /// For alternatives that have run out of devices: how many might do, from each candidate on.
    fitting: HashMap<(usize, usize), Vec<usize>>,
    /// No alternative of a request has failed for another reason than its number of devices.
    only_too_many: Vec<bool>,
    frames: Vec<Frame>,
}

/// Finds devices on a node for all claims; `None` if there are none.
///
/// # Errors
/// See [`AllocationError`]. Texts are upstream's.
pub fn allocate(
    requested: &DeviceRequests,
    inventory: &Inventory,
    usage: &Usage,
    node: &Node,
    random: &dyn Random,
    limit: &Limit<'_>,
) -> Result<Option<Vec<DeviceAllocation>>, AllocationError> {
    let reached = inventory.on(node);
    let (mut pools, mut candidates, mut unhealthy) = (vec![], vec![], vec![]);
    for (pool, part) in &reached {
        if part.health != Health::Complete {
            unhealthy.push((*pool, part.health.clone()));
            continue;
        }
        let place = pools.len();
        pools.push(ReachedPool { pool, left: None });
        candidates.extend(part.devices.iter().map(|at| Candidate { pool: place, entry: &pool.entries[*at] }));
    }
    let constraints =
        requested.claims.iter().map(|c| c.spec.constraints.iter().filter_map(Constraint::of).collect());
    let mut search = Search {
        requested,
        usage,
        node,
        limit,
        steps: 0,
        holders: candidates.iter().map(|_| vec![]).collect(),
        shares: candidates.iter().map(|_| Shares::default()).collect(),
        pools,
        candidates,
        constraints: constraints.collect(),
        all: vec![],
        chosen: requested.claims.iter().map(|_| vec![]).collect(),
        selected: vec![0; requested.requests.len()],
        fitting: HashMap::new(),
        only_too_many: vec![true; requested.requests.len()],
        frames: vec![],
    };
    search.list_all(&unhealthy)?;
    search.check_sizes()?;
    if search.run()? {
        let found =
            results::of(requested, &search.candidates, &search.chosen, &search.selected, node, random);
        return found.map(Some).map_err(wrong);
    }
    match unhealthy.iter().any(|(_, health)| *health == Health::Invalid) {
        true => Err(AllocationError::InvalidPools),
        false => Ok(None),
    }
}

impl<'a> Search<'a> {
    fn alternative(&self, request: usize, alternative: usize) -> &'a Alternative {
        &self.requested.requests[request].alternatives[alternative]
    }

    /// Lists the devices of alternatives that want all of them.
    fn list_all(&mut self, unhealthy: &[(&std::sync::Arc<Pool>, Health)]) -> Result<(), AllocationError> {
        for request in &self.requested.requests {
            let mut lists = vec![];
            for alternative in &request.alternatives {
                if alternative.wanted != Wanted::All {
                    lists.push(vec![]);
                    continue;
                }
                if let Some((pool, health)) = unhealthy.first() {
                    let claim = &self.requested.claims[request.claim].name;
                    let what = match health {
                        Health::Invalid => "invalid",
                        _ => "being updated",
                    };
                    return Err(wrong(format!(
                        "claim {claim}, request {}: asks for all devices, but resource pool {}/{} is currently {what}",
                        alternative.name, pool.key.0, pool.key.1
                    )));
                }
                let mut list = vec![];
                for (place, candidate) in self.candidates.iter().enumerate() {
                    if selectable(alternative, candidate.entry, self.node)?
                        && self.could_serve(request.claim, alternative, candidate.entry)?
                    {
                        list.push(place);
                    }
                }
                lists.push(list);
            }
            self.all.push(lists);
        }
        Ok(())
    }

    fn wanted(&self, request: usize, alternative: usize) -> usize {
        match self.alternative(request, alternative).wanted {
            Wanted::Count(count) => count,
            Wanted::All => self.all[request][alternative].len(),
        }
    }

    /// No claim may need more devices than its status can hold.
    fn check_sizes(&self) -> Result<(), AllocationError> {
        for (place, claim) in self.requested.claims.iter().enumerate() {
            let requests = self.requested.requests.iter().enumerate().filter(|(_, r)| r.claim == place);
            let least = requests.map(|(request, r)| {
                (0..r.alternatives.len()).map(|a| self.wanted(request, a)).min().unwrap_or_default()
            });
            let least: usize = least.fold(0, usize::saturating_add);
            if least > MAX_RESULTS {
                return Err(wrong(format!(
                    "claim {}: number of requested devices {least} exceeds the claim limit of {MAX_RESULTS}",
                    claim.name
                )));
            }
        }
        Ok(())
    }

    fn run(&mut self) -> Result<bool, AllocationError> {
        let mut step = Step::Enter(0, 0);
        loop {
            let next = match step {
                Step::Enter(request, alternative) => self.enter(request, alternative),
                Step::Advance => self.advance()?,
                Step::Failed(request, alternative) => {
                    self.only_too_many[request] = false;
                    ControlFlow::Continue(self.next_alternative(request, alternative))
                }
                Step::TooMany(request, alternative) => {
                    ControlFlow::Continue(self.too_many(request, alternative))
                }
                Step::Back => self.back(),
            };
            match next {
                ControlFlow::Continue(next) => step = next,
                ControlFlow::Break(found) => return Ok(found),
            }
        }
    }

    fn enter(&mut self, request: usize, alternative: usize) -> ControlFlow<bool, Step> {
        let Some(of) = self.requested.requests.get(request) else { return ControlFlow::Break(true) };
        if alternative == 0 {
            self.only_too_many[request] = true;
        }
        self.selected[request] = alternative;
        let wanted = self.wanted(request, alternative);
        ControlFlow::Continue(if wanted == 0 {
            Step::Failed(request, alternative)
        } else if self.chosen[of.claim].len() + wanted > MAX_RESULTS {
            Step::TooMany(request, alternative)
        } else {
            self.frames.push(Frame { request, alternative, slot: 0, next: 0, has_taken: false });
            Step::Advance
        })
    }

    /// The last frame takes its next device, if there is one.
    fn advance(&mut self) -> Result<ControlFlow<bool, Step>, AllocationError> {
        let Some(mut frame) = self.frames.pop() else { return Ok(ControlFlow::Break(false)) };
        let (request, alternative) = (frame.request, frame.alternative);
        frame.has_taken = match self.alternative(request, alternative).wanted {
            Wanted::Count(count) => {
                let mut found = false;
                while !found && self.enough_left(&frame, count) {
                    found = self.take(request, alternative, frame.next, false)?;
                    frame.next += 1;
                }
                if !found {
                    self.count_fitting(request, alternative)?;
                }
                found
            }
            // The order does not matter: there is one way only.
            Wanted::All if frame.next == 0 => {
                frame.next = 1;
                let candidate = self.all[request][alternative][frame.slot];
                self.take(request, alternative, candidate, true)?
            }
            Wanted::All => false,
        };
        let (slot, next) = (frame.slot + 1, frame.next);
        if !frame.has_taken {
            let first = frame.slot == 0;
            return Ok(ControlFlow::Continue(if first {
                Step::Failed(request, alternative)
            } else {
                Step::Back
            }));
        }
        self.frames.push(frame);
        if slot == self.wanted(request, alternative) {
            return Ok(ControlFlow::Continue(Step::Enter(request + 1, 0)));
        }
        let next = if self.alternative(request, alternative).wanted == Wanted::All { 0 } else { next };
        self.frames.push(Frame { request, alternative, slot, next, has_taken: false });
        Ok(ControlFlow::Continue(Step::Advance))
    }

    /// Whether there can be enough devices from the frame's next candidate on, for it and those after it.
    fn enough_left(&self, frame: &Frame, count: usize) -> bool {
        let left = match self.fitting.get(&(frame.request, frame.alternative)) {
            Some(fitting) => fitting.get(frame.next).copied().unwrap_or_default(),
            None => self.candidates.len().saturating_sub(frame.next),
        };
        left >= count.saturating_sub(frame.slot).max(1)
    }

    /// Counts the candidates that might do for an alternative, whatever else this search takes.
    fn count_fitting(&mut self, request: usize, alternative: usize) -> Result<(), AllocationError> {
        if self.fitting.contains_key(&(request, alternative)) {
            return Ok(());
        }
        let requirements = self.alternative(request, alternative);
        let mut fitting = vec![0; self.candidates.len()];
        let mut left = 0;
        for (place, candidate) in self.candidates.iter().enumerate().rev() {
            let entry = candidate.entry;
            let free = requirements.admin_access || !self.usage.is_whole(&entry.id);
            if free && requirements.tolerates(&entry.taints) && selectable(requirements, entry, self.node)? {
                left += 1;
            }
            fitting[place] = left;
        }
        self.fitting.insert((request, alternative), fitting);
        Ok(())
    }

    fn next_alternative(&self, request: usize, alternative: usize) -> Step {
        match alternative + 1 < self.requested.requests[request].alternatives.len() {
            true => Step::Enter(request, alternative + 1),
            false => Step::Back,
        }
    }

    /// Other devices for the claim's former requests do not help; other alternatives of them may.
    fn too_many(&mut self, request: usize, alternative: usize) -> Step {
        let next = self.next_alternative(request, alternative);
        if !matches!(next, Step::Back) || !self.only_too_many[request] {
            return next;
        }
        let claim = self.requested.requests[request].claim;
        match request.checked_sub(1).filter(|former| self.requested.requests[*former].claim == claim) {
            None => Step::Back,
            Some(former) => {
                while self.frames.last().is_some_and(|frame| frame.request == former) {
                    self.give_back();
                }
                Step::TooMany(former, self.selected[former])
            }
        }
    }

    fn back(&mut self) -> ControlFlow<bool, Step> {
        let Some(frame) = self.give_back() else { return ControlFlow::Break(false) };
        self.selected[frame.request] = frame.alternative;
        self.frames.push(frame);
        ControlFlow::Continue(Step::Advance)
    }

    /// Takes the last frame off, and gives its device back.
    fn give_back(&mut self) -> Option<Frame> {
        let mut frame = self.frames.pop()?;
        if std::mem::take(&mut frame.has_taken) {
            self.release(frame.request, frame.alternative);
        }
        Some(frame)
    }
}

/// Whether an alternative's selectors accept a device, and the node reaches it.
fn selectable(alternative: &Alternative, entry: &Entry, node: &Node) -> Result<bool, AllocationError> {
    for (name, selector) in &alternative.selectors {
        let selector = selector.as_ref().map_err(|e| wrong(format!("{name}: CEL compile error: {e}")))?;
        let matches = entry.verdicts.matches(selector, &entry.id.driver, entry.device());
        if !matches.map_err(|e| wrong(format!("{name}: CEL runtime error: {e}")))? {
            return Ok(false);
        }
    }
    Ok(entry.reached_by(node))
}

impl Search<'_> {
    /// What an alternative of a claim's request takes of a device.
    fn asked(
        &self,
        claim: usize,
        alternative: &Alternative,
        entry: &Entry,
    ) -> Result<Option<Amounts>, AllocationError> {
        capacity::consumption(&alternative.capacity, entry.device()).map_err(|why| {
            wrong(format!(
                "claim {}, request {}: checking capacity for device {}: {why}",
                self.requested.claims[claim].name, alternative.name, entry.id
            ))
        })
    }

    /// Whether a device that nothing is taken of has enough. A request for all devices gets none if one that could serve is used up.
    fn could_serve(
        &self,
        claim: usize,
        alternative: &Alternative,
        entry: &Entry,
    ) -> Result<bool, AllocationError> {
        let asked = self.asked(claim, alternative, entry)?;
        Ok(asked.is_some_and(|taken| capacity::fits(&taken, entry.device(), [])))
    }

    /// What an alternative would take of a candidate's capacity, if there is enough.
    fn consumption(
        &self,
        claim: usize,
        alternative: &Alternative,
        place: usize,
    ) -> Result<Option<Amounts>, AllocationError> {
        let entry = self.candidates[place].entry;
        let used = [self.usage.shares(&entry.id), Some(&self.shares[place])];
        let fits = |taken: &Amounts| capacity::fits(taken, entry.device(), used.into_iter().flatten());
        Ok(self.asked(claim, alternative, entry)?.filter(fits))
    }

    /// Takes a candidate if it will do. An alternative that asks for all devices must have it.
    fn take(
        &mut self,
        request: usize,
        alternative: usize,
        place: usize,
        must: bool,
    ) -> Result<bool, AllocationError> {
        self.steps += 1;
        if self.steps > self.limit.steps
            || (self.steps.is_multiple_of(STEPS_PER_CLOCK_READ) && (self.limit.expired)())
        {
            return Err(AllocationError::TookTooLong);
        }
        let of = &self.requested.requests[request];
        let requirements = &of.alternatives[alternative];
        let entry = self.candidates[place].entry;
        let (device, holders) = (entry.device(), &self.holders[place]);
        let in_use = match requirements.admin_access {
            true => holders.contains(&of.claim),
            false => !holders.is_empty() || self.usage.is_whole(&entry.id),
        };
        if in_use || !selectable(requirements, entry, self.node)? || !requirements.tolerates(&entry.taints) {
            return Ok(false);
        }
        let Some(consumed) = self.consumption(of.claim, requirements, place)? else { return Ok(false) };
        let shared = device.allow_multiple_allocations;
        // A shared device takes of the counters once.
        let counted = shared && (self.shares[place].count > 0 || self.usage.shares(&entry.id).is_some());
        let charged = !device.consumes_counters.is_empty() && !counted;
        if charged && !self.charge(place) {
            return Ok(false);
        }
        if !self.add_to_constraints(request, alternative, place) {
            if charged {
                self.discharge(place);
            }
            return match must {
                true => Err(wrong(format!(
                    "claim {}, request {}: cannot add device {} because a claim constraint would not be satisfied",
                    self.requested.claims[of.claim].name, requirements.name, entry.id
                ))),
                false => Ok(false),
            };
        }
        if shared {
            self.shares[place].add(&consumed);
        } else {
            self.holders[place].push(of.claim);
        }
        let shared = shared.then_some(consumed);
        self.chosen[of.claim].push(Chosen { request, candidate: place, shared, charged });
        Ok(true)
    }

    fn add_to_constraints(&mut self, request: usize, alternative: usize, place: usize) -> bool {
        let of = &self.requested.requests[request];
        let entry = self.candidates[place].entry;
        let constraints = &mut self.constraints[of.claim];
        let at = of.names(alternative);
        for tried in 0..constraints.len() {
            if !constraints[tried].add(at, &entry.id, entry.device()) {
                constraints[..tried].iter_mut().for_each(|c| c.remove(at));
                return false;
            }
        }
        true
    }

    /// Gives the device back that a request has taken last.
    fn release(&mut self, request: usize, alternative: usize) {
        let of = &self.requested.requests[request];
        let Some(last) = self.chosen[of.claim].pop() else { return };
        let at = of.names(alternative);
        self.constraints[of.claim].iter_mut().for_each(|constraint| constraint.remove(at));
        match &last.shared {
            Some(consumed) => self.shares[last.candidate].remove(consumed),
            None => drop(self.holders[last.candidate].pop()),
        }
        if last.charged {
            self.discharge(last.candidate);
        }
    }

    /// Takes a device's counters, if there are enough.
    fn charge(&mut self, place: usize) -> bool {
        let candidate = &self.candidates[place];
        let (entry, of) = (candidate.entry, &mut self.pools[candidate.pool]);
        let left = of.left.get_or_insert_with(|| of.pool.counters_left(self.usage));
        for (key, amount) in counters_of(entry.device()) {
            if let Some(left) = left.get_mut(&key) {
                *left -= amount;
            }
        }
        let enough =
            counters_of(entry.device()).all(|(key, _)| left.get(&key).is_some_and(|left| left.sign() >= 0));
        if !enough {
            self.discharge(place);
        }
        enough
    }

    fn discharge(&mut self, place: usize) {
        let candidate = &self.candidates[place];
        let entry = candidate.entry;
        let Some(left) = &mut self.pools[candidate.pool].left else { return };
        for (key, amount) in counters_of(entry.device()) {
            if let Some(left) = left.get_mut(&key) {
                *left += amount;
            }
        }
    }
}
