//! Bytes of queries and of their responses.

use super::*;
use crate::records::ServiceRecords;
use crate::zone::ServiceKey;
use proptest::prelude::*;

fn zone(addresses: u8) -> Zone {
    let mut zone = Zone::new("cluster.local", vec![]);
    let addresses = (0..addresses).map(|i| IpAddr::from([10, 96, 1, i])).collect();
    zone.set_service(
        &ServiceKey::new("a", "web"),
        Some(ServiceRecords::ClusterIp { addresses, ports: vec![], endpoints: Box::default() }),
    );
    let alias = ServiceRecords::ExternalName("www.example".into());
    zone.set_service(&ServiceKey::new("a", "outside"), Some(alias));
    zone
}

fn query(name: &str, kind: RecordType) -> Message {
    let mut query = Message::query();
    query.metadata.id = 4711;
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), kind));
    query
}

fn respond_to(zone: &Zone, query: &Message, transport: Transport) -> (Message, usize) {
    match handle(zone, &query.to_vec().unwrap(), transport, &mut |_| {}) {
        Outcome::Respond(response) => (Message::from_vec(&response.bytes).unwrap(), response.bytes.len()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_has_the_id_the_question_as_written_and_authority() {
    let (response, _) =
        respond_to(&zone(1), &query("Web.A.svc.CLUSTER.local.", RecordType::A), Transport::Udp);
    assert_eq!((response.metadata.id, response.metadata.response_code), (4711, ResponseCode::NoError));
    assert!(response.metadata.authoritative && response.metadata.recursion_available);
    assert_eq!(response.answers[0].name.to_ascii(), "Web.A.svc.CLUSTER.local.");
    assert_eq!(response.answers[0].ttl, TTL);
}

#[test]
fn an_absent_name_has_the_authority_that_says_how_long() {
    let (response, _) =
        respond_to(&zone(1), &query("no.a.svc.cluster.local.", RecordType::A), Transport::Udp);
    assert_eq!(response.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(response.authorities[0].record_type(), RecordType::SOA);
    let (response, _) =
        respond_to(&zone(1), &query("web.a.svc.cluster.local.", RecordType::MX), Transport::Udp);
    assert_eq!(response.metadata.response_code, ResponseCode::NoError);
    assert_eq!(response.authorities.len(), 1);
}

#[test]
fn a_long_answer_is_cut_over_udp_and_says_so() {
    let question = query("web.a.svc.cluster.local.", RecordType::A);
    let (response, length) = respond_to(&zone(100), &question, Transport::Udp);
    assert!(response.metadata.truncation && length <= 512 && !response.answers.is_empty(), "{length}");
    let mut with_edns = question.clone();
    with_edns.set_edns(Edns::new()).edns.as_mut().unwrap().set_max_payload(4096);
    let (response, _) = respond_to(&zone(100), &with_edns, Transport::Udp);
    assert!(!response.metadata.truncation && response.edns.is_some());
    assert_eq!(response.answers.len(), 100);
    let (response, _) = respond_to(&zone(100), &question, Transport::Tcp);
    assert_eq!(response.answers.len(), 100);
}

fn forwarded(query: &Message) -> Forward {
    match handle(&zone(1), &query.to_vec().unwrap(), Transport::Udp, &mut |_| {}) {
        Outcome::Forward(forward) => *forward,
        other => panic!("{other:?}"),
    }
}

/// What another resolver says: `www.example` is an alias, too, of a name with addresses.
fn upstream_answer(forward: &Forward, addresses: u8) -> Message {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let mut answer = Message::response(1, OpCode::Query);
    answer.queries.clone_from(&forward.query().queries);
    answer.metadata.authentic_data = true;
    answer.add_answer(Record::from_rdata(
        name("WWW.example."),
        20,
        RData::CNAME(CNAME(name("cdn.example."))),
    ));
    for last in 0..addresses {
        answer.add_answer(Record::from_rdata(name("cdn.example."), 20, RData::A(A::new(192, 0, 2, last))));
    }
    answer
}

fn lines(response: Response) -> Vec<String> {
    let message = Message::from_vec(&response.bytes).unwrap();
    let line = |r: &Record| format!("{} {} {}", r.name.to_ascii(), r.ttl, r.data);
    message.answers.iter().map(line).collect()
}

#[test]
fn an_alias_is_answered_with_what_another_resolver_has_of_its_target() {
    let question = query("Outside.A.svc.cluster.local.", RecordType::A);
    let forward = forwarded(&question);
    assert_eq!(
        forward.query().queries[0],
        Query::query(Name::from_ascii("www.example.").unwrap(), RecordType::A)
    );
    let alias = "Outside.A.svc.cluster.local. 30 www.example.";
    let response = forward.answered(upstream_answer(&forward, 1), Transport::Udp).unwrap();
    let message = Message::from_vec(&response.bytes).unwrap();
    assert_eq!((message.metadata.id, &message.queries), (4711, &question.queries));
    assert!(message.metadata.authoritative && !message.metadata.authentic_data);
    let whole = [alias, "www.example. 20 cdn.example.", "cdn.example. 20 192.0.2.0"];
    assert_eq!(lines(response), whole);
    // Without an answer it is still an alias.
    let mut absent = upstream_answer(&forward, 0);
    absent.answers.clear();
    absent.metadata.response_code = ResponseCode::NXDomain;
    let absent = forward.answered(absent, Transport::Udp).unwrap();
    let failed = forward.failed(ResponseCode::ServFail, Transport::Udp).unwrap();
    for response in [absent, failed] {
        assert_eq!(response.code, ResponseCode::NoError);
        assert_eq!(lines(response), [alias]);
    }
    // A question for the alias itself needs no other resolver.
    let (response, _) =
        respond_to(&zone(1), &query("outside.a.svc.cluster.local.", RecordType::CNAME), Transport::Udp);
    assert_eq!(response.answers.len(), 1);
}

#[test]
fn a_long_answer_for_an_alias_is_cut_after_the_alias() {
    let mut question = query("outside.a.svc.cluster.local.", RecordType::A);
    let forward = forwarded(&question);
    let response = forward.answered(upstream_answer(&forward, 100), Transport::Udp).unwrap();
    let message = Message::from_vec(&response.bytes).unwrap();
    assert!(message.metadata.truncation && response.bytes.len() <= 512);
    assert_eq!(message.answers[0].record_type(), RecordType::CNAME);
    let response = forward.answered(upstream_answer(&forward, 100), Transport::Tcp).unwrap();
    assert_eq!(lines(response).len(), 102);
    question.set_edns(Edns::new()).edns.as_mut().unwrap().set_max_payload(4096);
    let forward = forwarded(&question);
    let response = forward.answered(upstream_answer(&forward, 100), Transport::Udp).unwrap();
    let message = Message::from_vec(&response.bytes).unwrap();
    assert!(!message.metadata.truncation && message.edns.is_some());
    assert_eq!(message.answers.len(), 102);
}

#[test]
fn refuses_what_it_does_not_serve() {
    let code = |query: &Message| respond_to(&zone(1), query, Transport::Udp).0.metadata.response_code;
    assert_eq!(code(&query("cluster.local.", RecordType::AXFR)), ResponseCode::Refused);
    let mut update = query("cluster.local.", RecordType::A);
    update.metadata.op_code = OpCode::Status;
    assert_eq!(code(&update), ResponseCode::NotImp);
    let mut twice = query("cluster.local.", RecordType::A);
    twice.add_query(Query::query(Name::root(), RecordType::A));
    assert_eq!(code(&twice), ResponseCode::FormErr);
    let mut newer = query("cluster.local.", RecordType::A);
    newer.set_edns(Edns::new()).edns.as_mut().unwrap().set_version(1);
    // Two names of one number.
    assert_eq!(u16::from(code(&newer)), u16::from(ResponseCode::BADVERS));
}

#[test]
fn never_answers_a_response_and_survives_any_bytes() {
    let mut response = query("web.a.svc.cluster.local.", RecordType::A);
    response.metadata.message_type = MessageType::Response;
    let bytes = response.to_vec().unwrap();
    assert!(matches!(handle(&zone(1), &bytes, Transport::Udp, &mut |_| {}), Outcome::Ignore));
    assert!(matches!(handle(&zone(1), &[1, 2, 3], Transport::Udp, &mut |_| {}), Outcome::Ignore));
    // A header that announces a question that is not there.
    let cut = [0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    match handle(&zone(1), &cut, Transport::Udp, &mut |_| {}) {
        Outcome::Respond(response) => assert_eq!(response.code, ResponseCode::FormErr),
        other => panic!("{other:?}"),
    }
}

fn checked(response: &Response, query: &Message, transport: Transport) {
    let answer = Message::from_vec(&response.bytes).unwrap();
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(answer.metadata.id, query.metadata.id);
    let limit = match transport {
        Transport::Udp => query.edns.as_ref().map_or(512, |edns| edns.max_payload().max(512)),
        Transport::Tcp => u16::MAX,
    };
    assert!(response.bytes.len() <= usize::from(limit), "{} bytes of {limit}", response.bytes.len());
}

/// A query of which some bytes were changed, and the end was cut off or added.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let name = proptest::sample::select(vec![
        "web.a.svc.cluster.local.",
        "outside.a.svc.cluster.local.",
        "x.cluster.local.",
        "www.example.",
        ".",
    ]);
    let changes = proptest::collection::vec((0..64_usize, any::<u8>()), 0..4);
    (name, any::<bool>(), any::<u16>(), changes, 0..80_usize).prop_map(
        |(name, edns, payload, changes, length)| {
            let mut query = query(name, RecordType::A);
            if edns {
                query.set_edns(Edns::new()).edns.as_mut().unwrap().set_max_payload(payload);
            }
            let mut bytes = query.to_vec().unwrap();
            for (at, byte) in changes {
                if let Some(changed) = bytes.get_mut(at) {
                    *changed = byte;
                }
            }
            if length < 40 {
                bytes.resize(length, 0);
            }
            bytes
        },
    )
}

proptest! {
    #[test]
    fn a_response_to_any_bytes_is_one_to_its_query_and_fits(bytes in damaged(), tcp: bool, addresses in 0..200_u8) {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        match (handle(&zone(addresses), &bytes, transport, &mut |_| {}), Message::from_vec(&bytes)) {
            (Outcome::Respond(response), Ok(query)) => checked(&response, &query, transport),
            (Outcome::Forward(forward), _) => {
                let name = forward.query().queries[0].name.to_lowercase().to_ascii();
                let name = name.trim_end_matches('.');
                prop_assert!(name != "cluster.local" && !name.ends_with(".cluster.local"), "{name}");
            }
            _ => {}
        }
    }

    #[test]
    fn any_answer_of_another_resolver_is_passed_on_to_its_query_or_not_at_all(
        query in damaged(), answer in damaged(), tcp: bool,
    ) {
        let transport = if tcp { Transport::Tcp } else { Transport::Udp };
        if let Outcome::Forward(forward) = handle(&zone(1), &query, transport, &mut |_| {})
            && let (Ok(query), Ok(answer)) = (Message::from_vec(&query), Message::from_vec(&answer))
            && let Some(response) = forward.answered(answer, transport)
        {
            checked(&response, &query, transport);
        }
    }
}
