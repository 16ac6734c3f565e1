//! What the loops of a process have written while which process held their lease, by the servers' audit logs: in the order of
//! revisions, in which no clock and no delay takes part.
//!
//! What client-go's election promises is checked, and no more: a lease is taken from another process only when that has not renewed
//! it for its whole duration, and a process that has lost it ends its loops. It does not fence: what a process had begun to
//! write before it was stopped where it is may be accepted when it goes on. Upstream gives it ten seconds to notice (the renew
//! deadline); here it has [`WAKES`] of running.
//!
//! Invariants: a write is attributed to the process that its server was at that revision; one that is not in a log (its server was
//! killed before it was recorded) is not examined, and no other process gets it.

use super::leaders::{Signals, Time, WAKES, awake};
use crate::bench::Error;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// The audit policy: writes of loops, and their leases.
const POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- level: RequestResponse
  verbs: [create, update, patch]
  users: ['system:kube-controller-manager', 'system:kube-scheduler']
- level: RequestResponse
  verbs: [create, update, patch]
  userGroups: ['system:serviceaccounts:kube-system']
- level: None
";
/// What two clocks of one machine may differ by.
const SLACK: Duration = Duration::from_millis(50);

/// Writes the policy, and says with which flags a server records its loops' writes.
///
/// # Errors
/// When the file cannot be written.
pub fn flags(dir: &Path, server: usize) -> Result<Vec<String>, Error> {
    let policy = dir.join("audit.yaml");
    fs::write(&policy, POLICY).map_err(|e| Error::file(&policy, e))?;
    let flag = |name: &str, path: PathBuf| [name.to_owned(), path.display().to_string()];
    let flags = [flag("--audit-policy-file", policy), flag("--audit-log-path", log(dir, server))];
    Ok([flags.concat(), vec!["--audit-log-maxsize".into(), "0".into()]].concat())
}

fn log(dir: &Path, server: usize) -> PathBuf {
    dir.join(format!("s{server}.audit.log"))
}

/// An acknowledged write of a component in a server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Write {
    server: usize,
    /// The lease that it takes.
    lease: String,
    /// What was written, for messages.
    object: String,
    revision: u64,
    received: Time,
    done: Time,
    /// Of a write of the lease itself.
    hold: Option<Hold>,
}

/// What a lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Hold {
    /// The process; empty when it was given back.
    holder: String,
    duration: Duration,
    transitions: u64,
}

/// What one run has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Writes of loops that were examined.
    pub writes: usize,
    /// Those of processes that had lost their lease, soon after they were woken.
    pub late: usize,
    /// What does not hold.
    pub violations: Vec<String>,
}

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

/// Reads a line of a log. `None` for what is no acknowledged write, and for a line that a kill has cut off.
fn read(server: usize, line: &str) -> Option<Write> {
    let event: Value = serde_json::from_str(line).ok()?;
    let code = event.pointer("/responseStatus/code")?.as_u64()?;
    if text(&event, "/stage") != "ResponseComplete" || !(200..300).contains(&code) {
        return None;
    }
    let time = |name: &str| {
        let at: jiff::Timestamp = text(&event, name).parse().ok()?;
        at.as_duration().try_into().ok()
    };
    let version = text(&event, "/responseObject/metadata/resourceVersion");
    // An update that changes nothing is answered with the version that it has found.
    if version == text(&event, "/requestObject/metadata/resourceVersion") {
        return None;
    }
    let lease = match text(&event, "/user/username") {
        "system:kube-scheduler" => "kube-scheduler",
        _ => "kube-controller-manager",
    };
    let [resource, name] = ["/objectRef/resource", "/objectRef/name"].map(|path| text(&event, path));
    let spec = event.pointer("/responseObject/spec");
    let hold = spec.filter(|_| resource == "leases" && name == lease).map(|spec| Hold {
        holder: text(spec, "/holderIdentity").to_owned(),
        duration: Duration::from_secs(spec["leaseDurationSeconds"].as_u64().unwrap_or(0)),
        transitions: spec["leaseTransitions"].as_u64().unwrap_or(0),
    });
    Some(Write {
        server,
        lease: lease.to_owned(),
        object: format!("{resource}/{name}"),
        revision: version.parse().ok()?,
        received: time("/requestReceivedTimestamp")?,
        done: time("/stageTimestamp")?,
        hold,
    })
}

