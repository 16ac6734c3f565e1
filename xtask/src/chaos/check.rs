//! Compares a history with one order of all writes, that of resourceVersions.
//!
//! What must hold: watches agree on one log of events, miss and repeat none, and deliver nothing foreign; an acknowledged write is
//! in the log, at the revision that was acknowledged and after everything that was seen before it began; a write with a
//! precondition follows the revision that it names; what was refused is not in the log, and nothing is there twice; a read
//! shows a state of the log that is not older than anything that was acknowledged or seen before it began; all pages of a list
//! are of one revision. The log is known where an unfiltered watch has followed it; about other parts nothing is claimed.

use super::history::{Change, Event, History, Operation, Outcome, Request, Revision, Time, Version, Watched};
use std::collections::{BTreeMap, HashMap};

/// Complaints that are reported at most.
const MOST: usize = 50;

/// What was checked, and what does not hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Violations.
    pub violations: Vec<String>,
    /// Events of the log.
    pub events: usize,
    /// Operations that were checked.
    pub checked: usize,
    /// Operations about which the log says nothing.
    pub unchecked: usize,
}

/// Events by revision, and where they are known to be all.
struct Log {
    events: BTreeMap<Revision, Event>,
    /// By object, in order.
    objects: HashMap<String, Vec<(Revision, Option<Version>)>>,
    /// Half-open intervals `(from, to]`, apart and in order.
    known: Vec<(Revision, Revision)>,
    /// Until then there was no object.
    from: Revision,
}

impl Log {
    fn new(history: &History, complaints: &mut Vec<String>) -> Log {
        let mut events = BTreeMap::<Revision, Event>::new();
        for event in history.watched.iter().flat_map(|watched| &watched.events) {
            let known = events.entry(event.version.revision).or_insert_with(|| event.clone());
            if (known.change, &known.version) != (event.change, &event.version) {
                complaints.push(format!("watches disagree about a revision: {known:?} and {event:?}"));
            }
            known.seen = known.seen.min(event.seen);
        }
        let mut known: Vec<(Revision, Revision)> =
            history.watched.iter().filter(|w| w.only.is_none()).map(|w| (w.from, w.to)).collect();
        known.sort_unstable();
        let mut joined: Vec<(Revision, Revision)> = vec![];
        for (from, to) in known {
            match joined.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(to),
                _ => joined.push((from, to)),
            }
        }
        let mut objects = HashMap::<String, Vec<(Revision, Option<Version>)>>::new();
        for (revision, event) in &events {
            let version = (event.change != Change::Deleted).then(|| event.version.clone());
            objects.entry(event.version.name.clone()).or_default().push((*revision, version));
        }
        Log { events, objects, known: joined, from: history.from }
    }

    /// Whether the state of an object at a revision is known: nothing is missing since its last event. Compaction may have cut off
    /// all watches at the same time.
    fn settled(&self, name: &str, at: Revision) -> bool {
        let all = self.objects.get(name).map_or(&[][..], |all| all);
        let after = all.partition_point(|(revision, _)| *revision <= at);
        self.knows(after.checked_sub(1).map_or(self.from, |last| all[last].0), at)
    }

    /// Whether everything in `(from, to]` is known.
    fn knows(&self, from: Revision, to: Revision) -> bool {
        from >= to || self.known.iter().any(|(first, last)| *first <= from && to <= *last)
    }

    /// The states of an object at some revision of an interval, bounds included.
    fn states(&self, name: &str, from: Revision, to: Revision) -> Vec<Option<&Version>> {
        let all = self.objects.get(name).map_or(&[][..], |all| all);
        let after = all.partition_point(|(revision, _)| *revision <= from);
        let first = after.checked_sub(1).and_then(|at| all[at].1.as_ref());
        let later = all[after..].iter().take_while(|(revision, _)| *revision <= to);
        std::iter::once(first).chain(later.map(|(_, version)| version.as_ref())).collect()
    }

    /// All objects at a revision.
    fn at(&self, revision: Revision) -> Vec<&Version> {
        let mut all: Vec<&Version> =
            self.objects.keys().filter_map(|name| self.states(name, revision, revision)[0]).collect();
        all.sort_unstable();
        all
    }
}

