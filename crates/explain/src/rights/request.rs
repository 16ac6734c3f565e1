//! A request that was refused, from the text of the refusal or from flags.
//!
//! Source: the message of upstream's 403: `pods "web" is forbidden: User "bob" cannot get resource "pods" in API group "" in the
//! namespace "x"`.

use std::fmt;

/// The attributes by which RBAC decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The user's name.
    pub user: String,
    /// Its groups, as far as they are known.
    pub groups: Vec<String>,
    /// `list`
    pub verb: String,
    /// `""` for core.
    pub group: String,
    /// Plural.
    pub resource: String,
    /// `log`; empty for the resource itself.
    pub subresource: String,
    /// The object's name; empty for a collection.
    pub name: String,
    /// Empty for the whole cluster.
    pub namespace: String,
    /// Of a request for no resource.
    pub path: Option<String>,
}

impl Request {
    /// Of the text of a refusal; `None` if it is none.
    pub fn parse(text: &str) -> Option<Request> {
        let (before, after) = text.split_once("User \"")?;
        let (user, after) = after.split_once("\" cannot ")?;
        let (verb, after) = after.split_once(' ')?;
        let mut request = Request { user: user.to_owned(), verb: verb.to_owned(), ..Request::default() };
        request.groups = groups_of(user);
        if let Some(path) = after.strip_prefix("path \"") {
            request.path = Some(path.split('"').next()?.to_owned());
            return Some(request);
        }
        let (resource, after) = after.strip_prefix("resource \"")?.split_once('"')?;
        let (plural, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        (request.resource, request.subresource) = (plural.to_owned(), subresource.to_owned());
        request.group = quoted_after(after, "in API group \"")?.to_owned();
        request.namespace = quoted_after(after, "in the namespace \"").unwrap_or_default().to_owned();
        request.name = quoted_after(before, " \"").unwrap_or_default().to_owned();
        Some(request)
    }

    /// `pods/log`
    pub fn full_resource(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            sub => format!("{}/{sub}", self.resource),
        }
    }

    /// The flag of `kubectl create rolebinding` that names the user.
    pub fn subject_flag(&self) -> String {
        match self.user.strip_prefix("system:serviceaccount:") {
            Some(account) => format!("--serviceaccount={account}"),
            None => format!("--user={}", self.user),
        }
    }
}

fn quoted_after<'a>(text: &'a str, marker: &str) -> Option<&'a str> {
    text.split_once(marker)?.1.split('"').next()
}

/// The groups that follow from a user's name.
fn groups_of(user: &str) -> Vec<String> {
    let all = "system:authenticated".to_owned();
    match user.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':')) {
        Some((namespace, _)) => {
            vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{namespace}"), all]
        }
        None if user == "system:anonymous" => vec!["system:unauthenticated".to_owned()],
        None if user.starts_with("system:node:") => vec!["system:nodes".to_owned(), all],
        None => vec![all],
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} may not {}", self.user, self.verb)?;
        if let Some(path) = &self.path {
            return write!(f, " {path}");
        }
        write!(f, " {}", self.full_resource())?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        match self.namespace.as_str() {
            "" => write!(f, " in the whole cluster"),
            namespace => write!(f, " in the namespace {namespace}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_texts_of_refusals() {
        let of = |text: &str| Request::parse(text).unwrap().to_string();
        let text = r#"Error from server (Forbidden): pods is forbidden: User "bob" cannot list resource "pods" in API group "" in the namespace "x""#;
        assert_eq!(of(text), "bob may not list pods in the namespace x");
        let text = r#"deployments.apps "web" is forbidden: User "system:serviceaccount:a:b" cannot get resource "deployments/scale" in API group "apps" in the namespace "x""#;
        assert_eq!(
            of(text),
            "system:serviceaccount:a:b may not get deployments/scale.apps web in the namespace x"
        );
        let text = r#"nodes is forbidden: User "bob" cannot list resource "nodes" in API group "" at the cluster scope"#;
        assert_eq!(of(text), "bob may not list nodes in the whole cluster");
        assert_eq!(of(r#"forbidden: User "bob" cannot get path "/metrics""#), "bob may not get /metrics");
        assert_eq!(Request::parse("pods \"web\" not found"), None);
    }
}