/// Reads the logs of so many servers, and examines what is in them.
///
/// # Errors
/// When a log cannot be read.
pub fn check(dir: &Path, servers: usize, signals: &Signals) -> Result<Terms, Error> {
    let mut all = vec![];
    for server in 0..servers {
        let path = log(dir, server);
        let bytes = fs::read(&path).map_err(|e| Error::file(&path, e))?;
        all.extend(String::from_utf8_lossy(&bytes).lines().filter_map(|line| read(server, line)));
    }
    all.sort_by_key(|write| write.revision);
    let mut by_lease = BTreeMap::<String, Vec<Write>>::new();
    for write in all {
        by_lease.entry(write.lease.clone()).or_default().push(write);
    }
    let mut terms = Terms::default();
    by_lease.values().for_each(|writes| examine(writes, signals, &mut terms));
    Ok(terms)
}

/// Examines the writes under one lease, in the order of their revisions.
fn examine(all: &[Write], signals: &Signals, terms: &mut Terms) {
    let holds: Vec<(&Write, &Hold)> =
        all.iter().filter_map(|write| Some((write, write.hold.as_ref()?))).collect();
    for pair in holds.windows(2) {
        terms.violations.extend(taken_too_early(pair[0], pair[1]));
    }
    // The process that wrote first since the lease was last taken.
    let mut first: Option<&str> = None;
    let (mut held, mut since) = (None::<&Hold>, Time::ZERO);
    for write in all {
        if let Some(hold) = &write.hold {
            if held.is_none_or(|held| held.holder != hold.holder) {
                (first, since) = (None, write.done);
            }
            held = Some(hold);
            continue;
        }
        let (Some(holder), Some(process)) = (held.map(|held| &*held.holder), process_of(write, &holds))
        else {
            continue;
        };
        if has_changed_nothing(write, &holds) {
            continue;
        }
        terms.writes += 1;
        if process == holder {
            first.get_or_insert(process);
        } else if holder.is_empty() || first.is_some() {
            terms.late += 1;
            let awake = awake(write.server, since, write.done, signals);
            if awake > WAKES {
                terms.violations.push(format!(
                    "{process} writes {} after it has run for {awake:?} without its lease, which {holder:?} has: {write:?}",
                    write.object
                ));
            }
        }
    }
}

/// What is wrong with a write of a lease that follows another one.
fn taken_too_early((before, former): (&Write, &Hold), (after, next): (&Write, &Hold)) -> Option<String> {
    if next.transitions < former.transitions {
        return Some(format!("a lease forgets transitions: {before:?} and then {after:?}"));
    }
    let taken = !former.holder.is_empty() && !next.holder.is_empty() && former.holder != next.holder;
    let early = after.received + SLACK < before.received + former.duration;
    (taken && early).then(|| format!("a lease is taken before it is over: {before:?} and then {after:?}"))
}

/// The process that a server was when it made a write: the one of its last write of the lease before.
fn process_of<'a>(write: &Write, holds: &[(&Write, &'a Hold)]) -> Option<&'a str> {
    let own = holds.iter().rev().find(|(other, hold)| {
        other.server == write.server && other.revision < write.revision && !hold.holder.is_empty()
    });
    own.map(|(_, hold)| &*hold.holder)
}

