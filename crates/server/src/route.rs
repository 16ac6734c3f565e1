//! From method and path to what a request is about, as upstream's `RequestInfoFactory` tells it.

use http::Method;
use kaji_meta::{fields, validation::path_segment_name};

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
    /// The whole path.
    pub path: String,
    /// The target when it is a resource request.
    pub resource: Option<Target>,
    /// The one name that a list's or watch's field selector asks for: the request is taken for one about that object.
    pub selected_name: String,
}

impl RequestInfo {
    /// Parses. `query` decides between `list` and `watch`.
    pub fn parse(method: &Method, path: &str, query: &[(String, String)]) -> RequestInfo {
        let resource = target(path);
        let verb = match &resource {
            Some((target, legacy_watch)) => api_verb(method, target, query, *legacy_watch).to_owned(),
            None => method.as_str().to_ascii_lowercase(),
        };
        let collection = resource.as_ref().is_some_and(|(target, _)| target.name.is_empty());
        let selected_name = match verb.as_str() {
            "list" | "watch" if collection => selected_name(query),
            _ => String::new(),
        };
        RequestInfo { verb, path: path.to_owned(), resource: resource.map(|(t, _)| t), selected_name }
    }

    /// Whether the request stays open by design (watch and the streaming subresources).
    pub fn long_running(&self) -> bool {
        let sub = self.resource.as_ref().map_or("", |t| t.subresource.as_str());
        matches!(self.verb.as_str(), "watch" | "proxy")
            || matches!(sub, "attach" | "exec" | "proxy" | "log" | "portforward")
    }
}

fn api_verb(
    method: &Method,
    target: &Target,
    query: &[(String, String)],
    legacy_watch: bool,
) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE if target.name.is_empty() => "deletecollection",
        Method::DELETE => "delete",
        Method::GET | Method::HEAD if legacy_watch => "watch",
        Method::GET | Method::HEAD if target.name.is_empty() && wants_watch(query) => "watch",
        Method::GET | Method::HEAD if target.name.is_empty() => "list",
        Method::GET | Method::HEAD => "get",
        _ => "",
    }
}

fn selected_name(query: &[(String, String)]) -> String {
    // The first value, even an empty one: the list that follows is filtered by the same.
    let selector = query.iter().find(|(k, _)| k == "fieldSelector");
    let parsed = selector.and_then(|(_, v)| fields::Selector::parse(v).ok());
    let name = parsed.as_ref().and_then(|s| s.requires_exact("metadata.name")).unwrap_or_default();
    if path_segment_name(name, false).is_empty() { name.to_owned() } else { String::new() }
}

/// As upstream converts booleans of list options: the first value counts, and only `0` and `false` are false.
fn wants_watch(query: &[(String, String)]) -> bool {
    let first = query.iter().find(|(k, _)| k == "watch");
    first.is_some_and(|(_, v)| v != "0" && !v.eq_ignore_ascii_case("false"))
}

fn target(path: &str) -> Option<(Target, bool)> {
    let mut parts = path.trim_matches('/').split('/').map(str::to_owned).peekable();
    let mut t = Target::default();
    match parts.next()?.as_str() {
        "api" => {}
        "apis" => t.group = parts.next()?,
        _ => return None,
    }
    t.version = parts.next()?;
    let mut legacy_watch = false;
    if parts.peek().is_some_and(|p| p == "watch") {
        legacy_watch = true;
        parts.next();
    }
    let first = parts.next()?;
    if first != "namespaces" {
        t.resource = first;
    } else {
        match (parts.next(), parts.peek().map(String::as_str)) {
            (None, _) => t.resource = first,
            // Subresources of a namespace itself.
            (Some(ns), None | Some("status" | "finalize")) => {
                t.resource = first;
                t.namespace = ns.clone();
                t.name = ns;
                t.subresource = parts.next().unwrap_or_default();
                t.subpath = parts.collect::<Vec<_>>().join("/");
                return Some((t, legacy_watch));
            }
            (Some(ns), Some(_)) => {
                t.namespace = ns;
                t.resource = parts.next()?;
            }
        }
    }
    t.name = parts.next().unwrap_or_default();
    t.subresource = parts.next().unwrap_or_default();
    t.subpath = parts.collect::<Vec<_>>().join("/");
    (!t.resource.is_empty()).then_some((t, legacy_watch))
}

/// Decodes a query string: `+` and percent escapes, in order. As Go's parser does, it leaves out pairs that contain a
/// semicolon or a broken escape.
pub fn query(raw: &str) -> Vec<(String, String)> {
    raw.split('&')
        .filter(|pair| !pair.is_empty() && !pair.contains(';') && !has_broken_escape(pair))
        .map(|pair| {
            let (k, v) = pair.split_once('=').unwrap_or((pair, ""));
            (unescape(k, true), unescape(v, true))
        })
        .collect()
}

fn has_broken_escape(text: &str) -> bool {
    text.split('%').skip(1).any(|rest| {
        let hex = rest.bytes().take(2).filter(u8::is_ascii_hexdigit).count();
        hex < 2
    })
}

/// Percent-decodes; invalid UTF-8 becomes U+FFFD.
pub fn unescape(text: &str, plus: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let hex = |b: u8| (b as char).to_digit(16);
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let digits = (bytes.get(i + 1).copied().and_then(hex), bytes.get(i + 2).copied().and_then(hex));
        match (bytes[i], digits) {
            (b'%', (Some(high), Some(low))) => {
                out.push((high * 16 + low) as u8);
                i += 2;
            }
            (b'+', _) if plus => out.push(b' '),
            (b, _) => out.push(b),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selected_name_counts_as_the_name() {
        let named = |method, uri: &str| {
            let (path, raw) = uri.split_once('?').unwrap_or((uri, ""));
            RequestInfo::parse(&method, path, &query(raw)).selected_name
        };
        let list = "/api/v1/namespaces/a/pods?fieldSelector=";
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3Dx")), "x");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3Dx,spec.nodeName%3Dn&watch=1")), "x");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name!%3Dx")), "");
        assert_eq!(named(Method::GET, &format!("{list}metadata.name%3D..")), "");
        // The list is filtered by the first value, which here selects everything.
        assert_eq!(named(Method::GET, &format!("{list}&fieldSelector=metadata.name%3Dx")), "");
        assert_eq!(named(Method::DELETE, &format!("{list}metadata.name%3Dx")), "");
        assert_eq!(named(Method::GET, "/api/v1/namespaces/a/pods/y?fieldSelector=metadata.name%3Dx"), "");
    }

    fn show(method: Method, uri: &str) -> String {
        let (path, raw) = uri.split_once('?').unwrap_or((uri, ""));
        let info = RequestInfo::parse(&method, path, &query(raw));
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
            get (no resource)"#]]
        .assert_eq(&got.join("\n"));
    }

    #[test]
    fn queries_decode() {
        assert_eq!(
            query("a=b+c&d=%2Fx&e&f=%zz&g=1;h=2&i=%4"),
            [("a".into(), "b c".into()), ("d".into(), "/x".into()), ("e".into(), String::new()),]
        );
    }
}
