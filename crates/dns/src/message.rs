//! From the bytes of a query to the bytes of its response, or to a query to forward. Pure.
//!
//! Invariants: a response fits what the client can take, and says so when it was cut; what is not a query gets no response,
//! so that two servers never answer each other; an alias of the zone is answered whatever becomes of its target.

use crate::zone::{Answer, Data, Kind, Record as ZoneRecord, Zone};
use hickory_proto::op::{Edns, Message, MessageType, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, PTR, SOA, SRV, TXT};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, BinEncodable, BinEncoder};
use std::net::IpAddr;

/// Seconds that answers of the zone may be kept, as kubeadm configures CoreDNS.
pub const TTL: u32 = 30;
/// Bytes of a message over UDP that need no fragments on the usual paths, which is what is offered to clients.
const PAYLOAD: u16 = 1232;
/// Bytes of a message over UDP without EDNS (RFC 1035).
const PLAIN_PAYLOAD: u16 = 512;

/// How a query came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Responses are cut to what the client says it takes.
    Udp,
    /// Responses have up to 64 KiB.
    Tcp,
}

/// What to do with a query.
#[derive(Debug)]
pub enum Outcome {
    /// The response.
    Respond(Response),
    /// The zone does not have the name, or the target of its alias: ask another resolver.
    Forward(Box<Forward>),
    /// Not a query: no response.
    Ignore,
}

/// A query for another resolver, and the client's query, which its answer is for.
#[derive(Debug)]
pub struct Forward {
    client: Message,
    alias: Option<Alias>,
}

/// An alias that leads out of the zone.
#[derive(Debug)]
struct Alias {
    /// The response as far as the zone has it.
    response: Message,
    /// Asks for the target.
    query: Message,
    target: Name,
}

impl Forward {
    /// What another resolver is asked.
    #[must_use]
    pub fn query(&self) -> &Message {
        self.alias.as_ref().map_or(&self.client, |alias| &alias.query)
    }

    /// The response with what another resolver answered; `None` if it cannot be encoded.
    pub fn answered(&self, mut answer: Message, transport: Transport) -> Option<Response> {
        let Some(Alias { response, target, .. }) = &self.alias else {
            return relay(answer, &self.client, transport);
        };
        in_letters_of(target, &mut answer.answers);
        let mut response = response.clone();
        response.metadata.truncation = answer.metadata.truncation;
        response.answers.append(&mut answer.answers);
        encoded(response, &self.client, transport)
    }

    /// The response without an answer: of an alias what the zone has, as CoreDNS; else an error.
    pub fn failed(&self, code: ResponseCode, transport: Transport) -> Option<Response> {
        let response = self.alias.as_ref().map(|alias| alias.response.clone());
        encoded(response.unwrap_or_else(|| empty(&self.client, code)), &self.client, transport)
    }
}

/// A response, and what metrics say of it.
#[derive(Debug)]
pub struct Response {
    /// The message.
    pub bytes: Vec<u8>,
    /// Its code.
    pub code: ResponseCode,
}