/// Whether a request came when the version that it was answered with was there already: a patch that has changed nothing.
fn has_changed_nothing(write: &Write, holds: &[(&Write, &Hold)]) -> bool {
    holds.iter().any(|(other, _)| other.revision > write.revision && other.done < write.received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::leaders::Signal;
    use serde_json::json;

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    /// A write of a server at a second, which is its revision, too.
    fn write(server: usize, second: u64) -> Write {
        Write {
            server,
            lease: "loops".into(),
            object: "things/a".into(),
            revision: second,
            received: at(second),
            done: at(second),
            hold: None,
        }
    }

    fn hold(server: usize, second: u64, holder: &str, transitions: u64) -> Write {
        let hold = Hold { holder: holder.into(), duration: at(15), transitions };
        Write { hold: Some(hold), ..write(server, second) }
    }

    fn examined(all: &[Write], signals: &Signals) -> Terms {
        let mut terms = Terms::default();
        examine(all, signals, &mut terms);
        terms
    }

    #[test]
    fn a_lease_is_another_process_when_it_is_over_or_was_given_back() {
        let good = [
            hold(0, 10, "a", 0),
            hold(0, 12, "a", 0),
            hold(1, 27, "b", 1),
            hold(1, 28, "", 1),
            hold(0, 29, "a", 2),
        ];
        assert_eq!(examined(&good, &Signals::default()), Terms::default());
        let early = [hold(0, 10, "a", 0), hold(0, 12, "a", 0), hold(1, 26, "b", 1)];
        let found = examined(&early, &Signals::default()).violations;
        assert!(found.len() == 1 && found[0].starts_with("a lease is taken before it is over"), "{found:?}");
        let found = examined(&[hold(0, 10, "a", 3), hold(0, 12, "a", 2)], &Signals::default()).violations;
        assert!(found.len() == 1 && found[0].starts_with("a lease forgets transitions"), "{found:?}");
    }

    #[test]
    fn a_process_without_its_lease_writes_no_more_once_it_runs() {
        let mut signals = Signals::default();
        signals.note_at(at(13), 0, Signal::Paused);
        signals.note_at(at(40), 0, Signal::Continued);
        let begin = [hold(0, 10, "a", 0), write(0, 12), hold(1, 30, "b", 1)];
        // What it had begun.
        let all = [&begin[..], &[write(1, 35), write(0, 41)]].concat();
        assert_eq!(examined(&all, &signals), Terms { writes: 3, late: 1, violations: vec![] });
        // Before the other one has written anything there is nothing that it could spoil.
        let all = [&begin[..], &[write(0, 45), write(1, 46)]].concat();
        assert_eq!(examined(&all, &signals), Terms { writes: 3, late: 0, violations: vec![] });
        let all = [&begin[..], &[write(1, 35), write(0, 45)]].concat();
        let found = examined(&all, &signals).violations;
        assert!(
            found.len() == 1 && found[0].contains("after it has run for 5s without its lease"),
            "{found:?}"
        );
        // It has it again: another process of the same server is another holder.
        let all = [&begin[..], &[write(1, 35), hold(0, 50, "c", 2), write(0, 51)]].concat();
        assert_eq!(examined(&all, &signals), Terms { writes: 3, late: 0, violations: vec![] });
    }

    #[test]
    fn patches_that_change_nothing_are_no_writes() {
        let holds = [hold(0, 10, "a", 0), hold(1, 30, "b", 1)];
        let stale = Write { received: at(60), done: at(60), ..write(0, 36) };
        let all = [&holds[..], &[write(1, 35), stale, hold(1, 40, "b", 1)]].concat();
        assert_eq!(examined(&all, &Signals::default()), Terms { writes: 1, late: 0, violations: vec![] });
    }

    #[test]
    fn lines_of_a_log() {
        let line = |change: Value| {
            let mut event = json!({"stage": "ResponseComplete", "user": {"username": "system:kube-controller-manager"},
                "objectRef": {"resource": "leases", "name": "kube-controller-manager"}, "responseStatus": {"code": 200},
                "requestObject": {"metadata": {"resourceVersion": "6"}},
                "responseObject": {"metadata": {"resourceVersion": "7"},
                    "spec": {"holderIdentity": "a", "leaseDurationSeconds": 15, "leaseTransitions": 2}},
                "requestReceivedTimestamp": "1970-01-01T00:00:05.000000Z", "stageTimestamp": "1970-01-01T00:00:06.000000Z"});
            event.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            read(1, &event.to_string())
        };
        let found = line(json!({})).unwrap();
        assert_eq!((found.revision, found.received, found.done), (7, at(5), at(6)));
        assert_eq!(found.hold, Some(Hold { holder: "a".into(), duration: at(15), transitions: 2 }));
        let other = line(json!({"objectRef": {"resource": "pods", "name": "p"}})).unwrap();
        assert_eq!((other.hold, &*other.object), (None, "pods/p"));
        for nothing in [
            json!({"responseStatus": {"code": 409}}),
            json!({"stage": "Panic"}),
            json!({"requestObject": {"metadata": {"resourceVersion": "7"}}}),
        ] {
            assert_eq!(line(nothing.clone()), None, "{nothing}");
        }
        assert_eq!(read(0, "{\"stage\": \"Respon"), None);
    }
}
