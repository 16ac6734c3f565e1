//! What subresources that connect have in common: names of the form `scheme:name:port`, the kubelet of a node, paths.
//!
//! Invariants: a path is cleaned here once, after it was decoded, so that `..` cannot lead out of the prefix that was
//! authorized; addresses that lead back to the server's machine or its link are never proxied to; nor are those of simulated pods.
//!
//! Source: `SplitSchemeNamePort` and `JoinPreservingTrailingSlash` of apimachinery, `NodeConnectionInfoGetter`.

use super::Fields;
use kaji_meta::{
    GroupResource, Status,
    text::{self, clean_path},
};
use kaji_resource::{Ctx, Host, Location, LocationQuery, Security, is_global_unicast};
use serde_json::Value;
use std::{net::IpAddr, sync::Arc};

/// The port of kubelets that report none.
const KUBELET_PORT: u16 = 10250;

/// A name as proxies take it: `name`, `name:port` or `scheme:name:port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target<'a> {
    /// Whether the scheme is `https`.
    pub https: bool,
    /// The object.
    pub name: &'a str,
    /// A number, or the name of a port; empty for none.
    pub port: &'a str,
}

impl<'a> Target<'a> {
    /// Takes a name apart; `what` is the object that it means.
    ///
    /// # Errors
    /// 400 for any other form, or another scheme.
    pub fn parse(id: &'a str, what: &str) -> Result<Target<'a>, Status> {
        let parts: Vec<&str> = id.split(':').collect();
        let (scheme, name, port) = match parts[..] {
            [name] => ("", name, ""),
            [name, port] => ("", name, port),
            [scheme, name, port] => (scheme, name, port),
            _ => ("", "", ""),
        };
        if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
            return Err(Status::bad_request(format!("invalid {what} request {}", text::quote(id))));
        }
        Ok(Target { https: scheme == "https", name, port })
    }

    /// How it is reached; without a certificate of this server.
    pub fn security(&self) -> Security {
        if self.https { Security::Unverified } else { Security::Plain }
    }

    /// Its port as a number; that of the scheme without one. Two names are known as services of the machine.
    ///
    /// # Errors
    /// 503 for another name, as a proxy says that it cannot connect.
    pub fn port_number(&self) -> Result<u16, Status> {
        match self.port {
            "" => Ok(if self.https { 443 } else { 80 }),
            "http" => Ok(80),
            "https" => Ok(443),
            port => port.parse().map_err(|_| {
                let why = if port.bytes().all(|b| b.is_ascii_digit()) {
                    format!("dial tcp: address {port}: invalid port")
                } else {
                    format!("dial tcp: lookup tcp/{port}: unknown port")
                };
                Status::service_unavailable(format!("error trying to reach service: {why}"))
            }),
        }
    }
}

/// An object of the request's namespace, or of the cluster.
///
/// # Errors
/// 404 when it is not there.
pub fn read(ctx: &Ctx<'_>, resource: &str, namespace: &str, name: &str) -> Result<Arc<Value>, Status> {
    let resource = GroupResource::new("", resource);
    ctx.api.get(&resource, namespace, name).ok_or_else(|| Status::not_found(&resource, name))
}

/// The addresses of a node by their types.
fn addresses(node: &Value) -> Host {
    let all = node.at("status").list("addresses").iter();
    Host::AnyOf(all.map(|a| (a.text("type").to_owned(), a.text("address").to_owned())).collect())
}

/// The port of a node's kubelet.
pub fn kubelet_port(node: &Value) -> u16 {
    let port = node.at("status").at("daemonEndpoints").at("kubeletEndpoint").int("Port");
    u16::try_from(port).ok().filter(|port| *port > 0).unwrap_or(KUBELET_PORT)
}

/// A path of a node's kubelet.
pub fn kubelet(node: &Value, verify: bool, path: String, query: LocationQuery) -> Location {
    Location {
        host: addresses(node),
        port: kubelet_port(node),
        security: Security::Mutual { verify },
        path,
        query,
        // Any address will do: its certificate says which server it is.
        global_only: false,
    }
}

/// Another port of a node.
pub fn node_port(node: &Value, target: &Target<'_>, path: String) -> Result<Location, Status> {
    Ok(Location {
        host: addresses(node),
        port: target.port_number()?,
        security: target.security(),
        path,
        query: LocationQuery::AsReceived,
        global_only: true,
    })
}