/// What was certainly written before a time, and what was certainly written after it.
struct Bounds {
    /// Times with the highest revision seen until then.
    before: Vec<(Time, Revision)>,
    /// Times with the lowest revision that was written by operations that began then or later.
    after: Vec<(Time, Revision)>,
}

impl Bounds {
    fn new(history: &History) -> Bounds {
        let (mut before, mut after) = (vec![(0, history.from)], vec![]);
        for operation in &history.operations {
            match &operation.outcome {
                // What may be old was certainly written, like everything that is seen.
                Outcome::Object(version) => {
                    before.push((operation.end, version.revision));
                    if !matches!(operation.request, Request::Get | Request::GetAny) {
                        after.push((operation.begin, version.revision));
                    }
                }
                Outcome::Listed(revision, _) => before.push((operation.end, *revision)),
                _ => {}
            }
        }
        let events = history.watched.iter().flat_map(|watched| &watched.events);
        before.extend(events.map(|event| (event.seen, event.version.revision)));
        before.sort_unstable();
        let mut highest = 0;
        for (_, revision) in &mut before {
            highest = highest.max(*revision);
            *revision = highest;
        }
        after.sort_unstable();
        let mut lowest = Revision::MAX;
        for (_, revision) in after.iter_mut().rev() {
            lowest = lowest.min(*revision);
            *revision = lowest;
        }
        Bounds { before, after }
    }

    /// The first and the last revision that an operation can have met.
    fn of(&self, begin: Time, end: Time) -> (Revision, Revision) {
        let seen = self.before.partition_point(|(time, _)| *time < begin);
        let low = seen.checked_sub(1).map_or(0, |at| self.before[at].1);
        let later = self.after.partition_point(|(time, _)| *time <= end);
        (low, self.after.get(later).map_or(Revision::MAX, |(_, revision)| revision - 1))
    }
}

/// Checks a history.
pub fn check(history: &History) -> Verdict {
    let mut complaints = vec![];
    let log = Log::new(history, &mut complaints);
    check_objects(&log, &mut complaints);
    for watched in &history.watched {
        check_watch(watched, &log, &mut complaints);
    }
    check_values(history, &log, &mut complaints);
    let bounds = Bounds::new(history);
    let last = log.known.last().map_or(0, |(_, to)| *to);
    let (mut checked, mut unchecked) = (0, 0);
    for operation in &history.operations {
        if let Outcome::Malformed(what) = &operation.outcome {
            complaints.push(format!("{what}: {operation:?}"));
            continue;
        }
        let (low, high) = bounds.of(operation.begin, operation.end);
        if low > high {
            complaints.push(format!(
                "revision {low} was seen before this began, and a write that began after it got {}: {operation:?}",
                high + 1
            ));
            continue;
        }
        let high = high.min(last.max(low));
        let first = low.max(history.from);
        if !log.knows(first, high)
            || !(operation.name.is_empty() || log.settled(&operation.name, first))
            || matches!(operation.outcome, Outcome::Unsent | Outcome::Unknown(_))
        {
            unchecked += 1;
            continue;
        }
        checked += 1;
        if let Err(what) = check_operation(operation, &log, low, high, last) {
            complaints.push(format!("{what}; it can have met revisions {low} to {high}: {operation:?}"));
        }
    }
    complaints.truncate(MOST);
    Verdict { violations: complaints, events: log.events.len(), checked, unchecked }
}

