//! Changes that are left out of the history because nothing but a machine's clock is in them: renewals of leases and heartbeats of nodes.
//!
//! Left out are updates that differ from the former value in nothing but
//! - `spec.renewTime` of Leases,
//! - `lastHeartbeatTime` in the conditions of Nodes,
//! - the times of entries of `metadata.managedFields`, of any object.
//!
//! A lease that changes hands and a condition that changes its status are in the history.
//!
//! Invariant: two values are compared as bytes, without decoding; when in doubt the change is recorded.

/// Whether two stored values of a resource differ in nothing but times that machines write.
pub fn only_heartbeat(group: &str, resource: &str, before: &[u8], after: &[u8]) -> bool {
    // Times have the same length.
    if before.len() != after.len() {
        return false;
    }
    let key: Option<&[u8]> = match (group, resource) {
        ("coordination.k8s.io", "leases") => Some(b"renewTime"),
        ("", "nodes") => Some(b"lastHeartbeatTime"),
        _ => None,
    };
    let mut at = 0;
    while let Some(next) = differs_at(before, after, at) {
        let Some(end) = end_of_time(after, next, key) else { return false };
        let start = after[..next].iter().rposition(|b| *b == b'"').unwrap_or_default();
        // The same place must be one string in both.
        if before[start..=end].iter().filter(|b| matches!(**b, b'"' | b'\\')).count() != 2
            || before[end] != b'"'
        {
            return false;
        }
        at = end;
    }
    true
}

fn differs_at(before: &[u8], after: &[u8], from: usize) -> Option<usize> {
    let (before, after) = (before.get(from..)?, after.get(from..)?);
    before.iter().zip(after).position(|(a, b)| a != b).map(|at| from + at)
}

/// Where the string ends that `at` is in, if it is the time of one of these keys.
fn end_of_time(object: &[u8], at: usize, key: Option<&[u8]>) -> Option<usize> {
    let start = object[..at].iter().rposition(|b| *b == b'"')?;
    let end = at + object[at..].iter().position(|b| *b == b'"')?;
    let is_time = |b: &u8| b.is_ascii_digit() || matches!(*b, b'-' | b':' | b'.' | b'T' | b'Z');
    if start + 1 >= end || !object[start + 1..end].iter().all(is_time) {
        return None;
    }
    let named = object[..start].strip_suffix(b"\":")?;
    let quoted = |key: &[u8]| named.strip_suffix(key).is_some_and(|rest| rest.ends_with(b"\""));
    let of_manager = quoted(b"time") && object[end + 1..].starts_with(b",\"fieldsType\":\"FieldsV1\"");
    // Custom resources are stored with their members sorted.
    let sorted = object[end + 1..].starts_with(b"}") && follows_operation(named);
    (of_manager || sorted || key.is_some_and(quoted)).then_some(end)
}

/// Whether the time comes after `operation`, as in a sorted entry of managed fields.
fn follows_operation(named: &[u8]) -> bool {
    let ends: [&[u8]; 2] = [b"\"operation\":\"Update\",\"time", b"\"operation\":\"Apply\",\"time"];
    ends.iter().any(|end| named.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: &str = r#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n","managedFields":[{"manager":"k","operation":"Update","apiVersion":"coordination.k8s.io/v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{}}]},"spec":{"holderIdentity":"node-1","renewTime":"2026-01-01T00:00:00.000000Z"}}"#;

    fn lease(changes: &[(&str, &str)]) -> bool {
        let after = changes.iter().fold(LEASE.to_owned(), |text, (from, to)| {
            assert!(text.contains(from));
            text.replace(from, to)
        });
        only_heartbeat("coordination.k8s.io", "leases", LEASE.as_bytes(), after.as_bytes())
    }

    #[test]
    fn renewals_are_left_out_and_other_changes_are_not() {
        let renewed = ("00:00:00.000000Z", "00:00:10.123456Z");
        assert!(lease(&[renewed]));
        assert!(lease(&[renewed, ("00:00:00Z", "00:00:10Z")]));
        assert!(!lease(&[renewed, ("node-1", "node-2")]));
        assert!(!lease(&[("\"name\":\"n\"", "\"name\":\"m\"")]));
        assert!(!lease(&[("node-1", "node-12")]));
        assert!(!only_heartbeat(
            "",
            "configmaps",
            LEASE.as_bytes(),
            LEASE.replace(renewed.0, renewed.1).as_bytes()
        ));
    }

    #[test]
    fn data_that_looks_like_a_time_is_recorded() {
        let map =
            |time: &str| format!(r#"{{"kind":"ConfigMap","data":{{"time":"{time}","renewTime":"{time}"}}}}"#);
        let (before, after) = (map("2026-01-01T00:00:00Z"), map("2026-01-01T00:00:01Z"));
        assert!(!only_heartbeat("", "configmaps", before.as_bytes(), after.as_bytes()));
        let escaped = |time: &str| format!(r#"{{"a":"{{\"lastHeartbeatTime\":\"{time}\"}}"}}"#);
        let (before, after) = (escaped("2026-01-01T00:00:00Z"), escaped("2026-01-01T00:00:01Z"));
        assert!(!only_heartbeat("", "nodes", before.as_bytes(), after.as_bytes()));
    }

    #[test]
    fn conditions_that_change_are_recorded() {
        let node = |status: &str, time: &str| {
            format!(
                r#"{{"status":{{"conditions":[{{"type":"Ready","status":"{status}","lastHeartbeatTime":"{time}"}}]}}}}"#
            )
        };
        let before = node("True", "2026-01-01T00:00:00Z");
        let left_out = |after: String| only_heartbeat("", "nodes", before.as_bytes(), after.as_bytes());
        assert!(left_out(node("True", "2026-01-01T00:05:00Z")));
        assert!(!left_out(node("Trie", "2026-01-01T00:05:00Z")));
        assert!(!left_out(node("False", "2026-01-01T00:05:00Z")));
    }
}
