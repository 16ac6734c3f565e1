//! The endpoint that a service's proxy leads to: one of those that are ready, chosen at random.
//!
//! Invariant: an endpoint counts only if it is a pod of the service's namespace that has this address: endpoints are written
//! by users, and users must not reach what they name there.
//!
//! Source: `ResourceLocation` and `isValidAddress` in `pkg/registry/core/service/storage`.

use crate::shared::{
    Fields,
    connect::{self, Target},
};
use kaji_meta::{Random, Status, text};
use kaji_resource::{Ctx, Location};
use serde_json::Value;

/// The location of a request.
///
/// # Errors
/// 404 without the service or its endpoints, 503 without the port or a ready endpoint.
pub fn location(ctx: &Ctx<'_>, options: &Value) -> Result<Location, Status> {
    let target = Target::parse(ctx.name, "service")?;
    let port_name = port_name(ctx, &target)?;
    let endpoints = connect::read(ctx, "endpoints", ctx.namespace, target.name)?;
    let subsets = endpoints.list("subsets");
    let none = |name| {
        Status::service_unavailable(format!("no endpoints available for service {}", text::quote(name)))
    };
    if subsets.is_empty() {
        return Err(none(target.name));
    }
    for subset in rotated(subsets, ctx.random) {
        let port = subset.list("ports").iter().find(|p| p.text("name") == port_name);
        let Some(port) = port.and_then(|p| u16::try_from(p.int("port")).ok()) else { continue };
        let mut addresses = rotated(subset.list("addresses"), ctx.random);
        if let Some(found) = addresses.find(|address| is_pod(ctx, address)) {
            let path = connect::proxied_path(options);
            let location = connect::address(found.text("ip"), port, target.security(), path)?;
            return connect::reachable(ctx, found.text("nodeName"), location);
        }
    }
    Err(none(ctx.name))
}

/// The name of the port that a request means: endpoints know ports by their names.
fn port_name(ctx: &Ctx<'_>, target: &Target<'_>) -> Result<String, Status> {
    let Ok(number) = target.port.parse::<i64>() else { return Ok(target.port.to_owned()) };
    let service = connect::read(ctx, "services", ctx.namespace, target.name)?;
    let ports = service.at("spec").list("ports");
    let found = ports.iter().find(|p| p.int("port") == number);
    found.map(|p| p.text("name").to_owned()).ok_or_else(|| {
        let service = text::quote(target.name);
        Status::service_unavailable(format!("no service port {number} found for service {service}"))
    })
}

/// All of a list, from a random one on.
fn rotated<'a>(all: &'a [Value], random: &dyn Random) -> impl Iterator<Item = &'a Value> {
    let count = all.len().max(1) as u64;
    let start = usize::try_from(random.u64() % count).unwrap_or(0);
    all[start.min(all.len())..].iter().chain(&all[..start.min(all.len())])
}