/// An address of a pod.
///
/// # Errors
/// 400 for an address that is not proxied to.
pub fn address(ip: &str, port: u16, security: Security, path: String) -> Result<Location, Status> {
    let usable = ip.parse::<IpAddr>().is_ok_and(is_global_unicast);
    if !usable {
        return Err(Status::bad_request("address not allowed"));
    }
    let (host, query) = (Host::Address(ip.to_owned()), LocationQuery::AsReceived);
    Ok(Location { host, port, security, path, query, global_only: true })
}

/// Fails as a connection to a simulated pod would: its address is of no machine here, but may be of one beyond.
///
/// # Errors
/// 503 if the node runs nothing.
pub fn reachable(ctx: &Ctx<'_>, node: &str, location: Location) -> Result<Location, Status> {
    let simulated = |node: Arc<Value>| {
        node.at("status").at("nodeInfo").text("containerRuntimeVersion").starts_with("simulated://")
    };
    match &location.host {
        Host::Address(ip) if read(ctx, "nodes", "", node).is_ok_and(simulated) => {
            let port = location.port;
            Err(Status::service_unavailable(format!(
                "error trying to reach service: dial tcp {ip}:{port}: connect: connection refused (a simulated pod)"
            )))
        }
        _ => Ok(location),
    }
}

/// The path of a proxy's options, without `.` and `..` and empty steps; a slash at the end stays.
pub fn proxied_path(options: &Value) -> String {
    match options.text("path") {
        "" => String::new(),
        path => clean_path(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn names_are_taken_apart() {
        let ids = [
            "a",
            "a:80",
            "a:web",
            "https:a:",
            "https:a:x",
            "http:a:1",
            "ftp:a:1",
            "a:b:c:d",
            ":1",
            "",
            "a:99999",
        ];
        let seen: Vec<String> = ids
            .iter()
            .map(|id| match Target::parse(id, "pod") {
                Ok(t) => match t.port_number() {
                    Ok(port) => format!("{id}: {} {:?} {port}", t.name, t.security()),
                    Err(status) => format!("{id}: {}", status.message),
                },
                Err(status) => format!("{id}: {} {}", status.code, status.message),
            })
            .collect();
        expect![[r#"
            a: a Plain 80
            a:80: a Plain 80
            a:web: error trying to reach service: dial tcp: lookup tcp/web: unknown port
            https:a:: a Unverified 443
            https:a:x: error trying to reach service: dial tcp: lookup tcp/x: unknown port
            http:a:1: a Plain 1
            ftp:a:1: 400 invalid pod request "ftp:a:1"
            a:b:c:d: 400 invalid pod request "a:b:c:d"
            :1: 400 invalid pod request ":1"
            : 400 invalid pod request ""
            a:99999: error trying to reach service: dial tcp: address 99999: invalid port"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[test]
    fn paths_do_not_escape() {
        let paths =
            ["", "/", "/a", "/a/", "/a//b/./c", "/a/../../../b/", "/..", "/../", "/a/..", "/a b/%2e%2e/c"];
        let seen: Vec<String> =
            paths.iter().map(|p| format!("{p} -> {}", proxied_path(&json!({ "path": p })))).collect();
        expect![[r#"
             -> 
            / -> /
            /a -> /a
            /a/ -> /a/
            /a//b/./c -> /a/b/c
            /a/../../../b/ -> /b/
            /.. -> /
            /../ -> /
            /a/.. -> /
            /a b/%2e%2e/c -> /a b/%2e%2e/c"#]]
        .assert_eq(&seen.join("\n"));
    }

    #[test]
    fn own_addresses_are_not_proxied_to() {
        let allowed = |ip: &str| address(ip, 80, Security::Plain, "/".into()).is_ok();
        for ip in ["10.1.2.3", "192.168.0.1", "8.8.8.8", "fd00::1", "2001:db8::1", "::ffff:10.0.0.1"] {
            assert!(allowed(ip), "{ip}");
        }
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "0.0.0.0",
            "255.255.255.255",
            "224.0.0.1",
            "::1",
            "::",
            "fe80::1",
            "ff02::1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "localhost",
            "",
        ] {
            assert!(!allowed(ip), "{ip}");
        }
    }
}
