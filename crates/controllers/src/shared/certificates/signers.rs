//! What each of Kubernetes' signers signs. Texts are upstream's.
//!
//! Source: Kubernetes, "Certificates and Certificate Signing Requests", Kubernetes signers.

use super::request::Request;

/// Certificates that the API server honours as client certificates.
pub const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
/// Client certificates of nodes.
pub const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
/// Serving certificates of nodes.
pub const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
/// No promises at all; requests of the time before signers had names.
pub const LEGACY: &str = "kubernetes.io/legacy-unknown";

const NODES: &str = "system:nodes";
const NODE: &str = "system:node:";

/// Whether a signer signs a request.
///
/// # Errors
/// Why it does not.
pub fn check(signer: &str, request: &Request, usages: &[String]) -> Result<(), String> {
    match signer {
        CLIENT => client_usages(usages),
        KUBELET_CLIENT => kubelet_client(request, usages),
        KUBELET_SERVING => kubelet_serving(request, usages),
        _ => Ok(()),
    }
}

fn client_usages(usages: &[String]) -> Result<(), String> {
    let other = usages
        .iter()
        .find(|u| !["digital signature", "key encipherment", "client auth"].contains(&u.as_str()));
    if let Some(usage) = other {
        return Err(format!("invalid usage for client certificate: {usage}"));
    }
    if usages.iter().any(|u| u == "client auth") {
        Ok(())
    } else {
        Err("missing required usage for client certificate: client auth".into())
    }
}

fn of_nodes(request: &Request) -> Result<(), String> {
    let right = request.organizations() == [NODES];
    if right { Ok(()) } else { Err("subject organization is not system:nodes".into()) }
}

fn named_like_a_node(request: &Request) -> Result<(), String> {
    let right = request.common_name().starts_with(NODE);
    if right { Ok(()) } else { Err("subject common name does not begin with system:node:".into()) }
}

/// Exactly digital signature, the usage that matters, and perhaps key encipherment (RSA needs it).
fn exact_usages(usages: &[String], main: &str) -> Result<(), String> {
    let has = |usage: &str| usages.iter().any(|u| u == usage);
    let known = |usage: &&String| ["digital signature", "key encipherment", main].contains(&usage.as_str());
    if has("digital signature") && has(main) && usages.iter().all(|u| known(&u)) {
        return Ok(());
    }
    let mut wanted = [main, "digital signature", "key encipherment"];
    wanted.sort_unstable();
    Err(format!("usages did not match [{}]", wanted.join(" ")))
}

fn none<T>(values: &[T], text: &str) -> Result<(), String> {
    if values.is_empty() { Ok(()) } else { Err(text.to_owned()) }
}

/// Whether a request is one for a node's client certificate.
///
/// # Errors
/// Why it is not.
pub fn kubelet_client(request: &Request, usages: &[String]) -> Result<(), String> {
    of_nodes(request)?;
    none(&request.dns, "DNS subjectAltNames are not allowed")?;
    none(&request.emails, "Email subjectAltNames are not allowed")?;
    none(&request.addresses, "IP subjectAltNames are not allowed")?;
    none(&request.uris, "URI subjectAltNames are not allowed")?;
    named_like_a_node(request)?;
    exact_usages(usages, "client auth")
}

fn kubelet_serving(request: &Request, usages: &[String]) -> Result<(), String> {
    of_nodes(request)?;
    if request.dns.is_empty() && request.addresses.is_empty() {
        return Err("DNS or IP subjectAltName is required".into());
    }
    none(&request.emails, "Email subjectAltNames are not allowed")?;
    none(&request.uris, "URI subjectAltNames are not allowed")?;
    exact_usages(usages, "server auth")?;
    named_like_a_node(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Request {
        let mut request = Request::default();
        request.subject[1] = vec![NODES.into()];
        request.subject[7] = vec!["system:node:a".into()];
        request
    }

    fn verdict(signer: &str, request: &Request, usages: &[&str]) -> String {
        let usages: Vec<String> = usages.iter().map(|u| (*u).to_owned()).collect();
        check(signer, request, &usages).err().unwrap_or_default()
    }

    #[test]
    fn checks_client_requests() {
        let request = Request::default();
        assert_eq!(verdict(CLIENT, &request, &["client auth", "digital signature"]), "");
        assert_eq!(
            verdict(CLIENT, &request, &["client auth", "cert sign"]),
            "invalid usage for client certificate: cert sign"
        );
        assert_eq!(
            verdict(CLIENT, &request, &["key encipherment"]),
            "missing required usage for client certificate: client auth"
        );
        assert_eq!(verdict(LEGACY, &request, &["cert sign"]), "");
    }

    #[test]
    fn checks_kubelet_client_requests() {
        let usages = ["client auth", "digital signature"];
        let with = |change: fn(&mut Request)| {
            let mut request = node();
            change(&mut request);
            verdict(KUBELET_CLIENT, &request, &usages)
        };
        assert_eq!(with(|_| {}), "");
        assert_eq!(with(|r| r.subject[1].push("b".into())), "subject organization is not system:nodes");
        assert_eq!(
            with(|r| r.subject[7] = vec!["a".into()]),
            "subject common name does not begin with system:node:"
        );
        assert_eq!(with(|r| r.dns.push("a".into())), "DNS subjectAltNames are not allowed");
        assert_eq!(with(|r| r.uris.push("a".into())), "URI subjectAltNames are not allowed");
        assert_eq!(with(|r| r.emails.push("a".into())), "Email subjectAltNames are not allowed");
        assert_eq!(with(|r| r.addresses.push([1, 2, 3, 4].into())), "IP subjectAltNames are not allowed");
        assert_eq!(
            verdict(KUBELET_CLIENT, &node(), &["client auth"]),
            "usages did not match [client auth digital signature key encipherment]"
        );
    }

    #[test]
    fn checks_kubelet_serving_requests() {
        let usages = ["server auth", "digital signature", "key encipherment"];
        let mut request = node();
        assert_eq!(verdict(KUBELET_SERVING, &request, &usages), "DNS or IP subjectAltName is required");
        request.dns.push("a".into());
        assert_eq!(verdict(KUBELET_SERVING, &request, &usages), "");
        assert_eq!(
            verdict(KUBELET_SERVING, &request, &["server auth", "digital signature", "client auth"]),
            "usages did not match [digital signature key encipherment server auth]"
        );
    }
}
