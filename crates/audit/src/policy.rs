//! The audit policy: rules in order, the first that matches a request decides.
//!
//! Source: `Policy` of audit.k8s.io/v1.

mod file;
mod validation;

use crate::{Level, Stage, Stages};
use file::{RawPolicy, RawRule};
use kaji_auth::Attributes;
use kaji_meta::{ErrorList, field};
use std::path::{Path, PathBuf};

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("failed to read file path {path:?}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// It is no policy.
    #[error("failed decoding: {0}")]
    Decode(String),
    /// It is one of another version.
    #[error("unknown group version field {0} in policy")]
    Version(String),
    /// It makes no sense.
    #[error("{}", field::aggregate(.0))]
    Invalid(ErrorList),
    /// It records nothing.
    #[error("loaded illegal policy with 0 rules")]
    Empty,
    /// One of the above, in a file.
    #[error("{source}: from file {path}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<PolicyError>,
    },
}

/// What a policy says about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// How much is recorded.
    pub level: Level,
    /// Stages that give no event.
    pub omit: Stages,
    /// Whether managed fields are left out of bodies.
    pub omit_managed_fields: bool,
}

/// A valid policy.
#[derive(Debug)]
pub struct Policy {
    rules: Vec<Rule>,
    fallback: Verdict,
}

#[derive(Debug)]
struct Rule {
    users: Vec<String>,
    groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<Resources>,
    namespaces: Vec<String>,
    paths: Vec<String>,
    verdict: Verdict,
}

#[derive(Debug)]
struct Resources {
    group: String,
    resources: Vec<String>,
    names: Vec<String>,
}

impl Policy {
    /// Reads a file. The second part is what a strict reader minds; lenient ones, as upstream's in the end, do not.
    ///
    /// # Errors
    /// When it cannot be read, is no policy, or is not valid.
    pub fn read(path: &Path) -> Result<(Policy, Option<String>), PolicyError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| PolicyError::Read { path: path.into(), source })?;
        Policy::parse(&text).map_err(|e| PolicyError::File { path: path.into(), source: Box::new(e) })
    }

    /// Reads YAML or JSON. As [`Policy::read`].
    ///
    /// # Errors
    /// When it is no policy, or not valid.
    pub fn parse(text: &str) -> Result<(Policy, Option<String>), PolicyError> {
        let (raw, strict) = file::read(text)?;
        let errors = validation::validate(&raw);
        if !errors.is_empty() {
            return Err(PolicyError::Invalid(errors));
        }
        if raw.rules.is_empty() {
            return Err(PolicyError::Empty);
        }
        Ok((Policy::new(raw), strict))
    }

    fn new(raw: RawPolicy) -> Policy {
        let fallback = Verdict {
            level: Level::None,
            omit: stages(&raw.omit_stages),
            omit_managed_fields: raw.omit_managed_fields,
        };
        Policy { rules: raw.rules.into_iter().map(|r| Rule::new(r, fallback)).collect(), fallback }
    }

    /// Evaluates the policy for a request. Requests without authentication have a user without a name.
    pub fn evaluate(&self, request: &Attributes<'_>) -> Verdict {
        let rule = self.rules.iter().find(|r| r.matches(request));
        rule.map_or(self.fallback, |r| r.verdict)
    }
}

fn stages(names: &[String]) -> Stages {
    names.iter().filter_map(|n| Stage::parse(n)).collect()
}

impl Rule {
    fn new(raw: RawRule, policy: Verdict) -> Rule {
        let verdict = Verdict {
            level: Level::parse(&raw.level).unwrap_or_default(),
            omit: policy.omit.union(stages(&raw.omit_stages)),
            omit_managed_fields: raw.omit_managed_fields.unwrap_or(policy.omit_managed_fields),
        };
        let resources = raw.resources.into_iter();
        Rule {
            users: raw.users,
            groups: raw.user_groups,
            verbs: raw.verbs,
            resources: resources
                .map(|r| Resources { group: r.group, resources: r.resources, names: r.resource_names })
                .collect(),
            namespaces: raw.namespaces,
            paths: raw.non_resource_urls,
            verdict,
        }
    }

    fn matches(&self, request: &Attributes<'_>) -> bool {
        let user = request.user;
        if !self.users.is_empty() && (user.name.is_empty() || !has(&self.users, &user.name)) {
            return false;
        }
        if !self.groups.is_empty() && !user.groups.iter().any(|g| has(&self.groups, g)) {
            return false;
        }
        if !self.verbs.is_empty() && !has(&self.verbs, request.verb) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return request.is_resource()
                && (self.namespaces.is_empty() || has(&self.namespaces, request.namespace))
                && (self.resources.is_empty() || self.resources.iter().any(|r| r.matches(request)));
        }
        if !self.paths.is_empty() {
            return !request.is_resource() && self.paths.iter().any(|p| path_matches(p, request.path));
        }
        true
    }
}

impl Resources {
    fn matches(&self, request: &Attributes<'_>) -> bool {
        if self.group != "*" && self.group != request.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.names.is_empty() && !has(&self.names, request.name) {
            return false;
        }
        let (resource, sub) = (request.resource, request.subresource);
        self.resources.iter().any(|pattern| match pattern.split_once('/') {
            // `*` takes subresources as well; a plain name does not.
            None => pattern == "*" || (sub.is_empty() && pattern == resource),
            // `pods/*` takes pods themselves, too.
            Some((of, "*")) if of == resource => true,
            Some((of, named)) => !sub.is_empty() && named == sub && (of == "*" || of == resource),
        })
    }
}

fn has(list: &[String], text: &str) -> bool {
    list.iter().any(|t| t == text)
}

fn path_matches(pattern: &str, path: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => pattern == path,
    }
}
