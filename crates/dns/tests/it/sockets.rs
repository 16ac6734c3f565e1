//! Questions over UDP and TCP: of the zone, forwarded, cached, refused.

use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use kaji_dns::forward::{Forwarder, Resolvers};
use kaji_dns::metrics::Metrics;
use kaji_dns::records::ServiceRecords;
use kaji_dns::resolv_conf::NodeResolvers;
use kaji_dns::server::{Listeners, Service};
use kaji_dns::zone::{ServiceKey, Zone};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::AbortHandle;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A resolver that answers every question with one address, cut over UDP when the name begins with `long`.
struct Upstream {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
    tasks: Vec<AbortHandle>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

fn upstream_answer(bytes: &[u8], last_octet: u8, udp: bool) -> Vec<u8> {
    let mut message = Message::from_vec(bytes).unwrap();
    let name = message.queries[0].name.clone();
    message.metadata.message_type = hickory_proto::op::MessageType::Response;
    if name.to_ascii().starts_with("broken") {
        message.metadata.response_code = ResponseCode::ServFail;
    } else if udp && name.to_ascii().starts_with("long") {
        message.metadata.truncation = true;
    } else {
        message.add_answer(Record::from_rdata(name, 20, RData::A(A::new(192, 0, 2, last_octet))));
    }
    message.to_vec().unwrap()
}

impl Upstream {
    async fn start(last_octet: u8) -> Upstream {
        let tcp = TcpListener::bind(LOOPBACK).await.unwrap();
        let address = tcp.local_addr().unwrap();
        let udp = UdpSocket::bind(address).await.unwrap();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        let over_udp = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
                count.fetch_add(1, Ordering::SeqCst);
                // A forged answer comes first: its id is wrong.
                let mut forged = upstream_answer(&buffer[..length], 66, false);
                forged[0] ^= 0xff;
                udp.send_to(&forged, client).await.unwrap();
                udp.send_to(&upstream_answer(&buffer[..length], last_octet, true), client).await.unwrap();
            }
        });
        let over_tcp = tokio::spawn(async move {
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let mut query = vec![0; usize::from(stream.read_u16().await.unwrap())];
                stream.read_exact(&mut query).await.unwrap();
                let answer = upstream_answer(&query, last_octet, false);
                stream.write_u16(u16::try_from(answer.len()).unwrap()).await.unwrap();
                stream.write_all(&answer).await.unwrap();
            }
        });
        Upstream { address, asked, tasks: vec![over_udp.abort_handle(), over_tcp.abort_handle()] }
    }
}

fn forwarder(resolvers: Resolvers) -> Forwarder {
    let forwarder = Forwarder::new(Arc::new(NodeResolvers::default()));
    forwarder.configure(resolvers);
    forwarder
}

struct Server {
    address: SocketAddr,
    service: Arc<Service>,
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start(resolvers: Resolvers) -> Server {
        let listeners = Listeners::bind(LOOPBACK).await.unwrap();
        let address = listeners.address().unwrap();
        let mut zone = Zone::new("cluster.local", vec![]);
        let addresses = vec![[10, 96, 0, 1].into()];
        let records = ServiceRecords::ClusterIp { addresses, ports: vec![], endpoints: Box::default() };
        zone.set_service(&ServiceKey::new("default", "kubernetes"), Some(records));
        let service = Arc::new(Service::new(zone, forwarder(resolvers), Metrics::default()));
        let task = tokio::spawn(listeners.serve(service.clone())).abort_handle();
        Server { address, service, task }
    }

    async fn udp(&self, name: &str) -> Message {
        let socket = UdpSocket::bind(LOOPBACK).await.unwrap();
        socket.connect(self.address).await.unwrap();
        let query = query(name);
        socket.send(&query.to_vec().unwrap()).await.unwrap();
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).await.unwrap();
        let answer = Message::from_vec(&buffer[..length]).unwrap();
        assert_eq!((answer.metadata.id, &answer.queries), (query.metadata.id, &query.queries));
        answer
    }

    async fn tcp(&self, stream: &mut TcpStream, name: &str) -> Message {
        let bytes = query(name).to_vec().unwrap();
        stream.write_u16(u16::try_from(bytes.len()).unwrap()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        let mut answer = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut answer).await.unwrap();
        Message::from_vec(&answer).unwrap()
    }
}

fn query(name: &str) -> Message {
    let mut query = Message::query();
    query.metadata.recursion_desired = true;
    query.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    query
}

fn address(answer: &Message) -> Option<String> {
    answer.answers.first().map(|record| record.data.to_string())
}

#[tokio::test]
async fn answers_the_zone_over_udp_and_over_one_connection() {
    let server = Server::start(Resolvers::default()).await;
    let name = "kubernetes.default.svc.cluster.local.";
    assert_eq!(address(&server.udp(name).await).unwrap(), "10.96.0.1");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    for _ in 0..3 {
        assert_eq!(address(&server.tcp(&mut stream, name).await).unwrap(), "10.96.0.1");
    }
    let mut zone = (*server.service.zone()).clone();
    zone.set_service(&ServiceKey::new("default", "kubernetes"), None);
    server.service.publish(zone);
    assert_eq!(server.udp(name).await.metadata.response_code, ResponseCode::NXDomain);
}

