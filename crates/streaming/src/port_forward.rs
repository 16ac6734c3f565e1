//! Port-forward: any number of connections to the ports of a pod.
//!
//! Over SPDY/3.1 each connection is a pair of streams that the client creates, one for data and one for an error, named by the
//! headers `port`, `streamType` and `requestID`. The SPDY connection is the upgraded one, or is carried by a WebSocket
//! (subprotocol `SPDY/3.1+portforward.k8s.io`, kubectl's first choice). Over a WebSocket with channels, the ports are in the
//! query, and each has two channels from the start.
//!
//! Source: upstream's `cri-streaming/pkg/streaming/portforward` and `apiserver/pkg/util/proxy/streamtunnel.go`.

mod channels;
mod pairs;

use crate::{
    Timeouts, Upgrade, UpgradeRejection, UpgradeRequest,
    handshake::{self, TUNNEL_PREFIX},
    transport::{Gone, Incoming, Outgoing},
    websocket::{self, Tunnel},
};
use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, StatusCode};
use hyper_util::rt::TokioIo;
use kaji_containers::{Duplex, Reader, RuntimeError};
use kaji_meta::Query;
use std::sync::Arc;

/// The protocol's only version.
const PROTOCOL: &str = "portforward.k8s.io";
/// Subprotocols of WebSockets with channels; a client that offers none gets the first.
const WEBSOCKET_PROTOCOLS: [&str; 2] = ["v4.channel.k8s.io", "v4.base64.channel.k8s.io"];
/// Ports of a WebSocket; a channel's number is a byte.
const MAX_PORTS: usize = 127;

/// Opens a connection to a port of the pod.
pub type Connect = Arc<dyn Fn(u16) -> BoxFuture<'static, Result<Duplex, RuntimeError>> + Send + Sync>;

/// The pod, as errors name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodName {
    /// Upstream's runtimes have the sandbox's id here.
    pub name: String,
    /// Upstream's runtimes have nothing here.
    pub uid: String,
}

/// The ports that a client of a WebSocket with channels asks for; none for other clients, which name them later.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortForwardPorts(Vec<u16>);

impl PortForwardPorts {
    /// Of a request: `port=` in its query, once or several times, each a list with commas.
    ///
    /// # Errors
    /// 400 if there are none, or one is not a port.
    pub fn of(headers: &HeaderMap, query: &Query) -> Result<PortForwardPorts, UpgradeRejection> {
        if !handshake::is_websocket(headers) || handshake::offers_tunnel(headers) {
            return Ok(PortForwardPorts::default());
        }
        let mut ports = vec![];
        let bad = |text: String| UpgradeRejection::new(StatusCode::BAD_REQUEST, text);
        for list in query.all("port") {
            if list.is_empty() {
                return Err(bad("query parameter \"port\" cannot be empty".to_owned()));
            }
            for port in list.split(',') {
                ports.push(parse_port(port, list).map_err(bad)?);
            }
        }
        match ports.len() {
            0 => Err(bad("query parameter \"port\" is required".to_owned())),
            1..=MAX_PORTS => Ok(PortForwardPorts(ports)),
            _ => Err(bad(format!("at most {MAX_PORTS} ports can be forwarded over one WebSocket"))),
        }
    }
}

/// A port; the error names it as `shown`.
fn parse_port(port: &str, shown: &str) -> Result<u16, String> {
    let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match port.parse::<u16>() {
        Ok(0) => Err(format!("port {shown:?} must be > 0")),
        Ok(number) if is_number => Ok(number),
        _ => {
            let problem = if is_number { "value out of range" } else { "invalid syntax" };
            Err(format!(
                "unable to parse {shown:?} as a port: strconv.ParseUint: parsing {port:?}: {problem}"
            ))
        }
    }
}

