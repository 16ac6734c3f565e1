//! `ListOptions` of a list or a watch, out of the query.
//!
//! Defaults, checks and texts are those of apimachinery's `meta/internalversion`.

use crate::{cache::Filter, continue_token::Continue, registry::Resource, request::ApiRequest};
use kaji_meta::{
    GroupKind, Reason, Status, field,
    field::Path,
    fields::Selector as FieldSelector,
    labels::Selector as LabelSelector,
    query::{self, go_int},
};
use kaji_resource::ColumnSource;
use kaji_store::Revision;
use std::time::Duration;

/// `resourceVersionMatch`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Match {
    /// Not given: what it means depends on the rest.
    #[default]
    Unset,
    /// `Exact`
    Exact,
    /// `NotOlderThan`
    NotOlderThan,
}

/// `resourceVersion`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rv {
    /// Not given: the most recent.
    #[default]
    Unset,
    /// `0`: any.
    Any,
    /// A revision.
    At(Revision),
}

/// The options, checked against each other.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListOptions {
    pub labels: Option<LabelSelector>,
    pub fields: Option<FieldSelector>,
    pub rv: Rv,
    pub rv_match: Match,
    /// 0: no limit.
    pub limit: usize,
    /// `""`: from the beginning.
    pub continue_token: String,
    /// Of a watch.
    pub timeout: Option<Duration>,
    pub bookmarks: bool,
    /// After defaulting.
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// The options of a list.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for options that exclude each other.
    pub fn for_list(req: &ApiRequest) -> Result<Self, Status> {
        let raw = Raw::new(req)?;
        raw.check_list()?;
        let mut options = raw.options();
        if options.continue_token.is_empty() || options.rv_match != Match::Unset {
            options.rv = parse_rv(raw.rv)
                .map_err(|e| Status::bad_request(format!("invalid resource version: {e}")))?;
        } else if !matches!(raw.rv, "" | "0") {
            // A token that cannot be read is reported first.
            Continue::decode(raw.continue_token)?;
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        Ok(options)
    }

    /// The options of a watch.
    ///
    /// # Errors
    /// As for a list.
    pub fn for_watch(req: &ApiRequest) -> Result<Self, Status> {
        let mut raw = Raw::new(req)?;
        if raw.send_initial_events.is_none() && raw.rv_match.is_empty() && matches!(raw.rv, "" | "0") {
            raw.send_initial_events = Some(true);
            raw.rv_match = "NotOlderThan";
        }
        raw.check_watch()?;
        let mut options = raw.options();
        options.rv = parse_rv(raw.rv).map_err(|e| unreadable_rv(&e))?;
        Ok(options)
    }
}

/// As in the query, once it is converted.
struct Raw<'a> {
    given: query::ListOptions<'a>,
    rv: &'a str,
    rv_match: &'a str,
    continue_token: &'a str,
    send_initial_events: Option<bool>,
}

impl<'a> Raw<'a> {
    fn new(req: &'a ApiRequest) -> Result<Self, Status> {
        let given = req.query.list_options().map_err(Status::bad_request)?;
        Ok(Raw {
            given,
            rv: given.resource_version,
            rv_match: given.resource_version_match,
            continue_token: given.continue_token,
            send_initial_events: given.send_initial_events,
        })
    }

    fn options(&self) -> ListOptions {
        let query::ListOptions { labels, fields, limit, timeout_seconds, bookmarks, .. } = self.given;
        ListOptions {
            labels: labels.cloned(),
            fields: fields.cloned(),
            rv: Rv::Unset,
            rv_match: match self.rv_match {
                "Exact" => Match::Exact,
                "NotOlderThan" => Match::NotOlderThan,
                _ => Match::Unset,
            },
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token: self.continue_token.to_owned(),
            timeout: timeout_seconds.and_then(timeout),
            bookmarks,
            send_initial_events: self.send_initial_events,
        }
    }

    fn check_list(&self) -> Result<(), Status> {
        let path = Path::new("resourceVersionMatch");
        let mut errors = vec![];
        if !self.rv_match.is_empty() {
            if self.rv.is_empty() {
                let text = "resourceVersionMatch is forbidden unless resourceVersion is provided";
                errors.push(field::Error::forbidden(&path, text));
            }
            if !self.continue_token.is_empty() {
                let text = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(field::Error::forbidden(&path, text));
            }
            if !matches!(self.rv_match, "Exact" | "NotOlderThan") {
                errors.push(field::Error::not_supported(
                    &path,
                    self.rv_match,
                    &["Exact", "NotOlderThan", ""],
                ));
            }
            if self.rv_match == "Exact" && self.rv == "0" {
                let text = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
                errors.push(field::Error::forbidden(&path, text));
            }
        }
        if self.send_initial_events.is_some() {
            let path = Path::new("sendInitialEvents");
            errors.push(field::Error::forbidden(&path, "sendInitialEvents is forbidden for list"));
        }
        invalid_options(&errors)
    }

