//! gRPC probes: one call of `grpc.health.v1.Health/Check` over HTTP/2 without TLS. Upstream's `probe/grpc`.

use super::http::dial;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// Bytes of an answer.
const MOST_ANSWER: usize = 4096;
/// `UNIMPLEMENTED`
const UNIMPLEMENTED: &str = "12";

/// Whether a service is healthy. The outer error is for a probe that could not be carried out.
pub(super) async fn check(address: IpAddr, port: u16, service: &str, limit: Duration) -> Result<(), String> {
    let shown = std::net::SocketAddr::new(address, port);
    let seconds = limit.as_secs();
    match tokio::time::timeout(limit, call(shown, service)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!(
            "timeout: failed to connect service \"{shown}\" within {seconds}s: context deadline exceeded"
        )),
    }
}

async fn call(address: std::net::SocketAddr, service: &str) -> Result<(), String> {
    let connect =
        |e: &dyn std::fmt::Display| format!("error: failed to connect to service at \"{address}\": {e}");
    let stream = TcpStream::connect(address).await.map_err(|e| connect(&dial(&e)))?;
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .map_err(|e| connect(&e))?;
    let rpc = |e: &dyn std::fmt::Display| format!("error: health rpc probe failed: {e}");
    let exchange = async {
        let request = http::Request::post(format!("http://{address}/grpc.health.v1.Health/Check"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", "kube-probe/1.37")
            .body(Full::new(request(service)))
            .map_err(|e| rpc(&e))?;
        let response = sender.send_request(request).await.map_err(|e| rpc(&e))?;
        let head = response.headers().clone();
        let body = Limited::new(response.into_body(), MOST_ANSWER).collect().await.map_err(|e| rpc(&e))?;
        let trailers = body.trailers().cloned().unwrap_or_default();
        let field = |name: &str| {
            let found = trailers.get(name).or_else(|| head.get(name));
            found.and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned()
        };
        match field("grpc-status").as_str() {
            "0" | "" => health(&body.to_bytes()),
            UNIMPLEMENTED => Err(format!(
                "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
                field("grpc-message")
            )),
            _ => Err(rpc(&field("grpc-message"))),
        }
    };
    tokio::pin!(connection);
    tokio::pin!(exchange);
    let mut open = true;
    loop {
        tokio::select! {
            answer = &mut exchange => return answer,
            // The answer may be complete when the connection ends.
            _ = &mut connection, if open => open = false,
        }
    }
}

/// A message with its frame: field 1 is the service.
fn request(service: &str) -> Bytes {
    let mut message = vec![];
    if !service.is_empty() {
        message.push(0x0a);
        let mut length = service.len();
        while length >= 0x80 {
            message.push((length & 0x7f) as u8 | 0x80);
            length >>= 7;
        }
        message.push((length & 0x7f) as u8);
        message.extend_from_slice(service.as_bytes());
    }
    let mut framed = vec![0];
    framed.extend_from_slice(&u32::try_from(message.len()).unwrap_or(0).to_be_bytes());
    framed.extend(message);
    framed.into()
}

/// Reads an answer: field 1 is the status, absent for `UNKNOWN`.
fn health(framed: &[u8]) -> Result<(), String> {
    let status = match framed.get(5..).unwrap_or_default() {
        [0x08, status, ..] => *status,
        _ => 0,
    };
    let name = match status {
        1 => return Ok(()),
        2 => "NOT_SERVING",
        3 => "SERVICE_UNKNOWN",
        _ => "UNKNOWN",
    };
    Err(format!("service unhealthy (responded with \"{name}\")"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_and_decodes_health_messages() {
        assert_eq!(&request("")[..], [0, 0, 0, 0, 0]);
        assert_eq!(&request("ab")[..], [0, 0, 0, 0, 4, 0x0a, 2, b'a', b'b']);
        assert_eq!(health(&[0, 0, 0, 0, 2, 8, 1]), Ok(()));
        let wrong = health(&[0, 0, 0, 0, 2, 8, 2]).unwrap_err();
        assert_eq!(wrong, "service unhealthy (responded with \"NOT_SERVING\")");
        assert!(health(&[]).is_err());
    }
}