/// Connects the client of a request to a pod's ports.
///
/// # Errors
/// When the request is not an upgrade to a protocol of port-forward.
pub fn port_forward(
    request: UpgradeRequest<'_>,
    ports: PortForwardPorts,
    pod: PodName,
    connect: Connect,
    timeouts: Timeouts,
) -> Result<Upgrade, UpgradeRejection> {
    let headers = request.headers;
    if !handshake::is_upgrade(headers) {
        return Err(UpgradeRejection::new(StatusCode::INTERNAL_SERVER_ERROR, "Upgrade request required"));
    }
    let forwarder = Forwarder { pod, connect };
    if handshake::offers_tunnel(headers) {
        let protocol = handshake::negotiate(&handshake::tunnelled(headers), &[PROTOCOL])?;
        let (response, upgrade) = handshake::websocket(request, &format!("{TUNNEL_PREFIX}{protocol}"))?;
        let session = async move {
            match upgrade.await {
                Ok(connection) => {
                    let tunnel = Tunnel::new(websocket::socket(connection).await);
                    pairs::serve(tunnel, forwarder, timeouts).await;
                }
                Err(error) => tracing::debug!(%error, "streaming: a connection was not upgraded"),
            }
        };
        return Ok(Upgrade { response, session: session.boxed() });
    }
    if handshake::is_websocket(headers) {
        let protocol = handshake::channel_protocol(headers, &WEBSOCKET_PROTOCOLS)?;
        let (response, upgrade) = handshake::websocket(request, protocol)?;
        let session = channels::serve(upgrade, protocol.to_owned(), ports.0, forwarder, timeouts);
        return Ok(Upgrade { response, session: session.boxed() });
    }
    let (_, response, upgrade) = handshake::spdy(request, &[PROTOCOL])?;
    let session = async move {
        match upgrade.await {
            Ok(connection) => pairs::serve(TokioIo::new(connection), forwarder, timeouts).await,
            Err(error) => tracing::debug!(%error, "streaming: a connection was not upgraded"),
        }
    };
    Ok(Upgrade { response, session: session.boxed() })
}

/// What the connections of a session share.
#[derive(Clone)]
struct Forwarder {
    pod: PodName,
    connect: Connect,
}

impl Forwarder {
    /// Connects a client's stream to a port until the port's side ends. The outer error is that of the client's connection.
    async fn forward(
        &self,
        port: u16,
        incoming: &mut Incoming,
        outgoing: &Outgoing,
        stream: u32,
    ) -> Result<Result<(), String>, Gone> {
        let connection = match (self.connect)(port).await {
            Ok(connection) => connection,
            Err(error) => {
                let PodName { name, uid } = &self.pod;
                return Ok(Err(format!("error forwarding port {port} to pod {name}, uid {uid}: {error}")));
            }
        };
        let (from_pod, to_pod) = tokio::io::split(connection);
        let sending = async {
            // A port that does not read any more may still have something to say.
            if let Err(error) = incoming.copy(Box::new(to_pod)).await {
                tracing::debug!(%error, port, "streaming: a forwarded port was closed");
            }
            incoming.drain().await;
        };
        let mut from_pod: Reader = Box::new(from_pod);
        let receiving = outgoing.copy(stream, &mut from_pod);
        let mut receiving = std::pin::pin!(receiving);
        tokio::select! {
            received = &mut receiving => received.map(Ok),
            () = sending => receiving.await.map(Ok),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use http::HeaderValue;

    #[test]
    fn reads_the_ports_of_a_query() {
        let mut headers = HeaderMap::new();
        headers.insert("connection", HeaderValue::from_static("keep-alive, Upgrade"));
        headers.insert("upgrade", HeaderValue::from_static("WebSocket"));
        let ports = |query: &str| match PortForwardPorts::of(&headers, &Query::parse(query)) {
            Ok(ports) => format!("{:?}", ports.0),
            Err(refusal) => format!("{} {}", refusal.code.as_u16(), refusal.text),
        };
        let many = format!("port={}", vec!["1"; 128].join(","));
        let queries = [
            "port=80&port=81,82",
            "",
            "port=",
            "port=80,",
            "port=0",
            "port=65536",
            "port=+1",
            "port=x,1",
            &many,
        ];
        expect![[r#"
            [80, 81, 82]
            400 query parameter "port" is required
            400 query parameter "port" cannot be empty
            400 unable to parse "80," as a port: strconv.ParseUint: parsing "": invalid syntax
            400 port "0" must be > 0
            400 unable to parse "65536" as a port: strconv.ParseUint: parsing "65536": value out of range
            400 unable to parse " 1" as a port: strconv.ParseUint: parsing " 1": invalid syntax
            400 unable to parse "x,1" as a port: strconv.ParseUint: parsing "x": invalid syntax
            400 at most 127 ports can be forwarded over one WebSocket"#]]
        .assert_eq(&queries.map(ports).join("\n"));
        let tunnel = HeaderValue::from_static("SPDY/3.1+portforward.k8s.io");
        let mut tunnelled = headers.clone();
        tunnelled.insert("sec-websocket-protocol", tunnel);
        for headers in [HeaderMap::new(), tunnelled] {
            assert_eq!(PortForwardPorts::of(&headers, &Query::parse("")), Ok(PortForwardPorts::default()));
        }
    }
}
