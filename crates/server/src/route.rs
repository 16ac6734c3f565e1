//! The request info of method, path and query, as upstream's `RequestInfoFactory` resolves it.
//!
//! Invariant: it is resolved once. Authorization, audit, flow control, proxying and the engine use the same names, verb and
//! parameters.

use http::Method;
use kaji_meta::{Query, validation::path_segment_name};

/// A resource request's target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// `""` for core.
    pub group: String,
    /// `v1`
    pub version: String,
    /// `""` for cluster scope or all namespaces.
    pub namespace: String,
    /// Plural.
    pub resource: String,
    /// `""` for collections.
    pub name: String,
    /// `""` for the main resource.
    pub subresource: String,
    /// The path behind the subresource, without its leading slash.
    pub subpath: String,
}

/// What a request is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// API verb for resources (`get`, `list`, `watch`, …), else the method in lower case.
    pub verb: String,
    /// The whole path, decoded.
    pub path: String,
    /// The parameters.
    pub query: Query,
    /// The target when it is a resource request.
    pub resource: Option<Target>,
    /// The one name that a list's or watch's field selector requires: the request is authorized for that object.
    pub selected_name: String,
    /// The verb stands in the path (`/api/v1/watch/pods`). Selectors are no part of what is authorized then.
    pub verb_in_path: bool,
}

/// A path that ends where its verb does (`/api/v1/watch`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to create RequestInfo: unable to determine kind and namespace from url")]
pub struct Undetermined;

impl RequestInfo {
    /// Reads a request; the path is decoded already.
    ///
    /// # Errors
    /// A path that names a verb and no resource.
    pub fn parse(method: &Method, path: &str, query: Query) -> Result<RequestInfo, Undetermined> {
        let mut info = RequestInfo { path: path.to_owned(), query, ..RequestInfo::default() };
        let Some((target, special)) = target(path)? else {
            info.verb = method.as_str().to_ascii_lowercase();
            return Ok(info);
        };
        info.verb_in_path = special.is_some();
        let verb = special.unwrap_or_else(|| by_method(method));
        info.verb = match verb {
            "get" if target.name.is_empty() => {
                info.selected_name = selected_name(&info.query);
                if info.query.watches() { "watch" } else { "list" }
            }
            "delete" if target.name.is_empty() => "deletecollection",
            verb => verb,
        }
        .to_owned();
        info.resource = Some(target);
        Ok(info)
    }

    /// The name of the object that a request is about: the path's, else the one that its field selector asks for.
    pub fn name(&self) -> &str {
        let named = self.resource.as_ref().map_or("", |t| t.name.as_str());
        if named.is_empty() { &self.selected_name } else { named }
    }

    /// Whether the request stays open by design (watch and the streaming subresources).
    pub fn long_running(&self) -> bool {
        let sub = self.resource.as_ref().map_or("", |t| t.subresource.as_str());
        matches!(self.verb.as_str(), "watch" | "proxy")
            || matches!(sub, "attach" | "exec" | "proxy" | "log" | "portforward")
    }
}

fn by_method(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::GET | Method::HEAD => "get",
        _ => "",
    }
}

/// Without options that convert, no name is taken out of them: such a request is refused once it is authorized.
fn selected_name(query: &Query) -> String {
    let options = query.list_options().ok();
    let name = options.and_then(|o| o.fields).and_then(|s| s.requires_exact("metadata.name"));
    name.filter(|name| path_segment_name(name, false).is_empty()).unwrap_or_default().to_owned()
}

