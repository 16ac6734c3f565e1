//! The second half of the phase `node`: what a pod on the node answers by exec, by the cluster's DNS, and behind many services.
//!
//! Invariant: the measuring program is in the node's network, as a pod with the host's network is.

use super::{
    Error,
    client::{Call, Client, Target},
    fixture::collection,
    load::{self, Each, Until},
    node::{Figures, request},
    objects::{HOLE, Template},
    stats::percentile,
};
use futures_util::StreamExt;
use serde_json::json;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpStream, UdpSocket},
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_tungstenite::tungstenite::{
    handshake::client::generate_key,
    http::{self, header::AUTHORIZATION},
};

const EXECS: usize = 100;
/// As upstream's clients ask for it.
const SUBPROTOCOL: &str = "v5.channel.k8s.io";
const EXEC: Duration = Duration::from_secs(10);
/// Sockets that ask at the same time.
const ASKERS: usize = 16;
const QUESTIONS: usize = 2_000;
/// New services that the DNS is to know.
const NAMES: usize = 100;
/// After which a resolver asks again.
const ANSWER: Duration = Duration::from_secs(5);
const CLIENTS: usize = 16;
/// How long services may take to answer.
const SERVICES: Duration = Duration::from_secs(300);
/// How long one attempt may take.
const ATTEMPT: Duration = Duration::from_millis(100);
/// Of many services, those that are asked.
const SAMPLES: usize = 20;

/// The pod that is asked: its namespace, name and label.
pub(super) struct Asked<'a> {
    pub namespace: &'a str,
    pub pod: &'a str,
    pub label: &'a str,
}

/// Commands in a pod that do nothing, each from the connection to its exit status.
pub(super) async fn execs(
    target: &Arc<Target>,
    asked: &Asked<'_>,
    figures: &mut Figures,
) -> Result<(), Error> {
    let path = format!(
        "{}/{}/exec?command=sh&command=-c&command=:&stdout=true&stderr=true",
        collection(asked.namespace, "pods"),
        asked.pod
    );
    let mut samples = vec![];
    for _ in 0..EXECS {
        let began = Instant::now();
        let outcome = timeout(EXEC, exec(target, &path)).await;
        outcome.map_err(|_| Error::Timeout(format!("exec in {}", asked.pod), EXEC))??;
        samples.push(began.elapsed());
    }
    put(figures, samples, [("node_exec_p50", 50.0), ("node_exec_p99", 99.0)]);
    Ok(())
}

async fn exec(target: &Target, path: &str) -> Result<(), Error> {
    let refused = |e| Error::Connect(target.address.clone(), e);
    let stream = TcpStream::connect(&target.address).await.map_err(refused)?;
    stream.set_nodelay(true).map_err(refused)?;
    let connector = TlsConnector::from(target.tls.clone());
    let stream = connector.connect(target.name.clone(), stream).await.map_err(refused)?;
    let wrong = |e: &dyn std::fmt::Display| Error::Answer(format!("exec: {e}"));
    let mut handshake = http::Request::get(format!("wss://{}{path}", target.address))
        .header("Host", target.host.as_bytes())
        .header("Connection", "Upgrade")
        .header("Upgrade", "websocket")
        .header("Sec-WebSocket-Version", "13")
        .header("Sec-WebSocket-Key", generate_key())
        .header("Sec-WebSocket-Protocol", SUBPROTOCOL);
    if let Some(authorization) = &target.authorization {
        handshake = handshake.header(AUTHORIZATION, authorization.as_bytes());
    }
    let handshake = handshake.body(()).map_err(|e| wrong(&e))?;
    let (mut socket, _) = tokio_tungstenite::client_async(handshake, stream).await.map_err(|e| wrong(&e))?;
    let mut status = None;
    while let Some(message) = socket.next().await {
        let data = message.map_err(|e| wrong(&e))?.into_data();
        // Channel 3 has the command's status.
        if data.first() == Some(&3) {
            status = Some(data.slice(1..));
        }
    }
    match status {
        Some(status) if status.windows(9).any(|part| part == b"\"Success\"") => Ok(()),
        other => Err(wrong(&format!("{other:?}"))),
    }
}

/// Questions for the address of a service.
pub(super) async fn dns(control: &mut Client, asked: &Asked<'_>, figures: &mut Figures) -> Result<(), Error> {
    let service = control.json(&Call::get("/api/v1/namespaces/kube-system/services/kube-dns")).await?;
    let address: IpAddr =
        service["spec"]["clusterIP"].as_str().unwrap_or_default().parse().map_err(|_| {
            Error::Answer(format!("the service kube-dns has the cluster IP {}", service["spec"]["clusterIP"]))
        })?;
    let question = question(&format!("server.{}.svc.cluster.local", asked.namespace));
    let server = SocketAddr::new(address, 53);
    // The first answers may come after the service has begun to work.
    let deadline = Instant::now() + SERVICES;
    while let Err(error) = ask(server, &question, 1).await {
        if Instant::now() >= deadline {
            return Err(error);
        }
    }
    let mut askers = JoinSet::new();
    let began = Instant::now();
    for _ in 0..ASKERS {
        let question = question.clone();
        askers.spawn(async move { ask(server, &question, QUESTIONS).await });
    }
    let mut samples = vec![];
    while let Some(found) = askers.join_next().await {
        samples.extend(found.map_err(|e| Error::Answer(e.to_string()))??);
    }
    figures.push(("node_dns_rate", samples.len() as f64 / began.elapsed().as_secs_f64()));
    put(figures, samples, [("node_dns_p50", 50.0), ("node_dns_p99", 99.0)]);
    new_names(control, asked, server, figures).await
}