#[tokio::test]
async fn forwards_and_keeps_answers_and_takes_no_forged_one() {
    let upstream = Upstream::start(7).await;
    let server = Server::start(Resolvers::new(vec![], vec![upstream.address])).await;
    for name in ["www.example.", "WWW.example.", "www.example."] {
        let answer = server.udp(name).await;
        assert_eq!(address(&answer).unwrap(), "192.0.2.7");
        assert_eq!(answer.answers[0].name.to_ascii(), name);
        assert!(!answer.metadata.authoritative);
    }
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1);
    assert_eq!(address(&server.udp("long.example.").await).unwrap(), "192.0.2.7");
    // A name below the cluster's domain is never forwarded.
    let absent = server.udp("no.default.svc.cluster.local.").await;
    assert_eq!(absent.metadata.response_code, ResponseCode::NXDomain);
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn targets_of_external_names_are_asked_for_and_kept() {
    let upstream = Upstream::start(7).await;
    let server = Server::start(Resolvers::new(vec![], vec![upstream.address])).await;
    let mut zone = (*server.service.zone()).clone();
    for (service, target) in [("web", "www.example"), ("bad", "broken.example"), ("big", "long.example")] {
        let records = ServiceRecords::ExternalName(target.to_owned());
        zone.set_service(&ServiceKey::new("default", service), Some(records));
    }
    server.service.publish(zone);
    let lines = |answer: Message| -> Vec<String> {
        answer.answers.iter().map(|r| format!("{} {}", r.name.to_ascii(), r.data)).collect()
    };
    let expected = ["Web.default.svc.cluster.local. www.example.", "www.example. 192.0.2.7"];
    assert_eq!(lines(server.udp("Web.default.svc.cluster.local.").await), expected);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(lines(server.tcp(&mut stream, "Web.default.svc.cluster.local.").await), expected);
    assert_eq!(lines(server.udp("www.example.").await), ["www.example. 192.0.2.7"]);
    assert_eq!(upstream.asked.load(Ordering::SeqCst), 1, "the cache has the target");
    let big = ["big.default.svc.cluster.local. long.example.", "long.example. 192.0.2.7"];
    assert_eq!(lines(server.udp("big.default.svc.cluster.local.").await), big);
    let failed = server.udp("bad.default.svc.cluster.local.").await;
    assert_eq!(failed.metadata.response_code, ResponseCode::NoError);
    assert_eq!(lines(failed), ["bad.default.svc.cluster.local. broken.example."]);
}

#[tokio::test]
async fn stub_domains_have_resolvers_of_their_own() {
    let (general, corporate) = (Upstream::start(1).await, Upstream::start(2).await);
    let domain = Name::from_ascii("Corp.example.").unwrap();
    let resolvers = Resolvers::new(vec![(domain, vec![corporate.address])], vec![general.address]);
    let server = Server::start(resolvers).await;
    assert_eq!(address(&server.udp("www.corp.example.").await).unwrap(), "192.0.2.2");
    assert_eq!(address(&server.udp("www.notcorp.example.").await).unwrap(), "192.0.2.1");
}

#[tokio::test]
async fn a_broken_resolver_is_passed_over_and_none_is_a_failure() {
    let upstream = Upstream::start(7).await;
    // Nothing listens where a socket was closed.
    let closed = UdpSocket::bind(LOOPBACK).await.unwrap().local_addr().unwrap();
    let server = Server::start(Resolvers::new(vec![], vec![closed, upstream.address])).await;
    for i in 0..8 {
        assert_eq!(address(&server.udp(&format!("n{i}.example.")).await).unwrap(), "192.0.2.7");
    }
    assert_eq!(server.udp("broken.example.").await.metadata.response_code, ResponseCode::ServFail);
    let alone = Server::start(Resolvers::default()).await;
    assert_eq!(alone.udp("www.example.").await.metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn other_resolvers_are_asked_from_the_next_question_on() {
    let (former, next, stub) = (Upstream::start(1).await, Upstream::start(2).await, Upstream::start(3).await);
    let server = Server::start(Resolvers::new(vec![], vec![former.address])).await;
    assert_eq!(address(&server.udp("www.corp.example.").await).unwrap(), "192.0.2.1");
    let domain = Name::from_ascii("corp.example.").unwrap();
    let resolvers = Resolvers::new(vec![(domain, vec![stub.address])], vec![next.address]);
    server.service.configure(resolvers.clone());
    assert_eq!(
        address(&server.udp("www.corp.example.").await).unwrap(),
        "192.0.2.3",
        "the cache is the former's"
    );
    assert_eq!(address(&server.udp("www.example.").await).unwrap(), "192.0.2.2");
    server.service.configure(resolvers);
    assert_eq!(address(&server.udp("www.example.").await).unwrap(), "192.0.2.2");
    assert_eq!(next.asked.load(Ordering::SeqCst), 1, "the same configuration forgets nothing");
}