/// Objects are made, changed and removed in this order.
fn check_objects(log: &Log, complaints: &mut Vec<String>) {
    let mut objects = HashMap::<&str, &Version>::new();
    for (revision, event) in &log.events {
        // What happened before, in a part that is not known, is not looked at.
        let name = event.version.name.as_str();
        let before = objects.get(name).copied();
        let since = before.map_or(0, |version| version.revision);
        let continuous = log.knows(since, *revision);
        let fits = match (event.change, before) {
            (Change::Added, before) => before.is_none(),
            // A deletion shows what was deleted.
            (Change::Deleted, Some(before)) => {
                (&before.uid, before.value) == (&event.version.uid, event.version.value)
            }
            (_, Some(before)) => before.uid == event.version.uid,
            (_, None) => false,
        };
        if continuous && !fits {
            complaints.push(format!("{event:?} does not follow {before:?}"));
        }
        match event.change {
            Change::Deleted => objects.remove(name),
            _ => objects.insert(name, &event.version),
        };
    }
}

/// A watch has what is in the log, once, in order.
fn check_watch(watched: &Watched, log: &Log, complaints: &mut Vec<String>) {
    let of_it = |version: &Version| watched.only.as_ref().is_none_or(|only| *only == version.name);
    let mut last = watched.from;
    for event in &watched.events {
        let revision = event.version.revision;
        if revision <= last {
            complaints.push(format!("a watch delivered {event:?} after revision {last}"));
        }
        if !of_it(&event.version) {
            complaints.push(format!("a watch of {:?} delivered {event:?}", watched.only));
        }
        last = revision.max(last);
    }
    if watched.to < watched.from {
        return;
    }
    let seen: std::collections::HashSet<Revision> =
        watched.events.iter().map(|e| e.version.revision).collect();
    for (revision, event) in log.events.range(watched.from + 1..watched.to + 1) {
        if of_it(&event.version) && !seen.contains(revision) {
            complaints.push(format!(
                "a watch of {:?} from {} to {} has not delivered {event:?}",
                watched.only, watched.from, watched.to
            ));
        }
    }
}

/// What is in the log was written by an operation, once, and not by one that was refused.
fn check_values(history: &History, log: &Log, complaints: &mut Vec<String>) {
    let writers: HashMap<u64, &Operation> = history.operations.iter().map(|o| (o.number, o)).collect();
    let mut written = HashMap::<u64, &Event>::new();
    for event in log.events.values().filter(|event| event.change != Change::Deleted) {
        let value = event.version.value;
        if let Some(first) = written.insert(value, event) {
            complaints.push(format!("one operation has had an effect twice: {first:?} and {event:?}"));
        }
        match writers.get(&value) {
            None => complaints.push(format!("nothing has written {event:?}")),
            Some(writer) if matches!(writer.outcome, Outcome::Refused(_) | Outcome::Unsent) => {
                complaints.push(format!("{writer:?} has had an effect: {event:?}"));
            }
            Some(writer) if writer.name != event.version.name || writer.begin > event.seen => {
                complaints.push(format!("{writer:?} cannot have written {event:?}"));
            }
            Some(_) => {}
        }
    }
    // A deletion does not say which operation it is of: there are not more of them than operations.
    let mut deletions = HashMap::<&str, (usize, usize, usize)>::new();
    for event in log.events.values().filter(|event| event.change == Change::Deleted) {
        deletions.entry(&event.version.name).or_default().0 += 1;
    }
    for operation in history.operations.iter().filter(|o| matches!(o.request, Request::Delete(_))) {
        let counts = deletions.entry(&operation.name).or_default();
        match operation.outcome {
            Outcome::Deleted => counts.1 += 1,
            Outcome::Unknown(_) => counts.2 += 1,
            _ => {}
        }
    }
    let complete = log.known.len() == 1;
    for (name, (events, acknowledged, unknown)) in deletions {
        if complete && (events < acknowledged || events > acknowledged + unknown) {
            complaints.push(format!(
                "{name} was deleted {events} times, by {acknowledged} acknowledged and {unknown} uncertain deletions"
            ));
        }
    }
}

