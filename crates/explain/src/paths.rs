//! Paths of objects and collections.
//!
//! Invariant: a name is one segment, whatever is in it: names come from objects, and some fields of objects are not validated.

use kaji_runtime::client::escape;

/// Of an object; of the collection for an empty name; over all namespaces, or of the cluster, for an empty namespace.
pub fn path(group_version: &str, namespace: &str, plural: &str, name: &str) -> String {
    let mut path = match group_version.contains('/') {
        true => format!("/apis/{group_version}"),
        false => format!("/api/{group_version}"),
    };
    if !namespace.is_empty() {
        path += &format!("/namespaces/{}", escape(namespace));
    }
    path += &format!("/{plural}");
    if !name.is_empty() {
        path += &format!("/{}", escape(name));
    }
    path
}

/// The slices of a service's endpoints.
pub fn endpoint_slices(namespace: &str, service: &str) -> String {
    let selector = format!("kubernetes.io/service-name={service}");
    let slices = path("discovery.k8s.io/v1", namespace, "endpointslices", "");
    format!("{slices}?labelSelector={}", escape(&selector))
}

/// The events about an object.
pub fn events(namespace: &str, uid: &str) -> String {
    let selector = format!("involvedObject.uid={uid}");
    format!("{}?fieldSelector={}", path("v1", namespace, "events", ""), escape(&selector))
}

/// The last lines of a container's log.
pub fn log(namespace: &str, pod: &str, container: &str, previous: bool, lines: usize) -> String {
    let pod = path("v1", namespace, "pods", pod);
    format!("{pod}/log?container={}&previous={previous}&tailLines={lines}", escape(container))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_single_segments() {
        assert_eq!(path("apps/v1", "d", "deployments", "web"), "/apis/apps/v1/namespaces/d/deployments/web");
        assert_eq!(path("v1", "", "nodes", ""), "/api/v1/nodes");
        let hostile = "a/../../services/s/proxy?x=1#";
        assert_eq!(
            path("v1", "d", "secrets", hostile),
            "/api/v1/namespaces/d/secrets/a%2F..%2F..%2Fservices%2Fs%2Fproxy%3Fx%3D1%23"
        );
        assert!(
            log("d", "p", "c&follow=true", true, 5)
                .ends_with("?container=c%26follow%3Dtrue&previous=true&tailLines=5")
        );
        assert!(endpoint_slices("d", "a,b").ends_with("?labelSelector=kubernetes.io%2Fservice-name%3Da%2Cb"));
    }
}
