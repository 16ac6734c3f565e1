//! The node's end of the plug-in: requests at a socket become calls of the pod network.
//!
//! Invariants: only root reaches the socket; requests, and their number at a time, are bounded; a request that is given up is
//! carried to its end.
//!
//! Source: the CNI specification 1.0.0, and the conventions of containerd and CRI-O for its arguments and capabilities.

use super::{Answer, Failure, MOST, Request, code};
use kaji_containers::{NetworkSetup, PodNetwork, PodSandboxMetadata, PortMapping, Protocol, RuntimeError};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

/// The name of a pod's interface in the built-in network, and in all others.
const INTERFACE: &str = "eth0";
/// Requests at a time.
const REQUESTS: usize = 64;
/// What a plug-in is given to send its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// After a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens; what is left of an earlier process is replaced.
///
/// # Errors
/// Those of the file system.
pub fn bind(socket: &Path) -> io::Result<UnixListener> {
    kaji_grpc::bind(socket)
}

/// Serves plug-ins until it is dropped.
pub async fn serve(listener: UnixListener, network: Arc<dyn PodNetwork>) {
    let places = Arc::new(Semaphore::new(REQUESTS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let network = network.clone();
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, &*network).await {
                        tracing::debug!(%error, "a request of a network plug-in could not be answered");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection of a network plug-in could not be accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn answer(mut stream: UnixStream, network: &dyn PodNetwork) -> io::Result<()> {
    let mut text = vec![];
    let (reader, mut writer) = stream.split();
    tokio::time::timeout(REQUEST_TIMEOUT, reader.take(MOST).read_to_end(&mut text)).await??;
    let answer = match serde_json::from_slice(&text) {
        Ok(request) => handle(request, network).await.map_or_else(Answer::Failed, Answer::Done),
        Err(error) => Answer::Failed(Failure::new(code::DECODING, error)),
    };
    writer.write_all(&serde_json::to_vec(&answer)?).await?;
    writer.shutdown().await
}

/// Does what a plug-in was asked for. Answers what it prints.
pub async fn handle(request: Request, network: &dyn PodNetwork) -> Result<Value, Failure> {
    let failed = |error: RuntimeError| Failure::new(code::NETWORK, error);
    let setup = setup(&request)?;
    match request.command.as_str() {
        "ADD" => {
            if let Some(reason) = network.unavailable_reason().await {
                return Err(Failure::new(code::TRY_AGAIN, reason));
            }
            let addresses = network.set_up(setup).await.map_err(failed)?.addresses;
            Ok(result(&request, &addresses))
        }
        "CHECK" => network.adopt(setup).await.map(|_| Value::Null).map_err(failed),
        "DEL" => network.tear_down(setup).await.map(|()| Value::Null).map_err(failed),
        "STATUS" => match network.unavailable_reason().await {
            None => Ok(Value::Null),
            // "The plug-in is not available".
            Some(reason) => Err(Failure::new(50, reason)),
        },
        // What belongs to no sandbox is swept when the node starts.
        "GC" => Ok(Value::Null),
        other => Err(Failure::new(code::ENVIRONMENT, format!("unknown CNI_COMMAND: {other}"))),
    }
}

/// The pod and its namespace, by the request.
fn setup(request: &Request) -> Result<NetworkSetup, Failure> {
    let needs_namespace = matches!(request.command.as_str(), "ADD" | "CHECK");
    if matches!(request.command.as_str(), "ADD" | "CHECK" | "DEL") {
        if request.container_id.is_empty() {
            return Err(Failure::new(code::ENVIRONMENT, "CNI_CONTAINERID is missing"));
        }
        if request.interface != INTERFACE {
            let text =
                format!("CNI_IFNAME is {:?}, and the interface of pods is {INTERFACE}", request.interface);
            return Err(Failure::new(code::ENVIRONMENT, text));
        }
    }
    if needs_namespace && request.namespace.is_empty() {
        return Err(Failure::new(code::ENVIRONMENT, "CNI_NETNS is missing"));
    }
    let arguments: BTreeMap<&str, &str> =
        request.arguments.split(';').filter_map(|argument| argument.split_once('=')).collect();
    let argument = |name: &str| arguments.get(name).map(|value| (*value).to_owned()).unwrap_or_default();
    let wanted = &request.config["runtimeConfig"];
    let ports = wanted["portMappings"].as_array().map(Vec::as_slice).unwrap_or_default();
    Ok(NetworkSetup {
        sandbox_id: request.container_id.clone(),
        metadata: PodSandboxMetadata {
            name: argument("K8S_POD_NAME"),
            namespace: argument("K8S_POD_NAMESPACE"),
            uid: argument("K8S_POD_UID"),
            attempt: 0,
        },
        namespace: PathBuf::from(&request.namespace),
        port_mappings: ports.iter().map(port).collect::<Result<_, _>>()?,
        annotations: bandwidth(&wanted["bandwidth"]),
    })
}

/// A member of what a runtime hands on. containerd writes names as Go has them, CRI-O as CNI does; upstream's plug-ins read both.
fn member<'a>(object: &'a Value, name: &str) -> &'a Value {
    let members = object.as_object().into_iter().flatten();
    members
        .into_iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(name))
        .map_or(&Value::Null, |(_, value)| value)
}

