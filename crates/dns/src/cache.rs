//! Answers of other resolvers, kept for their time to live, at most 30 seconds.
//!
//! Invariants: at most [`CAPACITY`] answers are kept; an answer is never handed out after its time; a failure is not kept.

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many answers are kept.
const CAPACITY: usize = 9984;
/// The longest time that an answer is kept, as kubeadm configures CoreDNS.
const MAX_TTL: u32 = 30;

/// A question, in lower case.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Question {
    name: Name,
    kind: RecordType,
    /// With signatures.
    dnssec: bool,
}

#[derive(Debug)]
struct Entry {
    answer: Message,
    since: Instant,
    ttl: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    entries: Mutex<HashMap<Question, Entry>>,
}

impl Cache {
    /// The answer to a query, its times to live less the time since it came.
    pub fn get(&self, query: &Message, now: Instant) -> Option<Message> {
        let question = question(query)?;
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(&question)?;
        let age = now.saturating_duration_since(entry.since);
        if age >= entry.ttl {
            entries.remove(&question);
            return None;
        }
        let mut answer = entry.answer.clone();
        drop(entries);
        let age = u32::try_from(age.as_secs()).unwrap_or(u32::MAX);
        for record in
            [&mut answer.answers, &mut answer.authorities, &mut answer.additionals].into_iter().flatten()
        {
            record.ttl = record.ttl.min(MAX_TTL).saturating_sub(age);
        }
        Some(answer)
    }

    /// Forgets all answers.
    pub fn clear(&self) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Keeps an answer, if it is one that may be kept.
    pub fn put(&self, query: &Message, answer: &Message, now: Instant) {
        let (Some(question), Some(ttl)) = (question(query), time_to_live(answer)) else { return };
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CAPACITY && !entries.contains_key(&question) {
            entries.retain(|_, entry| now.saturating_duration_since(entry.since) < entry.ttl);
            // The map's order is random enough to choose what has to go.
            let victim = (entries.len() >= CAPACITY).then(|| entries.keys().next().cloned()).flatten();
            victim.and_then(|victim| entries.remove(&victim));
        }
        entries.insert(question, Entry { answer: answer.clone(), since: now, ttl });
    }
}

fn question(query: &Message) -> Option<Question> {
    let [Query { name, query_type, .. }] = query.queries.as_slice() else { return None };
    let dnssec = query.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok);
    Some(Question { name: name.to_lowercase(), kind: *query_type, dnssec })
}

/// How long an answer may be kept: the least of its records' times, or for the absence of a name what the zone's authority
/// says (RFC 2308).
fn time_to_live(answer: &Message) -> Option<Duration> {
    if answer.metadata.truncation {
        return None;
    }
    let absent = match answer.metadata.response_code {
        ResponseCode::NoError => answer.answers.is_empty(),
        ResponseCode::NXDomain => true,
        _ => return None,
    };
    let ttl = if absent {
        answer.authorities.iter().find_map(negative_ttl)?
    } else {
        answer.answers.iter().chain(&answer.authorities).map(|record| record.ttl).min()?
    };
    (ttl > 0).then(|| Duration::from_secs(ttl.min(MAX_TTL).into()))
}

fn negative_ttl(record: &Record) -> Option<u32> {
    match &record.data {
        RData::SOA(soa) => Some(record.ttl.min(soa.minimum)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::OpCode;
    use hickory_proto::rr::rdata::A;

    fn query(name: &str) -> Message {
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
        query
    }

    fn answer(ttl: u32) -> Message {
        let mut answer = Message::response(1, OpCode::Query);
        let data = RData::A(A::new(192, 0, 2, 1));
        answer.add_answer(Record::from_rdata(Name::from_ascii("a.example.").unwrap(), ttl, data));
        answer
    }

    #[test]
    fn counts_the_time_down_and_forgets() {
        let (cache, start) = (Cache::default(), Instant::now());
        cache.put(&query("A.example."), &answer(20), start);
        let later = cache.get(&query("a.EXAMPLE."), start + Duration::from_secs(5)).unwrap();
        assert_eq!(later.answers[0].ttl, 15);
        assert!(cache.get(&query("a.example."), start + Duration::from_secs(20)).is_none());
    }

    #[test]
    fn keeps_no_answer_longer_than_the_limit_and_no_failure() {
        let (cache, start) = (Cache::default(), Instant::now());
        cache.put(&query("a.example."), &answer(3600), start);
        assert_eq!(cache.get(&query("a.example."), start).unwrap().answers[0].ttl, 30);
        assert!(cache.get(&query("a.example."), start + Duration::from_secs(30)).is_none());
        let mut failed = answer(20);
        failed.metadata.response_code = ResponseCode::ServFail;
        cache.put(&query("b.example."), &failed, start);
        cache.put(&query("c.example."), &answer(0), start);
        assert!(
            cache.get(&query("b.example."), start).is_none()
                && cache.get(&query("c.example."), start).is_none()
        );
    }

    #[test]
    fn holds_no_more_than_its_capacity() {
        let (cache, start) = (Cache::default(), Instant::now());
        for i in 0..CAPACITY + 50 {
            cache.put(&query(&format!("n{i}.example.")), &answer(20), start);
        }
        assert_eq!(cache.entries.lock().unwrap().len(), CAPACITY);
    }
}