fn is_pod(ctx: &Ctx<'_>, address: &Value) -> bool {
    let reference = address.at("targetRef");
    if reference.text("namespace") != ctx.namespace {
        return false;
    }
    let pod = connect::read(ctx, "pods", ctx.namespace, reference.text("name"));
    pod.is_ok_and(|pod| pod.at("status").list("podIPs").iter().any(|ip| ip.text("ip") == address.text("ip")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::testing::TestContext;
    use expect_test::expect;
    use kaji_meta::GroupResource;
    use serde_json::json;

    fn put(test: &TestContext, resource: &str, object: Value) {
        test.api.put(&GroupResource::new("", resource), object);
    }

    fn pod(test: &TestContext, name: &str, ip: &str) {
        let object =
            json!({"metadata": {"namespace": "n", "name": name}, "status": {"podIPs": [{"ip": ip}]}});
        put(test, "pods", object);
    }

    fn ask(test: &TestContext, name: &str) -> String {
        let object = json!({"metadata": {"namespace": "n", "name": name}});
        match location(&test.ctx(&object, "proxy", "v1"), &json!({"path": "/x"})) {
            Ok(l) => format!("{name}: {:?} {} {:?} {}\n", l.host, l.port, l.security, l.path),
            Err(status) => format!("{name}: {} {}\n", status.code, status.message),
        }
    }

    #[test]
    fn leads_to_pods_only() {
        let test = TestContext::default();
        pod(&test, "a", "10.0.0.1");
        pod(&test, "moved", "10.0.0.9");
        pod(&test, "own", "127.0.0.1");
        let service = |name: &str| json!({"metadata": {"namespace": "n", "name": name}, "spec": {"ports": [{"name": "web", "port": 80}, {"name": "tls", "port": 443}]}});
        let address = |ip: &str, pod: &str, namespace: &str| json!({"ip": ip, "targetRef": {"kind": "Pod", "namespace": namespace, "name": pod}});
        let endpoints = |name: &str, addresses: Value| {
            json!({"metadata": {"namespace": "n", "name": name}, "subsets": [
                {"addresses": addresses, "ports": [{"name": "web", "port": 8080}, {"name": "tls", "port": 8443}]}]})
        };
        for name in ["s", "empty", "alone", "forged", "loop"] {
            put(&test, "services", service(name));
        }
        put(
            &test,
            "endpoints",
            endpoints(
                "s",
                json!([
                    address("10.0.0.1", "a", "n"), {"ip": "10.0.0.2"}, address("10.0.0.3", "moved", "n"), address("10.0.0.1", "a", "other"),
                ]),
            ),
        );
        put(&test, "endpoints", json!({"metadata": {"namespace": "n", "name": "empty"}}));
        put(
            &test,
            "endpoints",
            endpoints("forged", json!([{"ip": "169.254.169.254"}, address("169.254.169.254", "a", "n")])),
        );
        put(&test, "endpoints", endpoints("loop", json!([address("127.0.0.1", "own", "n")])));
        let ids = [
            "s:web",
            "https:s:tls",
            "s:80",
            "https:s:443",
            "s",
            "s:81",
            "s:nothing",
            "empty:web",
            "alone:web",
            "missing:80",
            "missing",
            "forged:web",
            "loop:web",
            "ftp:s:web",
        ];
        let seen: String = ids.iter().map(|id| ask(&test, id)).collect();
        expect![[r#"
            s:web: Address("10.0.0.1") 8080 Plain /x
            https:s:tls: Address("10.0.0.1") 8443 Unverified /x
            s:80: Address("10.0.0.1") 8080 Plain /x
            https:s:443: Address("10.0.0.1") 8443 Unverified /x
            s: 503 no endpoints available for service "s"
            s:81: 503 no service port 81 found for service "s"
            s:nothing: 503 no endpoints available for service "s:nothing"
            empty:web: 503 no endpoints available for service "empty"
            alone:web: 404 endpoints "alone" not found
            missing:80: 404 services "missing" not found
            missing: 404 endpoints "missing" not found
            forged:web: 503 no endpoints available for service "forged:web"
            loop:web: 400 address not allowed
            ftp:s:web: 400 invalid service request "ftp:s:web"
        "#]]
        .assert_eq(&seen);
    }

    #[test]
    fn simulated_pods_are_not_connected_to() {
        let test = TestContext::default();
        let node = |name: &str, runtime: &str| json!({"metadata": {"name": name}, "status": {"nodeInfo": {"containerRuntimeVersion": runtime}}});
        put(&test, "nodes", node("sim-1", "simulated://1.0"));
        put(&test, "nodes", node("real", "kaji://1.0"));
        for (name, ip) in [("sim-1", "10.0.0.1"), ("real", "10.0.0.2")] {
            pod(&test, name, ip);
            let address = json!({"ip": ip, "nodeName": name, "targetRef": {"namespace": "n", "name": name}});
            let subsets = json!([{"addresses": [address], "ports": [{"name": "web", "port": 8080}]}]);
            put(
                &test,
                "endpoints",
                json!({"metadata": {"namespace": "n", "name": name}, "subsets": subsets}),
            );
        }
        expect![[r#"
            sim-1:web: 503 error trying to reach service: dial tcp 10.0.0.1:8080: connect: connection refused (a simulated pod)
            real:web: Address("10.0.0.2") 8080 Plain /x
        "#]]
        .assert_eq(&(ask(&test, "sim-1:web") + &ask(&test, "real:web")));
    }

    #[test]
    fn every_endpoint_gets_its_share() {
        let test = TestContext::default();
        let addresses: Vec<Value> = (1..=4)
            .map(|i| {
                let (name, ip) = (format!("p{i}"), format!("10.0.0.{i}"));
                pod(&test, &name, &ip);
                json!({"ip": ip, "targetRef": {"namespace": "n", "name": name}})
            })
            .collect();
        put(
            &test,
            "endpoints",
            json!({"metadata": {"namespace": "n", "name": "s"},
            "subsets": [{"addresses": addresses, "ports": [{"port": 80}]}]}),
        );
        let seen: std::collections::BTreeSet<String> = (0..200).map(|_| ask(&test, "s")).collect();
        assert_eq!(seen.len(), 4, "{seen:?}");
    }
}