/// An operation that had an outcome.
fn check_operation(
    operation: &Operation,
    log: &Log,
    low: Revision,
    high: Revision,
    last: Revision,
) -> Result<(), String> {
    let name = operation.name.as_str();
    match (&operation.request, &operation.outcome) {
        (Request::Get, Outcome::Object(version)) => {
            let states = log.states(name, low, high);
            if states.contains(&Some(version)) {
                Ok(())
            } else {
                Err(format!("a read is of none of {states:?}"))
            }
        }
        (Request::Get, Outcome::Refused(404))
        | (Request::Delete(_) | Request::Update(_) | Request::Patch, Outcome::Refused(404)) => {
            match log.states(name, low, high).contains(&None) {
                true => Ok(()),
                false => Err("an object that is there was not found".into()),
            }
        }
        (Request::Apply, Outcome::Refused(404)) => Err("an apply has not created what was not there".into()),
        (Request::GetAny, Outcome::Object(version)) => match log.events.get(&version.revision) {
            Some(event) if event.version == *version && version.revision <= high => Ok(()),
            None if !log.knows(version.revision - 1, version.revision) => Ok(()),
            other => Err(format!("a read of any state is of none that there was: {other:?}")),
        },
        (Request::List(_) | Request::ListAt(_), Outcome::Listed(revision, items)) => {
            let fits = match operation.request {
                Request::ListAt(asked) => *revision == asked,
                _ => (low..=high).contains(revision),
            };
            if !fits {
                return Err(format!("a list is of revision {revision}"));
            }
            let settled = |version: &&Version| log.settled(&version.name, *revision);
            let mut found: Vec<&Version> = items.iter().filter(settled).collect();
            found.sort_unstable();
            let mut expected = log.at(*revision);
            expected.retain(settled);
            if found == expected { Ok(()) } else { Err(format!("a list should hold {expected:?}")) }
        }
        (request, Outcome::Object(version)) => check_write(request, version, log, low, high, last),
        (Request::Create, Outcome::Refused(409)) => {
            match log.states(name, low, high).iter().any(Option::is_some) {
                true => Ok(()),
                false => Err("an object that is not there existed already".into()),
            }
        }
        (Request::Update(expected) | Request::Delete(Some(expected)), Outcome::Refused(409)) => {
            let states = log.states(name, low, high);
            match states.iter().any(|state| state.is_none_or(|version| version.revision != *expected)) {
                true => Ok(()),
                false => Err("a precondition that holds was refused".into()),
            }
        }
        (Request::Delete(expected), Outcome::Deleted) => check_delete(name, *expected, log, low, high),
        _ => Ok(()),
    }
}

fn check_write(
    request: &Request,
    version: &Version,
    log: &Log,
    low: Revision,
    high: Revision,
    last: Revision,
) -> Result<(), String> {
    if version.revision <= low || version.revision > high.max(last) {
        return Err(format!("a write got revision {}", version.revision));
    }
    match log.events.get(&version.revision) {
        Some(event) if event.version == *version && event.change != Change::Deleted => {}
        Some(event) => return Err(format!("an acknowledged write is another one: {event:?}")),
        None if log.knows(version.revision - 1, version.revision) => {
            return Err("an acknowledged write is lost".into());
        }
        None => return Ok(()),
    }
    if !log.settled(&version.name, version.revision - 1) {
        return Ok(());
    }
    let before = log.states(&version.name, version.revision - 1, version.revision - 1)[0];
    match request {
        Request::Create if before.is_some() => Err(format!("what was created existed: {before:?}")),
        Request::Update(expected) if before.is_none_or(|before| before.revision != *expected) => {
            Err(format!("an update with a precondition follows {before:?}"))
        }
        Request::Patch if before.is_none() => Err("a patch has created an object".into()),
        _ => Ok(()),
    }
}