fn port(mapping: &Value) -> Result<PortMapping, Failure> {
    let wrong = || Failure::new(code::CONFIGURATION, format!("invalid port mapping {mapping}"));
    let number = |name: &str| match member(mapping, name) {
        Value::Null => Ok(0),
        value => value.as_u64().and_then(|n| u16::try_from(n).ok()).ok_or_else(wrong),
    };
    let protocol = match member(mapping, "protocol").as_str().unwrap_or("tcp").to_ascii_lowercase().as_str() {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        "sctp" => Protocol::Sctp,
        _ => return Err(wrong()),
    };
    let host_ip = match member(mapping, "hostIP").as_str().unwrap_or_default() {
        "" => None,
        text => Some(text.parse::<IpAddr>().map_err(|_| wrong())?),
    };
    let (container_port, host_port) = (number("containerPort")?, number("hostPort")?);
    Ok(PortMapping { protocol, container_port, host_port, host_ip })
}

/// The runtime has read the pod's annotations, and hands on bits a second.
fn bandwidth(wanted: &Value) -> BTreeMap<String, String> {
    let rates = [
        ("kubernetes.io/ingress-bandwidth", "ingressRate"),
        ("kubernetes.io/egress-bandwidth", "egressRate"),
    ];
    let rate = |name: &str| member(wanted, name).as_u64().filter(|rate| *rate > 0);
    rates
        .iter()
        .filter_map(|(name, rate_name)| Some(((*name).to_owned(), rate(rate_name)?.to_string())))
        .collect()
}

fn result(request: &Request, addresses: &[IpAddr]) -> Value {
    let old = request.config["cniVersion"].as_str().is_some_and(|version| version.starts_with("0."));
    let address = |ip: &IpAddr| {
        let (version, bits) = if ip.is_ipv4() { ("4", 32) } else { ("6", 128) };
        let mut shown = json!({"address": format!("{ip}/{bits}"), "interface": 0});
        if old {
            shown["version"] = json!(version);
        }
        shown
    };
    json!({
        "interfaces": [{"name": INTERFACE, "sandbox": request.namespace}],
        "ips": addresses.iter().map(address).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: &str, config: Value) -> Request {
        Request {
            command: command.into(),
            container_id: "s1".into(),
            namespace: "/run/netns/a".into(),
            interface: "eth0".into(),
            arguments: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;K8S_POD_UID=u-1".into(),
            config,
        }
    }

    #[test]
    fn a_request_names_pod_ports_and_rates() {
        let config = json!({"cniVersion": "1.0.0", "runtimeConfig": {
            "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp", "hostIP": "127.0.0.1"},
                {"HostPort": 53, "ContainerPort": 53, "Protocol": "udp", "HostIP": ""}],
            "bandwidth": {"IngressRate": 1_000_000, "IngressBurst": 5, "EgressRate": 0},
        }});
        let setup = setup(&request("ADD", config)).unwrap();
        expect_test::expect![[r#"
            NetworkSetup {
                sandbox_id: "s1",
                metadata: PodSandboxMetadata {
                    name: "web",
                    namespace: "default",
                    uid: "u-1",
                    attempt: 0,
                },
                namespace: "/run/netns/a",
                port_mappings: [
                    PortMapping {
                        protocol: Tcp,
                        container_port: 80,
                        host_port: 8080,
                        host_ip: Some(
                            127.0.0.1,
                        ),
                    },
                    PortMapping {
                        protocol: Udp,
                        container_port: 53,
                        host_port: 53,
                        host_ip: None,
                    },
                ],
                annotations: {
                    "kubernetes.io/ingress-bandwidth": "1000000",
                },
            }"#]]
        .assert_eq(&format!("{setup:#?}"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_refused() {
        let refused = |change: &dyn Fn(&mut Request)| {
            let mut request = request("ADD", json!({}));
            change(&mut request);
            let failure = setup(&request).unwrap_err();
            format!("{} {}", failure.code, failure.msg)
        };
        let all = [
            refused(&|r| r.container_id.clear()),
            refused(&|r| r.namespace.clear()),
            refused(&|r| r.interface = "net1".into()),
            refused(&|r| r.config = json!({"runtimeConfig": {"portMappings": [{"hostPort": 70000}]}})),
            refused(&|r| r.config = json!({"runtimeConfig": {"portMappings": [{"protocol": "icmp"}]}})),
        ];
        expect_test::expect![[r#"
            4 CNI_CONTAINERID is missing
            4 CNI_NETNS is missing
            4 CNI_IFNAME is "net1", and the interface of pods is eth0
            7 invalid port mapping {"hostPort":70000}
            7 invalid port mapping {"protocol":"icmp"}"#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn addresses_are_shown_as_the_configurations_version_has_them() {
        let addresses = ["10.224.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        let shown =
            |version: &str| result(&request("ADD", json!({"cniVersion": version})), &addresses).to_string();
        expect_test::expect![[r#"
            {"interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.224.0.5/32","interface":0},{"address":"fd00::5/128","interface":0}]}
            {"interfaces":[{"name":"eth0","sandbox":"/run/netns/a"}],"ips":[{"address":"10.224.0.5/32","interface":0,"version":"4"},{"address":"fd00::5/128","interface":0,"version":"6"}]}"#]].assert_eq(&[shown("1.0.0"), shown("0.4.0")].join("\n"));
    }
}