    fn check_watch(&self) -> Result<(), Status> {
        let path = Path::new("resourceVersionMatch");
        let not_older = self.rv_match == "NotOlderThan";
        let mut errors = vec![];
        if self.send_initial_events.is_some() && !not_older {
            let text = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(field::Error::forbidden(&path, text));
        }
        if !self.rv_match.is_empty() {
            if self.send_initial_events.is_none() {
                let text = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(field::Error::forbidden(&path, text));
            }
            if !not_older {
                errors.push(field::Error::not_supported(&path, self.rv_match, &["NotOlderThan"]));
            }
            if !self.continue_token.is_empty() {
                let text = "resourceVersionMatch is forbidden when continue is provided";
                errors.push(field::Error::forbidden(&path, text));
            }
        }
        invalid_options(&errors)
    }
}

fn invalid_options(errors: &[field::Error]) -> Result<(), Status> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(&GroupKind::new("meta.k8s.io", "ListOptions"), "", errors))
}

/// Go's `strconv.ParseUint`, which takes no leading plus, as Rust does.
pub(crate) fn go_uint(text: &str) -> Result<u64, String> {
    let parsed = if text.starts_with('+') { "+".parse() } else { text.parse() };
    go_int(text, "ParseUint", parsed)
}

/// How long a watch lasts; `None` for as long as the server likes. A negative time is over at once, also one that only
/// becomes negative in Go's nanoseconds.
fn timeout(seconds: i64) -> Option<Duration> {
    match seconds.wrapping_mul(1_000_000_000) {
        0 => None,
        nanos => Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))),
    }
}

/// Reads a resource version as apiserver's storage does.
pub(crate) fn parse_rv(text: &str) -> Result<Rv, field::Error> {
    match text {
        "" => return Ok(Rv::Unset),
        "0" => return Ok(Rv::Any),
        _ => {}
    }
    match go_uint(text) {
        Ok(0) => Ok(Rv::Any),
        Ok(revision) => Ok(Rv::At(revision)),
        Err(e) => Err(field::Error::invalid(&Path::new("resourceVersion"), text, e)),
    }
}

/// Upstream's answer to a GET or watch of a resource version that is none: its storage's error, which says no code.
pub(crate) fn unreadable_rv(error: &field::Error) -> Status {
    Status::new(500, Reason::Unknown, error.to_string())
}

