//! Impersonation: the `Impersonate-*` headers.
//!
//! Modes are tried from the narrowest to the widest (KEP-5284): a mode asks `impersonate-on:MODE:VERB` about the
//! request itself and `impersonate:MODE` about each part of the wanted user; the last one is the plain `impersonate` of
//! old. Source: `apiserver/pkg/endpoints/filters/impersonation`.
//!
//! Invariants:
//! - Every part of the wanted user was allowed by the authorizer, one by one, for the requesting user.
//! - The headers go no further, whether they were used or not.

use http::{HeaderMap, HeaderName};
use kaji_auth::{
    Attributes, Authorizer, Decision, Outcome,
    authn::unescape_key,
    names::{
        ANONYMOUS, AUTHENTICATED, MASTERS, NODE_PREFIX, NODES, SERVICE_ACCOUNT_PREFIX, SERVICE_ACCOUNTS,
        UNAUTHENTICATED,
    },
};
use kaji_meta::{
    GroupResource, Path, Status,
    text::quote,
    validation::{is_dns1123_label, is_dns1123_subdomain, validate_domain_prefixed_path},
};
use kaji_resource::UserInfo;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Mutex, PoisonError},
};

const USER: &str = "impersonate-user";
const UID: &str = "impersonate-uid";
const GROUP: &str = "impersonate-group";
const EXTRA: &str = "impersonate-extra-";
const GROUP_NAME: &str = "authentication.k8s.io";
/// From so many parts on, all of them are authorized together first.
const MANY: usize = 4;
/// Most requestors for which the last mode is remembered.
const REMEMBERED: usize = 10_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    UserInfo,
    Legacy,
}

impl Mode {
    const ALL: [Mode; 5] =
        [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

    fn name(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "associated-node",
            Mode::ArbitraryNode => "arbitrary-node",
            Mode::ServiceAccount => "serviceaccount",
            Mode::UserInfo => "user-info",
            Mode::Legacy => "",
        }
    }

    fn verb(self) -> String {
        match self {
            Mode::Legacy => "impersonate".into(),
            mode => format!("impersonate:{}", mode.name()),
        }
    }

    /// Whether a mode is about such a user at all.
    fn covers(self, wanted: &UserInfo, requestor: &UserInfo) -> bool {
        let name_only = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        let (node, account) = (node_name(&wanted.name), account_name(&wanted.name));
        match self {
            Mode::AssociatedNode => {
                let own = requestor.extra.get("authentication.kubernetes.io/node-name").map(Vec::as_slice);
                name_only
                    && account_name(&requestor.name).is_some()
                    && node.is_some_and(|node| matches!(own, Some([one]) if one == node))
            }
            Mode::ArbitraryNode => name_only && node.is_some(),
            Mode::ServiceAccount => name_only && account.is_some(),
            Mode::UserInfo => node.is_none() && account.is_none(),
            Mode::Legacy => true,
        }
    }
}

fn node_name(user: &str) -> Option<&str> {
    user.strip_prefix(NODE_PREFIX).filter(|n| is_dns1123_subdomain(n).is_empty())
}

fn account_name(user: &str) -> Option<(&str, &str)> {
    let (namespace, name) = user.strip_prefix(SERVICE_ACCOUNT_PREFIX)?.split_once(':')?;
    (is_dns1123_label(namespace).is_empty() && is_dns1123_subdomain(name).is_empty())
        .then_some((namespace, name))
}

/// Authorizes impersonation.
#[derive(Default)]
pub struct Impersonation {
    /// The mode that worked last for a requestor, tried first the next time.
    last: Mutex<HashMap<String, Mode>>,
}

impl Impersonation {
    /// The user that a request impersonates, if its headers name one, and the verb that limits the impersonation, empty for
    /// the unlimited one. `request` has the attributes of the request by its own user.
    pub async fn act_as(
        &self,
        authorizer: &dyn Authorizer,
        headers: &HeaderMap,
        request: &Attributes<'_>,
    ) -> Result<Option<(UserInfo, String)>, Status> {
        let Some(wanted) = wanted(headers)? else { return Ok(None) };
        let requestor = &request.user.name;
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).get(requestor).copied();
        let mut refusal = None;
        for mode in last.into_iter().chain(Mode::ALL.into_iter().filter(|m| Some(*m) != last)) {
            match try_mode(mode, authorizer, &wanted, request).await {
                Ok(Some(user)) => {
                    if last != Some(mode) {
                        self.remember(requestor, mode);
                    }
                    tracing::debug!(%requestor, user = %user.name, mode = mode.name(), "a request is impersonated");
                    let constraint = if mode == Mode::Legacy { String::new() } else { mode.verb() };
                    return Ok(Some((user, constraint)));
                }
                Ok(None) => {}
                Err(status) => refusal = refusal.or(Some(status)),
            }
        }
        Err(refusal.unwrap_or_else(|| Status::internal("all impersonation modes failed")))
    }

    fn remember(&self, requestor: &str, mode: Mode) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.len() >= REMEMBERED {
            last.clear();
        }
        last.insert(requestor.to_owned(), mode);
    }
}