/// The target of a path, and the verb in it if there is one.
fn target(path: &str) -> Result<Option<(Target, Option<&'static str>)>, Undetermined> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (group, version, mut parts) = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => ("", *version, rest),
        ["apis", group, version, rest @ ..] if !rest.is_empty() => (*group, *version, rest),
        _ => return Ok(None),
    };
    let special = ["watch", "proxy"].into_iter().find(|verb| parts.first() == Some(verb));
    if special.is_some() {
        parts = &parts[1..];
        if parts.is_empty() {
            return Err(Undetermined);
        }
    }
    let mut namespace = "";
    if let ["namespaces", name, rest @ ..] = parts {
        namespace = name;
        // Not for a namespace itself and its subresources.
        if rest.first().is_some_and(|first| !matches!(*first, "status" | "finalize")) {
            parts = rest;
        }
    }
    let part = |i: usize| parts.get(i).copied().unwrap_or_default().to_owned();
    let has_subresource = special != Some("proxy");
    Ok(Some((
        Target {
            group: group.to_owned(),
            version: version.to_owned(),
            namespace: namespace.to_owned(),
            resource: part(0),
            name: part(1),
            subresource: if has_subresource { part(2) } else { String::new() },
            subpath: parts.get(3..).unwrap_or_default().join("/"),
        },
        special,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selected_name_counts_as_the_name() {
        let named = |method, uri: &str| {
            let (path, raw) = uri.split_once('?').unwrap_or((uri, ""));
            RequestInfo::parse(&method, path, Query::parse(raw)).unwrap().selected_name
        };
        let list = "/api/v1/namespaces/a/pods?fieldSelector=";
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3Dx")), "x");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3Dx,spec.nodeName%3Dn&watch=1")), "x");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name!%3Dx")), "");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3D..")), "");
        // The list is filtered by the first value, which here selects everything.
        assert_eq!(named(Method::GET, &format!("{list}&fieldSelector=metadata.name%3Dx")), "");
        // Nor is one taken where the list is refused for its other options, or where the verb stands in the path.
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3Dx&labelSelector=in%20(")), "");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3Dx&limit=")), "");
        assert_eq!(named(Method::GET, "/api/v1/watch/pods?fieldSelector=metadata.name%3Dx"), "");
        assert_eq!(named(Method::DELETE, &format!("{list}metadata.name%3Dx")), "");
        assert_eq!(named(Method::GET, "/api/v1/namespaces/a/pods/y?fieldSelector=metadata.name%3Dx"), "");
    }

    fn show(method: Method, uri: &str) -> String {
        let (path, raw) = uri.split_once('?').unwrap_or((uri, ""));
        let Ok(info) = RequestInfo::parse(&method, path, Query::parse(raw)) else {
            return "undetermined".into();
        };
        match info.resource {
            Some(t) => format!(
                "{} {}/{} ns={} {} {} sub={} {}",
                info.verb, t.group, t.version, t.namespace, t.resource, t.name, t.subresource, t.subpath
            ),
            None => format!("{} (no resource)", info.verb),
        }
    }

    #[test]
    fn paths_are_told_apart_as_upstream_does() {
        let cases = [
            (Method::GET, "/api/v1/namespaces"),
            (Method::GET, "/api/v1/namespaces/a"),
            (Method::PUT, "/api/v1/namespaces/a/finalize"),
            (Method::GET, "/api/v1/namespaces/a/pods?watch=1"),
            (Method::GET, "/api/v1/pods?watch=false"),
            (Method::GET, "/api/v1/pods?watch=FALSE&watch=1"),
            (Method::GET, "/api/v1/pods?watch=f&watch=0"),
            (Method::GET, "/api/v1/watch/namespaces/a/pods"),
            (Method::DELETE, "/apis/apps/v1/namespaces/a/deployments"),
            (Method::PATCH, "/apis/apps/v1/namespaces/a/deployments/d/status"),
            (Method::GET, "/api/v1/namespaces/a/services/s/proxy/x/y"),
            (Method::GET, "/apis/apps/v1"),
            (Method::GET, "/livez"),
            (Method::POST, "/api/v1/watch/namespaces/a/pods"),
            (Method::GET, "/api/v1/proxy/namespaces/a/pods/p/x/y"),
            (Method::GET, "/api/v1/watch/"),
            (Method::OPTIONS, "/api/v1/pods"),
            (Method::GET, "/api/v1//pods"),
            (Method::GET, "/api/v1/namespaces//pods"),
            (Method::GET, "/api/v1/namespaces/a//pods"),
            (Method::GET, "/api/v1/namespaces/a/pods//log"),
            (Method::GET, "//apis//v1/pods/"),
        ];
        let got: Vec<String> = cases.into_iter().map(|(m, u)| show(m, u)).collect();
        expect_test::expect![[r#"
            list /v1 ns= namespaces  sub= 
            get /v1 ns=a namespaces a sub= 
            update /v1 ns=a namespaces a sub=finalize 
            watch /v1 ns=a pods  sub= 
            list /v1 ns= pods  sub= 
            list /v1 ns= pods  sub= 
            watch /v1 ns= pods  sub= 
            watch /v1 ns=a pods  sub= 
            deletecollection apps/v1 ns=a deployments  sub= 
            patch apps/v1 ns=a deployments d sub=status 
            get /v1 ns=a services s sub=proxy x/y
            get (no resource)
            get (no resource)
            watch /v1 ns=a pods  sub= 
            proxy /v1 ns=a pods p sub= y
            undetermined
             /v1 ns= pods  sub= 
            get /v1 ns=  pods sub= 
            list /v1 ns= pods  sub= 
            get /v1 ns=a  pods sub= 
            list /v1 ns=a pods  sub=log 
            list /v1 ns= pods  sub= "#]]
        .assert_eq(&got.join("\n"));
    }
}
