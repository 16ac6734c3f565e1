//! Whether the members of etcd hold the same.
//!
//! Invariant: members agree only when each has answered, with the same revision, compaction and hash of all keys.

use serde::Deserialize;
use std::collections::BTreeMap;

/// What a member has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// How many entries of the log it has applied.
    pub applied: u64,
    /// Its revision, what it is compacted to (-1: never), and the hash of its keys, at the time of the second question.
    pub keys: Option<(u64, i64, u64)>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Status {
    endpoint: String,
    status: StatusBody,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct StatusBody {
    raft_applied_index: u64,
}

#[derive(Deserialize)]
struct Hash {
    #[serde(rename = "Endpoint")]
    endpoint: String,
    #[serde(rename = "HashKV")]
    hash: HashBody,
}

#[derive(Deserialize)]
struct HashBody {
    header: Header,
    hash: u64,
    #[serde(default)]
    compact_revision: i64,
}

#[derive(Deserialize)]
struct Header {
    revision: u64,
}

/// The members by their endpoints, of what `etcdctl endpoint status` and `endpoint hashkv` print as JSON.
pub fn members(status: &[u8], hashes: &[u8]) -> BTreeMap<String, Member> {
    let status: Vec<Status> = serde_json::from_slice(status).unwrap_or_default();
    let hashes: Vec<Hash> = serde_json::from_slice(hashes).unwrap_or_default();
    let mut found = BTreeMap::<String, Member>::new();
    for Status { endpoint, status } in status {
        found.entry(endpoint).or_default().applied = status.raft_applied_index;
    }
    for Hash { endpoint, hash } in hashes {
        let keys = (hash.header.revision, hash.compact_revision, hash.hash);
        found.entry(endpoint).or_default().keys = Some(keys);
    }
    found
}

/// Whether all have the same. Writes between the questions make them differ for a moment.
pub fn agree(members: &BTreeMap<String, Member>) -> bool {
    let mut keys = members.values().map(|member| member.keys);
    let first = keys.next().flatten();
    first.is_some() && keys.all(|other| other == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = r#"[{"Endpoint":"http://a","Status":{"header":{"revision":9},"raftAppliedIndex":20}},{"Endpoint":"http://b","Status":{"header":{"revision":8},"raftAppliedIndex":20}}]"#;

    fn hashes(revision: u64) -> String {
        format!(
            r#"[{{"Endpoint":"http://a","HashKV":{{"header":{{"revision":9}},"hash":7,"compact_revision":-1}}}},{{"Endpoint":"http://b","HashKV":{{"header":{{"revision":{revision}}},"hash":7,"compact_revision":-1}}}}]"#
        )
    }

    #[test]
    fn members_agree_when_each_has_the_same() {
        let same = members(STATUS.as_bytes(), hashes(9).as_bytes());
        assert_eq!(same["http://b"], Member { applied: 20, keys: Some((9, -1, 7)) });
        assert!(agree(&same));
        assert!(!agree(&members(STATUS.as_bytes(), hashes(8).as_bytes())));
    }

    #[test]
    fn a_member_that_does_not_answer_does_not_agree() {
        assert!(!agree(&members(STATUS.as_bytes(), b"")));
        assert!(!agree(&members(b"", b"")));
    }
}
