//! Which requests a FlowSchema is about. Source: the API reference of `flowcontrol.apiserver.k8s.io/v1`.

use serde_json::Value;

/// What is known about a request when it is classified.
#[derive(Clone, Copy, Debug)]
pub struct Digest<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The user's groups.
    pub groups: &'a [String],
    /// The API verb, or the method in lower case.
    pub verb: &'a str,
    /// The whole path.
    pub path: &'a str,
    /// What it is about, if it is a resource request.
    pub resource: Option<ResourceDigest<'a>>,
}

/// The target of a resource request.
#[derive(Clone, Copy, Debug)]
pub struct ResourceDigest<'a> {
    /// `""` for core.
    pub group: &'a str,
    /// `v1`
    pub version: &'a str,
    /// Plural.
    pub resource: &'a str,
    /// `""` for the main resource.
    pub subresource: &'a str,
    /// `""` for cluster scope and for all namespaces.
    pub namespace: &'a str,
    /// `""` for collections.
    pub name: &'a str,
}

/// One element of a FlowSchema's `rules`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    subjects: Vec<Subject>,
    resources: Vec<ResourceRule>,
    paths: Vec<PathRule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    User(String),
    Group(String),
    ServiceAccount { namespace: String, name: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct ResourceRule {
    verbs: Names,
    groups: Names,
    resources: Names,
    namespaces: Names,
    cluster_scope: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PathRule {
    verbs: Names,
    urls: Vec<String>,
}

/// A list of names in which a lone `*` stands for all.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    All,
    Some(Vec<String>),
}

impl Names {
    fn of(value: &Value) -> Names {
        let names = strings(value);
        if names.len() == 1 && names[0] == "*" { Names::All } else { Names::Some(names) }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Names::All => true,
            Names::Some(names) => names.iter().any(|n| n == name),
        }
    }

    /// Whether `resource` or `resource/subresource` is among them, without building the text.
    fn has_resource(&self, resource: &str, subresource: &str) -> bool {
        match self {
            Names::All => true,
            Names::Some(names) if subresource.is_empty() => names.iter().any(|n| n == resource),
            Names::Some(names) => names.iter().any(|n| {
                n.strip_prefix(resource).and_then(|rest| rest.strip_prefix('/')) == Some(subresource)
            }),
        }
    }
}

fn strings(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

impl Rule {
    /// Parses a rule; subjects of unknown kinds match no user.
    pub fn parse(value: &Value) -> Rule {
        let subjects = array(&value["subjects"]).iter().filter_map(Subject::parse).collect();
        let resources = array(&value["resourceRules"])
            .iter()
            .map(|r| ResourceRule {
                verbs: Names::of(&r["verbs"]),
                groups: Names::of(&r["apiGroups"]),
                resources: Names::of(&r["resources"]),
                namespaces: Names::of(&r["namespaces"]),
                cluster_scope: r["clusterScope"].as_bool().unwrap_or(false),
            })
            .collect();
        let paths = array(&value["nonResourceRules"])
            .iter()
            .map(|r| PathRule { verbs: Names::of(&r["verbs"]), urls: strings(&r["nonResourceURLs"]) })
            .collect();
        Rule { subjects, resources, paths }
    }

    /// Whether a request is of the kind that this rule is about.
    pub fn matches(&self, digest: &Digest<'_>) -> bool {
        self.subjects.iter().any(|s| s.matches(digest))
            && match &digest.resource {
                Some(target) => self.resources.iter().any(|r| r.matches(digest.verb, target)),
                None => self.paths.iter().any(|r| r.verbs.has(digest.verb) && r.covers(digest.path)),
            }
    }
}

impl Subject {
    fn parse(value: &Value) -> Option<Subject> {
        match value["kind"].as_str()? {
            "User" => Some(Subject::User(text(&value["user"]["name"]))),
            "Group" => Some(Subject::Group(text(&value["group"]["name"]))),
            "ServiceAccount" => Some(Subject::ServiceAccount {
                namespace: text(&value["serviceAccount"]["namespace"]),
                name: text(&value["serviceAccount"]["name"]),
            }),
            _ => None,
        }
    }

    fn matches(&self, digest: &Digest<'_>) -> bool {
        match self {
            Subject::User(name) => name == "*" || name == digest.user,
            Subject::Group(name) => name == "*" || digest.groups.iter().any(|g| g == name),
            Subject::ServiceAccount { namespace, name } => digest
                .user
                .strip_prefix("system:serviceaccount:")
                .and_then(|rest| rest.strip_prefix(namespace.as_str()))
                .and_then(|rest| rest.strip_prefix(':'))
                .is_some_and(|account| name == "*" || account == name),
        }
    }
}

impl ResourceRule {
    fn matches(&self, verb: &str, target: &ResourceDigest<'_>) -> bool {
        self.verbs.has(verb)
            && self.resources.has_resource(target.resource, target.subresource)
            && self.groups.has(target.group)
            && if target.namespace.is_empty() {
                self.cluster_scope
            } else {
                self.namespaces.has(target.namespace)
            }
    }
}

impl PathRule {
    /// A URL covers itself and everything below it, with or without a closing `*`.
    fn covers(&self, path: &str) -> bool {
        self.urls.iter().any(|url| {
            if url == "*" || url == path {
                return true;
            }
            let prefix = url.strip_suffix('*').unwrap_or(url);
            let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
            path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
        })
    }
}
