//! A request of the client under test: by which client it is, and which verb of which resource it is about.

use http::{HeaderMap, Method, Uri, header};
use kaji_meta::{Query, query::unescape};
use kaji_server::RequestInfo;

/// Longest name of a client.
const LONGEST: usize = 100;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// The product of the `User-Agent`, without its version.
    pub client: String,
    /// The verb of the API.
    pub verb: String,
    /// `deployments.apps/status`
    pub resource: String,
    /// Of namespaced resources.
    pub namespace: String,
    /// Empty for collections, and for creates until the answer tells it.
    pub name: String,
    /// The path of the object, without subresource.
    pub path: String,
}

impl Call {
    /// That of a request's head; `None` if it is about no resource.
    #[must_use]
    pub fn of(method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Call> {
        let query = uri.query().map(Query::parse).unwrap_or_default();
        let info = RequestInfo::parse(method, &unescape(uri.path(), false), query).ok()?;
        let name = info.name().to_owned();
        let target = info.resource?;
        let agent = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok());
        let mut resource = target.resource.clone();
        for (separator, part) in [(".", &target.group), ("/", &target.subresource)] {
            if !part.is_empty() {
                resource.push_str(separator);
                resource.push_str(part);
            }
        }
        let suffix = format!("/{}", target.subresource);
        let path = match target.subresource.as_str() {
            "" => uri.path(),
            _ => uri.path().strip_suffix(suffix.as_str()).unwrap_or(uri.path()),
        };
        Some(Call {
            client: product(agent.unwrap_or_default()),
            verb: info.verb,
            resource,
            namespace: target.namespace,
            name,
            path: path.to_owned(),
        })
    }

    /// Whether it changes something.
    #[must_use]
    pub fn writes(&self) -> bool {
        matches!(self.verb.as_str(), "create" | "update" | "patch" | "delete" | "deletecollection")
    }

    /// Whether it is about what operators write without an end: leases and events.
    #[must_use]
    pub fn is_background(&self) -> bool {
        matches!(self.resource.as_str(), "events" | "events.events.k8s.io" | "leases.coordination.k8s.io")
    }
}

fn product(agent: &str) -> String {
    let product = agent.split(['/', ' ']).next().unwrap_or_default();
    match product {
        "" => "unnamed".to_owned(),
        product => product.chars().take(LONGEST).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn reads_heads() {
        let of = |method: Method, uri: &str, agent: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::USER_AGENT, agent.parse().unwrap());
            Call::of(&method, &uri.parse().unwrap(), &headers)
        };
        let call = of(Method::PATCH, "/apis/apps/v1/namespaces/d/deployments/a/status?x=y", "op/v1 (linux)");
        expect![[r#"
            Some(
                Call {
                    client: "op",
                    verb: "patch",
                    resource: "deployments.apps/status",
                    namespace: "d",
                    name: "a",
                    path: "/apis/apps/v1/namespaces/d/deployments/a",
                },
            )
        "#]]
        .assert_debug_eq(&call);
        let watch = of(Method::GET, "/api/v1/pods?watch=true", "").unwrap();
        assert_eq!((watch.verb.as_str(), watch.client.as_str(), watch.writes()), ("watch", "unnamed", false));
        assert_eq!(of(Method::GET, "/healthz", "op"), None);
    }
}