/// Carries out a query. `rotate` brings the addresses of an answer into another order, so that clients that take the first
/// one spread over all of them.
pub fn handle(
    zone: &Zone,
    bytes: &[u8],
    transport: Transport,
    rotate: &mut dyn FnMut(&mut [Record]),
) -> Outcome {
    let Ok(query) = Message::from_vec(bytes) else { return malformed(bytes) };
    if query.metadata.message_type != MessageType::Query {
        return Outcome::Ignore;
    }
    let refuse = |code| respond(empty(&query, code), &query, transport);
    if query.metadata.op_code != OpCode::Query {
        return refuse(ResponseCode::NotImp);
    }
    if query.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
        return refuse(ResponseCode::BADVERS);
    }
    let [question] = query.queries.as_slice() else { return refuse(ResponseCode::FormErr) };
    if question.query_class != DNSClass::IN
        || matches!(question.query_type, RecordType::AXFR | RecordType::IXFR)
    {
        return refuse(ResponseCode::Refused);
    }
    let name = question.name.to_lowercase().to_ascii();
    match zone.answer(name.trim_end_matches('.'), kind(question.query_type)) {
        Answer::NotAuthoritative => Outcome::Forward(Box::new(Forward { client: query, alias: None })),
        Answer::Alias { aliases, target } => {
            let aliases = records(zone, question, aliases);
            follow(
                authoritative(zone, &query, ResponseCode::NoError, aliases, vec![]),
                query,
                &target,
                transport,
            )
        }
        Answer::NoSuchName => {
            respond(authoritative(zone, &query, ResponseCode::NXDomain, vec![], vec![]), &query, transport)
        }
        Answer::Records { answers, additionals } => {
            let mut answers = records(zone, question, answers);
            rotate(&mut answers);
            let additionals = records(zone, question, additionals);
            respond(
                authoritative(zone, &query, ResponseCode::NoError, answers, additionals),
                &query,
                transport,
            )
        }
    }
}

/// Asks for an alias' target by the client's query.
fn follow(response: Message, client: Message, target: &str, transport: Transport) -> Outcome {
    let Some(target) = name(target) else { return respond(response, &client, transport) };
    let mut query = client.clone();
    query.queries.iter_mut().for_each(|question| question.name = target.clone());
    Outcome::Forward(Box::new(Forward { client, alias: Some(Alias { response, query, target }) }))
}

/// Writes a name as it was asked for: its case is the client's check against forged answers, and the cache may have it as another query
/// had it.
fn in_letters_of(name: &Name, answers: &mut [Record]) {
    answers.iter_mut().filter(|record| record.name == *name).for_each(|record| record.name = name.clone());
}

/// Passes on what another resolver answered, under the id and the question of the client.
fn relay(mut answer: Message, query: &Message, transport: Transport) -> Option<Response> {
    let mut metadata = Metadata::response_from_request(&query.metadata);
    metadata.recursion_available = true;
    metadata.response_code = answer.metadata.response_code;
    metadata.authentic_data = answer.metadata.authentic_data;
    answer.metadata = metadata;
    if let ([asked], [question]) = (answer.queries.as_slice(), query.queries.as_slice())
        && asked.name == question.name
    {
        in_letters_of(&question.name, &mut answer.answers);
    }
    answer.queries.clone_from(&query.queries);
    answer.edns = None;
    encoded(answer, query, transport)
}

/// A query that cannot be read is answered if its header can.
fn malformed(bytes: &[u8]) -> Outcome {
    let header = hickory_proto::op::Header::read(&mut BinDecoder::new(bytes));
    let Ok(header) = header else { return Outcome::Ignore };
    if header.metadata.message_type != MessageType::Query {
        return Outcome::Ignore;
    }
    let mut response = Message::response(header.metadata.id, header.metadata.op_code);
    response.metadata.response_code = ResponseCode::FormErr;
    match response.to_vec() {
        Ok(bytes) => Outcome::Respond(Response { bytes, code: ResponseCode::FormErr }),
        Err(_) => Outcome::Ignore,
    }
}

fn empty(query: &Message, code: ResponseCode) -> Message {
    let mut response = Message::response(query.metadata.id, query.metadata.op_code);
    response.metadata = Metadata::response_from_request(&query.metadata);
    response.metadata.recursion_available = true;
    response.metadata.response_code = code;
    response.queries.clone_from(&query.queries);
    response
}

fn authoritative(
    zone: &Zone,
    query: &Message,
    code: ResponseCode,
    answers: Vec<Record>,
    additionals: Vec<Record>,
) -> Message {
    let mut response = empty(query, code);
    response.metadata.authoritative = true;
    // How long the absence may be kept.
    if answers.is_empty() {
        response.authorities.extend(start_of_authority(zone));
    }
    (response.answers, response.additionals) = (answers, additionals);
    response
}