/// New services, each from the answer to its creation until the DNS knows it.
async fn new_names(
    control: &mut Client,
    asked: &Asked<'_>,
    server: SocketAddr,
    figures: &mut Figures,
) -> Result<(), Error> {
    let path = collection(asked.namespace, "services");
    let template = Template::new(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": HOLE},
        "spec": {"ports": [{"port": 80}]},
    }));
    let mut samples = vec![];
    for number in 0..NAMES {
        let name = format!("named-{number}");
        control.json(&template.create(&path, &name)).await?;
        let asking = question(&format!("{name}.{}.svc.cluster.local", asked.namespace));
        let began = Instant::now();
        while let Err(error) = ask(server, &asking, 1).await {
            if began.elapsed() >= ANSWER {
                return Err(error);
            }
        }
        samples.push(began.elapsed());
    }
    put(figures, samples, [("node_dns_new_p50", 50.0), ("node_dns_new_p99", 99.0)]);
    Ok(())
}

/// A question for an IPv4 address (RFC 1035, section 4).
fn question(name: &str) -> Vec<u8> {
    let mut packet = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        packet.push(u8::try_from(label.len()).unwrap_or(u8::MAX));
        packet.extend_from_slice(label.as_bytes());
    }
    packet.extend_from_slice(&[0, 0, 1, 0, 1]);
    packet
}

/// Whether a packet answers the question with this id with at least one record.
fn is_answer(packet: &[u8], id: [u8; 2]) -> bool {
    let Some(head) = packet.first_chunk::<12>() else { return false };
    head[..2] == id
        && head[2] & 0x80 != 0
        && head[3] & 0x0f == 0
        && u16::from_be_bytes([head[6], head[7]]) > 0
}

/// Asks one question after the other.
async fn ask(server: SocketAddr, question: &[u8], count: usize) -> Result<Vec<Duration>, Error> {
    let failed = |e| Error::Connect(server.to_string(), e);
    let local = if server.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local).await.map_err(failed)?;
    socket.connect(server).await.map_err(failed)?;
    let (mut packet, mut answer, mut samples) = (question.to_vec(), [0; 512], Vec::with_capacity(count));
    for index in 0..count {
        let id = (index as u16).to_be_bytes();
        packet[..2].copy_from_slice(&id);
        let began = Instant::now();
        socket.send(&packet).await.map_err(failed)?;
        let received = timeout(ANSWER, socket.recv(&mut answer)).await;
        let length =
            received.map_err(|_| Error::Timeout("an answer of the DNS".into(), ANSWER))?.map_err(failed)?;
        if !is_answer(&answer[..length], id) {
            return Err(Error::Answer("the DNS does not know the service".into()));
        }
        samples.push(began.elapsed());
    }
    Ok(samples)
}

/// Many services of one pod, from the first creation until they answer; and one more then.
pub(super) async fn services(
    target: &Arc<Target>,
    asked: &Asked<'_>,
    count: usize,
    figures: &mut Figures,
) -> Result<(), Error> {
    let mut control = Client::new(target);
    let path = collection(asked.namespace, "services");
    let template = Template::new(&json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": HOLE},
        "spec": {"selector": {asked.label: "yes"}, "ports": [{"port": 80}]},
    }));
    let one_more = template.create(&path, "one-more");
    let create = {
        let path = path.clone();
        Each(move |index: usize| template.create(&path, &format!("many-{index}")))
    };
    let began = load::run(target, CLIENTS, Until::Count(count), SERVICES, create).await?.began;
    for sample in 0..SAMPLES.min(count) {
        let index = (count - 1) - sample * (count - 1) / SAMPLES;
        let made = control.json(&Call::get(format!("{path}/many-{index}"))).await?;
        answers(&made).await?;
    }
    figures.push(("node_services", began.elapsed().as_secs_f64()));
    let began = Instant::now();
    let made = control.json(&one_more).await?;
    answers(&made).await?;
    figures.push(("node_service_added", began.elapsed().as_secs_f64()));
    Ok(())
}

/// Waits until a service answers.
async fn answers(service: &serde_json::Value) -> Result<(), Error> {
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let address: SocketAddr = format!("{address}:80")
        .parse()
        .map_err(|_| Error::Answer(format!("a service has the cluster IP {address:?}")))?;
    let deadline = Instant::now() + SERVICES;
    while !matches!(timeout(ATTEMPT, request(address)).await, Ok(Ok(_))) {
        if Instant::now() >= deadline {
            return Err(Error::Timeout(format!("the service at {address} does not answer"), SERVICES));
        }
        sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

fn put<const N: usize>(figures: &mut Figures, mut samples: Vec<Duration>, wanted: [(&'static str, f64); N]) {
    samples.sort_unstable();
    for (id, percent) in wanted {
        figures.push((id, percentile(&samples, percent).unwrap_or_default().as_secs_f64()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_have_the_name_as_labels() {
        let packet = question("a.bc");
        assert_eq!(&packet[12..], [1, b'a', 2, b'b', b'c', 0, 0, 1, 0, 1]);
    }

    #[test]
    fn only_an_answer_with_records_counts() {
        let mut packet = vec![0, 7, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0];
        assert!(is_answer(&packet, [0, 7]) && !is_answer(&packet, [0, 8]));
        packet[3] = 0x83;
        assert!(!is_answer(&packet, [0, 7]));
        packet[3] = 0x80;
        packet[7] = 0;
        assert!(!is_answer(&packet, [0, 7]) && !is_answer(&packet[..11], [0, 7]));
    }
}
