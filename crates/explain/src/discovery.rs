//! Which resource a name means: plural, singular, kind or short name, with a group behind a dot where it is not unique.
//!
//! Source: kubectl's resource arguments; aggregated discovery (apidiscovery.k8s.io/v2).
//! Invariant: of several resources with a name the one wins that the server names first, in its preferred version.

use crate::{Api, ExplainError, RequestError, names::nearest, paths};
use kaji_meta::object::{arr_at, name, str_at, strs_at};

/// `KIND/NAME`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// `po`, `deployments.apps`
    pub kind: String,
    /// The object's name.
    pub name: String,
}

impl Subject {
    /// Of one argument `KIND/NAME`, or of two.
    ///
    /// # Errors
    /// When a part is missing.
    pub fn parse(arguments: &[String]) -> Result<Subject, ExplainError> {
        let parts = match arguments {
            [one] => one.split_once('/'),
            [kind, name] => Some((kind.as_str(), name.as_str())),
            _ => None,
        };
        match parts {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() && !name.contains('/') => {
                Ok(Subject { kind: kind.to_owned(), name: name.to_owned() })
            }
            _ => Err(ExplainError::Subject(format!(
                "\"{}\" is no KIND/NAME, such as pod/web",
                arguments.join(" ")
            ))),
        }
    }
}

/// A resource in one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// `""` for core.
    pub group: String,
    /// The preferred version.
    pub version: String,
    /// `deployments`
    pub plural: String,
    /// `deployment`
    pub singular: String,
    /// `Deployment`
    pub kind: String,
    /// `deploy`
    pub short: Vec<String>,
    /// Whether objects are in namespaces.
    pub namespaced: bool,
    /// Whether it can be listed and deleted: objects that are stored.
    pub stored: bool,
}

impl Resource {
    /// The path of an object; of the collection for an empty name; over all namespaces for an empty namespace.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        paths::path(&self.group_version(), namespace, &self.plural, name)
    }

    fn group_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// `deployments.apps`, as kubectl takes it.
    pub fn argument(&self) -> String {
        match self.group.as_str() {
            "" => self.plural.clone(),
            group => format!("{}.{group}", self.plural),
        }
    }

    fn is_called(&self, word: &str) -> bool {
        let same = |name: &str| name.eq_ignore_ascii_case(word);
        same(&self.plural)
            || same(&self.singular)
            || same(&self.kind)
            || self.short.iter().any(|short| same(short))
    }
}

/// The resources of a server, in its order.
pub struct Discovery {
    resources: Vec<Resource>,
    /// Group versions of extension servers that did not answer.
    pub stale: Vec<String>,
}

impl Discovery {
    /// Reads the documents.
    pub async fn read(api: &dyn Api) -> Result<Discovery, ExplainError> {
        let (core, groups) = futures_util::join!(api.get("/api"), api.get("/apis"));
        let mut discovery = Discovery { resources: vec![], stale: vec![] };
        for document in [core, groups] {
            let document = document.map_err(|refusal| match refusal {
                RequestError::Forbidden(text) | RequestError::NotFound(text) | RequestError::Failed(text) => {
                    ExplainError::Unreadable(text)
                }
            })?;
            arr_at(&document, &["items"]).iter().for_each(|group| discovery.add(group));
        }
        Ok(discovery)
    }

    fn add(&mut self, group: &serde_json::Value) {
        for version in arr_at(group, &["versions"]) {
            if str_at(version, &["freshness"]) == "Stale" {
                self.stale.push(format!("{}/{}", name(group), str_at(version, &["version"])));
            }
            for resource in arr_at(version, &["resources"]) {
                let plural = str_at(resource, &["resource"]);
                let known = self.resources.iter().any(|r| r.group == name(group) && r.plural == plural);
                if known || plural.is_empty() {
                    continue;
                }
                self.resources.push(Resource {
                    group: name(group).to_owned(),
                    version: str_at(version, &["version"]).to_owned(),
                    plural: plural.to_owned(),
                    singular: str_at(resource, &["singularResource"]).to_owned(),
                    kind: str_at(resource, &["responseKind", "kind"]).to_owned(),
                    short: strs_at(resource, &["shortNames"]).map(str::to_owned).collect(),
                    namespaced: str_at(resource, &["scope"]) == "Namespaced",
                    stored: ["list", "delete"]
                        .iter()
                        .all(|wanted| strs_at(resource, &["verbs"]).any(|verb| verb == *wanted)),
                });
            }
        }
    }

    /// The resource that an argument of the command line names.
    pub fn resolve(&self, word: &str) -> Result<&Resource, ExplainError> {
        if let Some(resource) = self.resources.iter().find(|resource| resource.is_called(word)) {
            return Ok(resource);
        }
        if let Some((word, rest)) = word.split_once('.') {
            let of_group = |r: &&Resource| {
                r.is_called(word)
                    && (r.group == rest
                        || rest.split_once('.').is_some_and(|(v, group)| v == r.version && group == r.group))
            };
            if let Some(resource) = self.resources.iter().find(of_group) {
                return Ok(resource);
            }
        }
        let names = self.resources.iter().flat_map(|r| [r.plural.as_str(), r.singular.as_str()]);
        let hint = nearest(word, names).map_or_else(String::new, |near| format!("; there is \"{near}\""));
        Err(ExplainError::Subject(format!("the server doesn't have a resource type \"{word}\"{hint}")))
    }

    /// Whether a group has a resource.
    pub fn has(&self, group: &str, plural: &str) -> bool {
        self.resources.iter().any(|r| r.group == group && r.plural == plural)
    }

    /// Whether a group has any resource.
    pub fn serves(&self, group: &str) -> bool {
        self.resources.iter().any(|r| r.group == group)
    }

    /// The resource of a group by its plural.
    pub fn of_plural(&self, group: &str, plural: &str) -> Option<&Resource> {
        self.resources.iter().find(|r| r.group == group && r.plural == plural)
    }

    /// The resource of objects of a kind.
    pub fn of_kind(&self, api_version: &str, kind: &str) -> Option<&Resource> {
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        self.resources.iter().find(|r| r.group == group && r.kind == kind)
    }

    /// All resources of objects that are stored.
    pub fn stored(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().filter(|resource| resource.stored)
    }

    /// All resources of objects that are in namespaces and stored.
    pub fn namespaced(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().filter(|resource| resource.namespaced && resource.stored)
    }
}