fn respond(response: Message, query: &Message, transport: Transport) -> Outcome {
    encoded(response, query, transport).map_or(Outcome::Ignore, Outcome::Respond)
}

fn encoded(mut response: Message, query: &Message, transport: Transport) -> Option<Response> {
    if let Some(edns) = &query.edns {
        let mut own = Edns::new();
        own.set_max_payload(PAYLOAD);
        own.set_dnssec_ok(edns.flags().dnssec_ok);
        response.edns = Some(own);
    }
    let limit = match (transport, &query.edns) {
        (Transport::Tcp, _) => u16::MAX,
        (Transport::Udp, None) => PLAIN_PAYLOAD,
        (Transport::Udp, Some(edns)) => edns.max_payload().max(PLAIN_PAYLOAD),
    };
    let code = response.metadata.response_code;
    let bytes = encode(&response, limit);
    if bytes.is_none() {
        tracing::warn!(question = ?query.queries.first(), "cannot encode a response");
    }
    Some(Response { bytes: bytes?, code })
}

/// What does not fit is left out: addresses of SRV targets without a word, answers with the mark that there are more.
fn encode(response: &Message, limit: u16) -> Option<Vec<u8>> {
    let bytes = response.to_vec().ok();
    if let Some(bytes) = bytes.filter(|b| b.len() <= usize::from(limit)) {
        return Some(bytes);
    }
    let mut shorter = response.clone();
    shorter.additionals.clear();
    let bytes = shorter.to_vec().ok();
    if let Some(bytes) = bytes.filter(|b| b.len() <= usize::from(limit)) {
        return Some(bytes);
    }
    let mut bytes = Vec::with_capacity(usize::from(limit));
    let mut encoder = BinEncoder::new(&mut bytes);
    encoder.set_max_size(limit);
    shorter.emit(&mut encoder).ok()?;
    drop(encoder);
    Some(bytes)
}

fn kind(of: RecordType) -> Kind {
    match of {
        RecordType::A => Kind::A,
        RecordType::AAAA => Kind::Aaaa,
        RecordType::SRV => Kind::Srv,
        RecordType::PTR => Kind::Ptr,
        RecordType::TXT => Kind::Txt,
        RecordType::NS => Kind::Ns,
        RecordType::SOA => Kind::Soa,
        _ => Kind::Other,
    }
}

/// A name from the API that DNS cannot hold has no record.
fn name(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

fn start_of_authority(zone: &Zone) -> Option<Record> {
    let domain = name(zone.domain())?;
    let server = name(&format!("ns.dns.{}", zone.domain()))?;
    let mailbox = name(&format!("hostmaster.{}", zone.domain()))?;
    let data = SOA::new(server, mailbox, zone.serial(), 7200, 1800, 86400, TTL);
    Some(Record::from_rdata(domain, TTL, RData::SOA(data)))
}

fn records(zone: &Zone, question: &Query, all: Vec<ZoneRecord>) -> Vec<Record> {
    let record = |record: ZoneRecord| {
        let owner = if record.name.is_empty() { question.name.clone() } else { name(&record.name)? };
        let data = match record.data {
            Data::Address(IpAddr::V4(ip)) => RData::A(A(ip)),
            Data::Address(IpAddr::V6(ip)) => RData::AAAA(AAAA(ip)),
            Data::Service { weight, port, target } => RData::SRV(SRV::new(0, weight, port, name(&target)?)),
            Data::Alias(target) => RData::CNAME(CNAME(name(&target)?)),
            Data::Pointer(target) => RData::PTR(PTR(name(&target)?)),
            Data::Text(text) => RData::TXT(TXT::new(vec![text])),
            Data::NameServer(server) => RData::NS(NS(name(&server)?)),
            Data::Authority => return start_of_authority(zone),
        };
        Some(Record::from_rdata(owner, TTL, data))
    };
    all.into_iter().filter_map(record).collect()
}

#[cfg(test)]
mod tests;