fn check_delete(
    name: &str,
    expected: Option<Revision>,
    log: &Log,
    low: Revision,
    high: Revision,
) -> Result<(), String> {
    let all = log.objects.get(name).map_or(&[][..], |all| all);
    let pairs = all.windows(2).filter(|pair| pair[1].1.is_none() && pair[1].0 > low && pair[1].0 <= high);
    let mut befores = pairs.filter_map(|pair| pair[0].1.as_ref());
    match befores.any(|before| expected.is_none_or(|expected| before.revision == expected)) {
        true => Ok(()),
        false => Err("an acknowledged deletion is not in the log".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(name: &str, revision: Revision, value: u64) -> Version {
        Version { name: name.into(), uid: "u".into(), revision, value }
    }

    fn operation(number: u64, name: &str, request: Request, at: (Time, Time), outcome: Outcome) -> Operation {
        Operation { number, server: 0, name: name.into(), request, begin: at.0, end: at.1, outcome }
    }

    fn event(change: Change, name: &str, revision: Revision, value: u64, seen: Time) -> Event {
        Event { change, version: version(name, revision, value), seen }
    }

    /// a is created at 11, updated at 12 with a precondition, read, deleted at 13.
    fn good() -> History {
        let wrote = |revision, value| Outcome::Object(version("a", revision, value));
        History {
            from: 10,
            operations: vec![
                operation(1, "a", Request::Create, (1, 2), wrote(11, 1)),
                operation(2, "a", Request::Create, (3, 4), Outcome::Refused(409)),
                operation(3, "a", Request::Update(11), (5, 6), wrote(12, 3)),
                operation(4, "a", Request::Update(11), (7, 8), Outcome::Refused(409)),
                operation(5, "a", Request::Get, (7, 8), wrote(12, 3)),
                operation(6, "", Request::List(0), (7, 8), Outcome::Listed(12, vec![version("a", 12, 3)])),
                operation(7, "a", Request::Delete(Some(12)), (9, 10), Outcome::Deleted),
                operation(8, "a", Request::Get, (20, 21), Outcome::Refused(404)),
            ],
            watched: vec![Watched {
                only: None,
                from: 10,
                to: 13,
                events: vec![
                    event(Change::Added, "a", 11, 1, 3),
                    event(Change::Modified, "a", 12, 3, 7),
                    event(Change::Deleted, "a", 13, 3, 11),
                ],
            }],
        }
    }

    fn complaint(change: impl FnOnce(&mut History)) -> String {
        let mut history = good();
        change(&mut history);
        check(&history).violations.join("; ")
    }

    #[test]
    fn what_happened_while_no_watch_looked_is_not_known() {
        let mut history = good();
        let events = vec![event(Change::Added, "b", 21, 13, 25)];
        history.watched.push(Watched { only: None, from: 20, to: 22, events });
        // a was made again at 15.
        let (a, b) = (version("a", 15, 12), version("b", 21, 13));
        let list = |items| operation(11, "", Request::List(0), (32, 33), Outcome::Listed(22, items));
        history.operations.extend([
            operation(12, "a", Request::Create, (15, 16), Outcome::Object(a.clone())),
            operation(13, "b", Request::Create, (23, 24), Outcome::Object(b.clone())),
            operation(10, "a", Request::Get, (30, 31), Outcome::Object(a.clone())),
            list(vec![a.clone(), b]),
        ]);
        assert_eq!(check(&history).violations, Vec::<String>::new());
        // What is known is checked.
        history.operations.push(list(vec![a]));
        assert_eq!(check(&history).violations.len(), 1);
    }

    #[test]
    fn a_history_without_violations() {
        assert_eq!(check(&good()), Verdict { events: 3, checked: 8, ..Verdict::default() });
        // An uncertain write may have happened, or not.
        for events in [vec![], vec![event(Change::Added, "b", 14, 9, 22)]] {
            let text = complaint(|history| {
                let unknown = Outcome::Unknown("timeout".into());
                history.operations.push(operation(9, "b", Request::Create, (20, 21), unknown));
                history.watched[0].to = 14;
                history.watched[0].events.extend(events);
            });
            assert_eq!(text, "");
        }
    }

    #[test]
    fn writes_that_are_lost_or_doubled() {
        let text = complaint(|history| {
            history.watched[0].events.remove(1);
        });
        assert!(text.contains("an acknowledged write is lost"), "{text}");
        let text =
            complaint(|history| history.watched[0].events.insert(2, event(Change::Modified, "b", 13, 1, 9)));
        assert!(text.contains("had an effect twice"), "{text}");
        let text = complaint(|history| history.operations[3].outcome = Outcome::Object(version("a", 13, 4)));
        assert!(text.contains("an acknowledged write is another one"), "{text}");
        let text = complaint(|history| history.operations[2].request = Request::Update(10));
        assert!(text.contains("an update with a precondition follows"), "{text}");
        let text = complaint(|history| history.operations[2].outcome = Outcome::Refused(409));
        assert!(text.contains("has had an effect"), "{text}");
        let text = complaint(|history| {
            history.watched[0].events.pop();
        });
        assert!(text.contains("an acknowledged deletion is not in the log"), "{text}");
    }

    #[test]
    fn an_apply_creates_or_changes() {
        let apply =
            |number, begin, outcome| operation(number, "a", Request::Apply, (begin, begin + 1), outcome);
        let wrote = |revision, value| Outcome::Object(version("a", revision, value));
        let text = complaint(|history| {
            history.operations[0].request = Request::Apply;
            history.operations[2].request = Request::Apply;
            history.operations.push(apply(9, 30, wrote(14, 9)));
            history.watched[0].to = 14;
            history.watched[0].events.push(event(Change::Added, "a", 14, 9, 31));
        });
        assert_eq!(text, "");
        let text = complaint(|history| history.operations.push(apply(9, 30, Outcome::Refused(404))));
        assert!(text.contains("has not created what was not there"), "{text}");
    }

    #[test]
    fn reads_that_are_stale() {
        let text = complaint(|history| history.operations[4].outcome = Outcome::Object(version("a", 11, 1)));
        assert!(text.contains("a read is of none of"), "{text}");
        let text = complaint(|history| {
            history.operations[5].outcome = Outcome::Listed(11, vec![version("a", 11, 1)])
        });
        assert!(text.contains("a list is of revision 11"), "{text}");
        let text = complaint(|history| history.operations[5].outcome = Outcome::Listed(12, vec![]));
        assert!(text.contains("a list should hold"), "{text}");
        let text = complaint(|history| history.operations[7].outcome = Outcome::Object(version("a", 12, 3)));
        assert!(text.contains("a read is of none of"), "{text}");
        let text = complaint(|history| {
            let again = operation(9, "b", Request::Create, (30, 31), Outcome::Object(version("b", 9, 9)));
            history.operations.push(again);
        });
        assert!(text.contains("was seen before this began"), "{text}");
    }

    #[test]
    fn reads_of_the_past() {
        let of = |revision, items| {
            let listed = Outcome::Listed(revision, items);
            complaint(|history| {
                history.operations.push(operation(9, "", Request::ListAt(11), (30, 31), listed))
            })
        };
        assert_eq!(of(11, vec![version("a", 11, 1)]), "");
        assert!(of(11, vec![]).contains("a list should hold"));
        assert!(of(12, vec![version("a", 12, 3)]).contains("a list is of revision 12"));
        let of = |version| {
            let read = Outcome::Object(version);
            complaint(|history| history.operations.push(operation(9, "a", Request::GetAny, (30, 31), read)))
        };
        assert_eq!(of(version("a", 11, 1)), "");
        assert!(of(version("a", 11, 3)).contains("a read of any state is of none that there was"));
    }

    #[test]
    fn watches_that_err() {
        let text = complaint(|history| {
            let mut second = history.watched[0].clone();
            second.events.remove(1);
            history.watched.push(second);
        });
        assert!(text.contains("has not delivered"), "{text}");
        let text = complaint(|history| {
            let mut second = history.watched[0].clone();
            second.events[1].version.value = 1;
            history.watched.push(second);
        });
        assert!(text.contains("watches disagree"), "{text}");
        let text = complaint(|history| {
            let repeated = history.watched[0].events[0].clone();
            history.watched[0].events.push(repeated);
        });
        assert!(text.contains("after revision 13"), "{text}");
        let text = complaint(|history| {
            history.watched.push(Watched { only: Some("b".into()), ..history.watched[0].clone() });
        });
        assert!(text.contains("a watch of Some(\"b\") delivered"), "{text}");
    }
}