/// Whether a header is one of these.
pub fn is_ours(name: &HeaderName) -> bool {
    let name = name.as_str();
    matches!(name, USER | UID | GROUP) || name.starts_with(EXTRA)
}

/// Removes the headers.
pub fn strip(headers: &mut HeaderMap) {
    let found: Vec<HeaderName> = headers.keys().filter(|name| is_ours(name)).cloned().collect();
    found.iter().for_each(|name| drop(headers.remove(name)));
}

/// What the headers ask for.
fn wanted(headers: &HeaderMap) -> Result<Option<UserInfo>, Status> {
    let text = |value: &http::HeaderValue| {
        let text = std::str::from_utf8(value.as_bytes()).map(str::to_owned);
        text.map_err(|_| Status::bad_request("impersonation headers must be UTF-8"))
    };
    let first = |name: &str| headers.get(name).map_or(Ok(String::new()), text);
    let groups = headers.get_all(GROUP).iter().map(text).collect::<Result<Vec<_>, _>>()?;
    let mut extra = BTreeMap::<String, Vec<String>>::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix(EXTRA) {
            extra.entry(unescape_key(key)).or_default().push(text(value)?);
        }
    }
    let wanted = UserInfo { name: first(USER)?, uid: first(UID)?, groups, extra };
    if !wanted.name.is_empty() {
        return Ok(Some(wanted));
    }
    if wanted == UserInfo::default() {
        return Ok(None);
    }
    Err(Status::bad_request(format!("requested {} without impersonating a user name", go_syntax(&wanted))))
}

/// A user as Go's `%#v` prints it.
fn go_syntax(user: &UserInfo) -> String {
    let strings = |list: &[String]| {
        let items: Vec<String> = list.iter().map(|s| quote(s)).collect();
        format!("[]string{{{}}}", items.join(", "))
    };
    let groups = if user.groups.is_empty() { "[]string(nil)".into() } else { strings(&user.groups) };
    let entries = user.extra.iter().map(|(k, v)| {
        let items: Vec<String> = v.iter().map(|s| quote(s)).collect();
        format!("{}:[]string{{{}}}", quote(k), items.join(", "))
    });
    let extra = match user.extra.is_empty() {
        true => "map[string][]string(nil)".to_owned(),
        false => format!("map[string][]string{{{}}}", entries.collect::<Vec<_>>().join(", ")),
    };
    let (name, uid) = (quote(&user.name), quote(&user.uid));
    format!("&user.DefaultInfo{{Name:{name}, UID:{uid}, Groups:{groups}, Extra:{extra}}}")
}

/// The user that a mode permits to impersonate; `None` if the mode does not cover such users.
async fn try_mode(
    mode: Mode,
    authorizer: &dyn Authorizer,
    wanted: &UserInfo,
    request: &Attributes<'_>,
) -> Result<Option<UserInfo>, Status> {
    if !mode.covers(wanted, request.user) {
        return Ok(None);
    }
    // Which node it is on does not matter for what a node's agent may do, so the questions do not say it.
    let agent = (mode == Mode::AssociatedNode).then(|| {
        let keys = request.user.extra.keys().cloned().collect();
        let extra = BTreeMap::from([("authentication.kubernetes.io/associated-node-keys".to_owned(), keys)]);
        UserInfo { extra, ..request.user.clone() }
    });
    let user = agent.as_ref().unwrap_or(request.user);
    if mode != Mode::Legacy {
        let verb = format!("impersonate-on:{}:{}", mode.name(), request.verb);
        allowed(authorizer, &Attributes { user, verb: &verb, ..*request }).await?;
    }
    let verb = mode.verb();
    let questions = Questions { mode, authorizer, user, verb: &verb };
    let mut actual = wanted.clone();
    questions.name(wanted, &mut actual).await?;
    if !wanted.uid.is_empty() {
        questions.ask("uids", GROUP_NAME, &wanted.uid).await?;
    }
    questions.groups(&wanted.groups).await?;
    questions.extra(&wanted.extra).await?;
    let has = |group: &str| actual.groups.iter().any(|g| g == group);
    let addition = match actual.name.as_str() {
        ANONYMOUS => Some(UNAUTHENTICATED).filter(|g| !has(g)),
        _ => Some(AUTHENTICATED).filter(|g| !has(UNAUTHENTICATED) && !has(g)),
    };
    actual.groups.extend(addition.map(str::to_owned));
    Ok(Some(actual))
}

/// The questions of one mode about the parts of a user.
struct Questions<'a> {
    mode: Mode,
    authorizer: &'a dyn Authorizer,
    user: &'a UserInfo,
    verb: &'a str,
}