/// The filter of a list or watch request.
///
/// # Errors
/// 400 for a field that is not selectable, and for a name that contradicts the request's.
pub(crate) fn filter(res: &Resource, req: &ApiRequest, options: &ListOptions) -> Result<Filter, Status> {
    let namespace = if res.def.namespaced() { &*req.namespace } else { "" };
    let mut filter = Filter::namespace(namespace).with_labels(options.labels.clone());
    let version = res.def.version(&req.version);
    let custom = version.is_some_and(|v| matches!(v.columns, ColumnSource::Paths(_)));
    if let Some(selector) = &options.fields {
        let known = version.map_or(&[][..], |v| &v.selectable);
        // A built-in kind that names its fields names all of them.
        let has_namespace = res.def.namespaced() || !custom && known.is_empty();
        filter = filter.with_fields(selector, &res.cache.fields(), known, has_namespace).map_err(|name| {
            let quoted = kaji_meta::text::quote(&name);
            Status::bad_request(if custom || !known.is_empty() {
                format!("field label not supported: {name}")
            } else {
                format!(
                    r#"{quoted} is not a known field selector: only "metadata.name", "metadata.namespace""#
                )
            })
        })?;
    }
    if !req.name.is_empty() {
        match &filter.name {
            Some(name) if **name == *req.name => {}
            None if options.fields.as_ref().is_none_or(|s| s.is_everything()) => {
                filter = filter.with_name(&req.name)
            }
            _ => return Err(Status::bad_request("fieldSelector metadata.name doesn't match requested name")),
        }
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::fmt::Write;

    fn request(query: &str) -> ApiRequest {
        ApiRequest { query: crate::tests::pairs(query), ..crate::tests::request() }
    }

    #[test]
    fn validates_combinations_of_list_options() {
        let mut out = String::new();
        for query in [
            "",
            "resourceVersion=0",
            "resourceVersion=5",
            "resourceVersion=abc",
            "resourceVersion=+5",
            "resourceVersion=99999999999999999999",
            "resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=Exact",
            "resourceVersion=5&resourceVersionMatch=Exact",
            "resourceVersion=0&resourceVersionMatch=NotOlderThan",
            "resourceVersion=5&resourceVersionMatch=Nearly",
            "resourceVersion=5&resourceVersionMatch=Exact&continue=x",
            "resourceVersion=5&continue=x",
            // {"v":"meta.k8s.io/v1","rv":7,"start":"a"}
            "resourceVersion=5&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Nywic3RhcnQiOiJhIn0",
            "resourceVersion=0&continue=x",
            "sendInitialEvents=false",
            "limit=ten",
            "limit=",
            "timeoutSeconds=&limit=",
            "limit=-1",
            "labelSelector=a in (",
            "fieldSelector=a",
        ] {
            let got = ListOptions::for_list(&request(query)).map(|o| (o.rv, o.rv_match, o.limit));
            let _ = match got {
                Ok(o) => writeln!(out, "{query}: {o:?}"),
                Err(e) => writeln!(out, "{query}: {} {}", e.code, e.message),
            };
        }
        expect![[r#"
            : (Unset, Unset, 0)
            resourceVersion=0: (Any, Unset, 0)
            resourceVersion=5: (At(5), Unset, 0)
            resourceVersion=abc: 400 invalid resource version: resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax
            resourceVersion=+5: 400 invalid resource version: resourceVersion: Invalid value: "+5": strconv.ParseUint: parsing "+5": invalid syntax
            resourceVersion=99999999999999999999: 400 invalid resource version: resourceVersion: Invalid value: "99999999999999999999": strconv.ParseUint: parsing "99999999999999999999": value out of range
            resourceVersionMatch=Exact: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided
            resourceVersion=0&resourceVersionMatch=Exact: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"
            resourceVersion=5&resourceVersionMatch=Exact: (At(5), Exact, 0)
            resourceVersion=0&resourceVersionMatch=NotOlderThan: (Any, NotOlderThan, 0)
            resourceVersion=5&resourceVersionMatch=Nearly: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Unsupported value: "Nearly": supported values: "Exact", "NotOlderThan", ""
            resourceVersion=5&resourceVersionMatch=Exact&continue=x: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided
            resourceVersion=5&continue=x: 400 invalid continue token: continue key is not valid: illegal base64 data at input byte 0
            resourceVersion=5&continue=eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6Nywic3RhcnQiOiJhIn0: 400 specifying resource version is not allowed when using continue
            resourceVersion=0&continue=x: (Unset, Unset, 0)
            sendInitialEvents=false: 422 ListOptions.meta.k8s.io "" is invalid: sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list
            limit=ten: 400 strconv.ParseInt: parsing "ten": invalid syntax
            limit=: 400 strconv.ParseInt: parsing "": invalid syntax
            timeoutSeconds=&limit=: 400 strconv.ParseInt: parsing "": invalid syntax
            limit=-1: (Unset, Unset, 0)
            labelSelector=a in (: 400 unable to parse requirement: found '', expected: ',', ')' or identifier
            fieldSelector=a: 400 invalid selector: 'a'; can't understand 'a'
        "#]].assert_eq(&out);
    }

    #[test]
    fn validates_combinations_of_watch_options() {
        let mut out = String::new();
        for query in [
            "",
            "resourceVersion=0",
            "resourceVersion=5",
            "resourceVersion=x",
            "resourceVersion=5&resourceVersionMatch=NotOlderThan",
            "sendInitialEvents=true",
            "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1",
            "sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=7",
            "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x&timeoutSeconds=7",
            "timeoutSeconds=soon",
            "timeoutSeconds=-1",
            "timeoutSeconds=0",
            "timeoutSeconds=60",
            "resourceVersion=0&sendInitialEvents=0&resourceVersionMatch=NotOlderThan",
        ] {
            let got = ListOptions::for_watch(&request(query));
            let _ = match got {
                Ok(o) => writeln!(
                    out,
                    "{query}: {:?} initial {:?} bookmarks {} timeout {:?}",
                    o.rv, o.send_initial_events, o.bookmarks, o.timeout
                ),
                Err(e) => writeln!(out, "{query}: {} {}", e.code, e.message),
            };
        }
        expect![[r#"
            : Unset initial Some(true) bookmarks false timeout None
            resourceVersion=0: Any initial Some(true) bookmarks false timeout None
            resourceVersion=5: At(5) initial None bookmarks false timeout None
            resourceVersion=x: 500 resourceVersion: Invalid value: "x": strconv.ParseUint: parsing "x": invalid syntax
            resourceVersion=5&resourceVersionMatch=NotOlderThan: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided
            sendInitialEvents=true: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan
            sendInitialEvents=false&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1: Unset initial Some(false) bookmarks true timeout None
            sendInitialEvents=true&resourceVersionMatch=Exact&resourceVersion=7: 422 ListOptions.meta.k8s.io "" is invalid: [resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan, resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"]
            sendInitialEvents=true&resourceVersionMatch=NotOlderThan&continue=x&timeoutSeconds=7: 422 ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden when continue is provided
            timeoutSeconds=soon: 400 strconv.ParseInt: parsing "soon": invalid syntax
            timeoutSeconds=-1: Unset initial Some(true) bookmarks false timeout Some(0ns)
            timeoutSeconds=0: Unset initial Some(true) bookmarks false timeout None
            timeoutSeconds=60: Unset initial Some(true) bookmarks false timeout Some(60s)
            resourceVersion=0&sendInitialEvents=0&resourceVersionMatch=NotOlderThan: Any initial Some(false) bookmarks false timeout None
        "#]].assert_eq(&out);
    }
}
