//! What plug-ins answer: the addresses of a pod among it.

use super::INTERFACE;
use crate::NetworkError;
use serde_json::Value;
use std::net::IpAddr;

/// Addresses of the pod's interface, one of each family at most, in the order of the result.
///
/// # Errors
/// There is none, or one that is no address.
pub fn addresses(result: &Value) -> Result<Vec<IpAddr>, NetworkError> {
    let of_pod = |ip: &&Value| {
        let number =
            ip.get("interface").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok());
        let Some(interface) = number.map(|index| &result["interfaces"][index]) else { return true };
        interface["name"] == INTERFACE && interface["sandbox"].as_str().is_some_and(|path| !path.is_empty())
    };
    let listed = result["ips"].as_array().into_iter().flatten().filter(of_pod).map(|ip| &ip["address"]);
    // Before 0.3.0.
    let single = ["ip4", "ip6"].into_iter().filter_map(|family| result.get(family)).map(|ip| &ip["ip"]);
    let mut found: Vec<IpAddr> = vec![];
    for address in listed.chain(single) {
        let text = address.as_str().unwrap_or_default();
        let ip = text.split('/').next().unwrap_or_default().parse::<IpAddr>();
        let ip = ip.map_err(|_| NetworkError::Plugin(format!("a result has the address {address}")))?;
        if !found.iter().any(|known| known.is_ipv4() == ip.is_ipv4()) {
            found.push(ip);
        }
    }
    if found.is_empty() {
        return Err(NetworkError::Plugin(format!("the result has no address of the interface {INTERFACE}")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_are_those_of_the_pods_interface() {
        let interfaces =
            json!([{"name": "br0"}, {"name": "eth0", "sandbox": "/n"}, {"name": "net1", "sandbox": "/n"}]);
        let ip = |address: &str, interface: u32| json!({"address": address, "interface": interface});
        let shown = [
            json!({"interfaces": interfaces, "ips": [ip("10.0.0.1/24", 0), ip("10.0.0.9/24", 2), ip("10.0.0.2/24", 1), ip("fd00::2/64", 1), ip("10.0.0.3/24", 1)]}),
            json!({"ips": [{"version": "6", "address": "fd00::2/64"}, {"version": "4", "address": "10.0.0.2/24"}]}),
            json!({"ip4": {"ip": "10.0.0.2/24"}}),
            json!({"interfaces": interfaces, "ips": [ip("10.0.0.1/24", 0), ip("10.0.0.1/24", 9)]}),
            json!({"ips": [{"address": "x"}]}),
            json!(null),
        ]
        .map(|result| match addresses(&result) {
            Ok(found) => format!("{found:?}"),
            Err(error) => error.to_string(),
        });
        expect_test::expect![[r#"
            [10.0.0.2, fd00::2]
            [fd00::2, 10.0.0.2]
            [10.0.0.2]
            the result has no address of the interface eth0
            a result has the address "x"
            the result has no address of the interface eth0"#]]
        .assert_eq(&shown.join("\n"));
    }
}