impl<'a> Questions<'a> {
    /// The group of users and groups: the core one in the mode of old.
    fn group(&self) -> &'static str {
        if self.mode == Mode::Legacy { "" } else { GROUP_NAME }
    }

    fn about<'b>(&'b self, resource: &'b str, group: &'b str, name: &'b str) -> Attributes<'b> {
        Attributes { version: "v1", name, ..Attributes::resource(self.user, self.verb, group, resource) }
    }

    async fn ask(&self, resource: &str, group: &str, name: &str) -> Result<(), Status> {
        allowed(self.authorizer, &self.about(resource, group, name)).await
    }

    async fn name(&self, wanted: &UserInfo, actual: &mut UserInfo) -> Result<(), Status> {
        let group = self.group();
        if let Some(node) = node_name(&wanted.name).filter(|_| self.mode != Mode::Legacy) {
            actual.groups = vec![NODES.into()];
            let node = if self.mode == Mode::AssociatedNode { "*" } else { node };
            return self.ask("nodes", group, node).await;
        }
        let Some((namespace, name)) = account_name(&wanted.name) else {
            return self.ask("users", group, &wanted.name).await;
        };
        if wanted.groups.is_empty() {
            actual.groups = vec![SERVICE_ACCOUNTS.into(), format!("{SERVICE_ACCOUNTS}:{namespace}")];
        }
        let question = Attributes { namespace, ..self.about("serviceaccounts", group, name) };
        allowed(self.authorizer, &question).await
    }

    async fn groups(&self, groups: &[String]) -> Result<(), Status> {
        let constrained = self.mode != Mode::Legacy;
        let refuse = |name: &str, why: &str| Err(forbidden(&self.about("groups", self.group(), name), why));
        if constrained && groups.iter().any(String::is_empty) {
            return refuse("", "impersonating the empty string group is not allowed");
        }
        if constrained && groups.iter().any(|g| g == MASTERS) {
            return refuse(MASTERS, "impersonating the system:masters group is not allowed");
        }
        if constrained && groups.len() >= MANY && self.ask("groups", self.group(), "*").await.is_ok() {
            return Ok(());
        }
        for group in groups {
            self.ask("groups", self.group(), group).await?;
        }
        Ok(())
    }

    async fn extra(&self, extra: &BTreeMap<String, Vec<String>>) -> Result<(), Status> {
        let about =
            |subresource, name| Attributes { subresource, ..self.about("userextras", GROUP_NAME, name) };
        if self.mode != Mode::Legacy {
            if let Err(why) = usable(extra) {
                return Err(forbidden(&about("", ""), &why));
            }
            let many = extra.len() >= MANY || extra.values().map(Vec::len).sum::<usize>() >= MANY;
            if many && allowed(self.authorizer, &about("*", "*")).await.is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                allowed(self.authorizer, &about(key, value)).await?;
            }
        }
        Ok(())
    }
}

/// Whether constrained modes take such attributes.
fn usable(extra: &BTreeMap<String, Vec<String>>) -> Result<(), String> {
    for (key, values) in extra {
        if key.is_empty() {
            return Err("impersonating the empty string key in extra is not allowed".into());
        }
        let errors = validate_domain_prefixed_path(&Path::new("extra").child("key"), key);
        if !errors.is_empty() {
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let text = if texts.len() == 1 { texts.concat() } else { format!("[{}]", texts.join(", ")) };
            return Err(format!("impersonating an invalid key in extra is not allowed: {text}"));
        }
        if *key != key.to_lowercase() {
            return Err(format!("impersonating a non-lowercase key in extra is not allowed: {}", quote(key)));
        }
        if values.iter().any(String::is_empty) {
            return Err("impersonating the empty string value in extra is not allowed".into());
        }
    }
    Ok(())
}

async fn allowed(authorizer: &dyn Authorizer, attributes: &Attributes<'_>) -> Result<(), Status> {
    let Outcome { decision, reason, error } = authorizer.authorize(attributes).await;
    if decision == Decision::Allow {
        return Ok(());
    }
    let why = match error {
        Some(error) if reason.is_empty() => error,
        Some(error) => format!("{error}: {reason}"),
        None => reason.into_owned(),
    };
    Err(forbidden(attributes, &why))
}

/// Upstream's 403 for a question (`responsewriters.ForbiddenStatusError`).
fn forbidden(a: &Attributes<'_>, reason: &str) -> Status {
    let user = quote(&a.user.name);
    let text = if a.is_resource() {
        let slash = if a.subresource.is_empty() { "" } else { "/" };
        let resource = quote(&format!("{}{slash}{}", a.resource, a.subresource));
        let place = match a.namespace {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {}", quote(namespace)),
        };
        format!("User {user} cannot {} resource {resource} in API group {} {place}", a.verb, quote(a.group))
    } else {
        format!("User {user} cannot {} path {}", a.verb, quote(a.path))
    };
    // What looks like HTML is made harmless.
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let suffix = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    Status::forbidden(&GroupResource::new(a.group, a.resource), a.name, format!("{text}{suffix}"))
}

#[cfg(test)]
mod tests;
