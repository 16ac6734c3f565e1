//! Authorization: attributes of a request, decisions, and the authorizers that make them.
//!
//! Invariant: nothing is allowed that no authorizer allows; an error on the way never allows.

pub mod abac;
pub mod config;
pub mod feed;
pub mod node;
pub mod policy;
pub mod rbac;
pub mod reconcile;
pub mod rule;
pub mod signers;
pub mod webhook;

use crate::names::MASTERS;
use kaji_meta::{fields, labels};
use kaji_resource::{BoxFuture, UserInfo};
use std::{borrow::Cow, sync::Arc};

/// One question: may this user do this? Source: `authorizer.Attributes`.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    /// The user.
    pub user: &'a UserInfo,
    /// API verb for resources (`get`, `list`, …), the method in lower case for paths.
    pub verb: &'a str,
    /// `""` for cluster scope or all namespaces.
    pub namespace: &'a str,
    /// API group; `""` is core.
    pub group: &'a str,
    /// API version; `*` for any.
    pub version: &'a str,
    /// Plural; `""` for a request about `path`.
    pub resource: &'a str,
    /// `""` for the resource itself.
    pub subresource: &'a str,
    /// `""` for all.
    pub name: &'a str,
    /// What follows `/api` and the like, for questions without a resource.
    pub path: &'a str,
    /// The field selector of the request, the one that it is carried out with; `None` without one. One that does not parse
    /// restricts nothing.
    pub field_selector: Option<&'a fields::Selector>,
    /// The label selector of the request, likewise.
    pub label_selector: Option<&'a labels::Selector>,
}

impl<'a> Attributes<'a> {
    /// About a resource.
    pub fn resource(user: &'a UserInfo, verb: &'a str, group: &'a str, resource: &'a str) -> Self {
        Attributes { group, resource, version: "*", ..Attributes::path(user, verb, "") }
    }

    /// About a path.
    pub fn path(user: &'a UserInfo, verb: &'a str, path: &'a str) -> Self {
        let none = "";
        Attributes {
            user,
            verb,
            path,
            namespace: none,
            group: none,
            version: none,
            resource: none,
            subresource: none,
            name: none,
            field_selector: None,
            label_selector: None,
        }
    }

    /// Whether it is about a resource, not a path.
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// Whether nothing can be changed that way.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb, "get" | "list" | "watch")
    }
}

/// What was decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Decision {
    /// The request is allowed.
    Allow,
    /// The request is refused, whatever other authorizers decide.
    Deny,
    /// The next authorizer decides.
    #[default]
    NoOpinion,
}

/// A decision with its reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What was decided.
    pub decision: Decision,
    /// Why, in words; may be empty.
    pub reason: Cow<'static, str>,
    /// What went wrong on the way, in words; it may have hidden a permission.
    pub error: Option<String>,
}

impl Outcome {
    /// Allowed, with the reason.
    pub fn allow(reason: impl Into<Cow<'static, str>>) -> Self {
        Outcome { decision: Decision::Allow, reason: reason.into(), error: None }
    }

    /// Whether the request is allowed.
    pub fn allowed(&self) -> bool {
        self.decision == Decision::Allow
    }
}

/// One rule. Source: `PolicyRule` of rbac.authorization.k8s.io/v1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    /// Verbs; `*` for all.
    pub verbs: Vec<String>,
    /// API groups; `*` for all.
    pub api_groups: Vec<String>,
    /// Resources, `resource/subresource`, `*` or `*/subresource`.
    pub resources: Vec<String>,
    /// Names; empty for all.
    pub resource_names: Vec<String>,
    /// Paths, `/path/*` or `*`; a rule has either these or resources.
    pub non_resource_urls: Vec<String>,
}

/// Everything that is known to be allowed to a user in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The rules.
    pub rules: Vec<PolicyRule>,
    /// Some may be missing.
    pub incomplete: bool,
    /// Why, in words.
    pub error: Option<String>,
}

/// Decides. It runs on every request.
pub trait Authorizer: Send + Sync + 'static {
    /// Decides about a request.
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome>;

    /// All that a user may do in a namespace.
    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules>;
}

/// What roles alone grant: that which a user may pass on to others.
pub trait Grants: Send + Sync + 'static {
    /// The rules held by a user in a namespace (`""`: everywhere), and in words which roles could not be found.
    fn held(&self, user: &UserInfo, namespace: &str) -> (Vec<Arc<[PolicyRule]>>, Option<String>);
}

/// Whether a user may do everything, whatever roles say.
#[must_use]
pub fn is_master(user: &UserInfo) -> bool {
    user.groups.iter().any(|group| group == MASTERS)
}

/// The members of `system:masters` may do everything. Source: upstream's privileged-group authorizer.
pub struct Masters;

impl Authorizer for Masters {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let outcome = match is_master(attributes.user) {
            true => Outcome::allow(""),
            false => Outcome::default(),
        };
        Box::pin(std::future::ready(outcome))
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        let mut rules = Rules::default();
        if is_master(user) {
            rules.rules = everything();
        }
        Box::pin(std::future::ready(rules))
    }
}

/// The same decision for every request. Source: upstream's `authorizerfactory`.
pub struct Always(pub Decision);

impl Authorizer for Always {
    fn authorize<'a>(&'a self, _attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        let reason = if self.0 == Decision::Allow { "" } else { "Everything is forbidden." };
        Box::pin(std::future::ready(Outcome { decision: self.0, reason: reason.into(), error: None }))
    }

    fn rules<'a>(&'a self, _user: &'a UserInfo, _namespace: &'a str) -> BoxFuture<'a, Rules> {
        let rules = if self.0 == Decision::Allow { everything() } else { vec![] };
        Box::pin(std::future::ready(Rules { rules, ..Rules::default() }))
    }
}

/// The rules of users that may do everything.
pub fn everything() -> Vec<PolicyRule> {
    let all = || vec!["*".to_owned()];
    vec![
        PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() },
        PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() },
    ]
}

/// Several authorizers in order; the first with an opinion decides.
#[derive(Default)]
pub struct Union(pub Vec<Arc<dyn Authorizer>>);

impl Authorizer for Union {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let (mut reasons, mut errors) = (vec![], vec![]);
            for authorizer in &self.0 {
                let outcome = authorizer.authorize(attributes).await;
                if outcome.decision != Decision::NoOpinion {
                    return outcome;
                }
                reasons.extend(Some(outcome.reason).filter(|r| !r.is_empty()));
                errors.extend(outcome.error);
            }
            Outcome {
                decision: Decision::NoOpinion,
                reason: reasons.join("\n").into(),
                error: (!errors.is_empty()).then(|| aggregate(&errors)),
            }
        })
    }

    fn rules<'a>(&'a self, user: &'a UserInfo, namespace: &'a str) -> BoxFuture<'a, Rules> {
        Box::pin(async move {
            let (mut all, mut errors) = (Rules::default(), vec![]);
            for authorizer in &self.0 {
                let found = authorizer.rules(user, namespace).await;
                all.rules.extend(found.rules);
                all.incomplete |= found.incomplete;
                errors.extend(found.error);
            }
            all.error = (!errors.is_empty()).then(|| aggregate(&errors));
            all
        })
    }
}

/// Upstream's text of several errors in one; each is named once.
pub(crate) fn aggregate(errors: &[String]) -> String {
    let mut seen: Vec<&str> = vec![];
    for error in errors {
        if !seen.contains(&error.as_str()) {
            seen.push(error);
        }
    }
    match seen.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What a future says that needs to wait for nothing.
    pub fn ready<T>(future: BoxFuture<'_, T>) -> T {
        futures_util::FutureExt::now_or_never(future).expect("it waits")
    }

    struct Says(Outcome);

    impl Authorizer for Says {
        fn authorize<'a>(&'a self, _: &'a Attributes<'a>) -> BoxFuture<'a, Outcome> {
            Box::pin(std::future::ready(self.0.clone()))
        }
        fn rules<'a>(&'a self, _: &'a UserInfo, _: &'a str) -> BoxFuture<'a, Rules> {
            Box::pin(std::future::ready(Rules::default()))
        }
    }

    fn ask(answers: &[Outcome]) -> Outcome {
        let union = Union(answers.iter().map(|o| Arc::new(Says(o.clone())) as Arc<dyn Authorizer>).collect());
        let user = UserInfo::default();
        let question = Attributes::path(&user, "get", "/x");
        ready(union.authorize(&question))
    }

    #[test]
    fn errors_are_named_once() {
        let texts = |t: &[&str]| t.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        assert_eq!(aggregate(&texts(&["a", "a"])), "a");
        assert_eq!(aggregate(&texts(&["a", "b", "a"])), "[a, b]");
    }

    #[test]
    fn the_first_opinion_counts() {
        let none = |reason: &'static str, error: Option<&str>| Outcome {
            reason: reason.into(),
            error: error.map(str::to_owned),
            ..Outcome::default()
        };
        let deny = Outcome { decision: Decision::Deny, ..none("no", None) };
        assert_eq!(ask(&[none("a", None), deny.clone(), Outcome::allow("")]), deny);
        assert!(ask(&[none("a", Some("e")), Outcome::allow("b"), deny]).allowed());
        let undecided = ask(&[none("a", Some("x")), none("", Some("y")), none("b", None)]);
        assert_eq!(undecided, none("a\nb", Some("[x, y]")));
        assert!(!undecided.allowed());
    }

    #[test]
    fn allows_only_members_of_system_masters() {
        for (group, allowed) in [(MASTERS, true), ("system:master", false), ("", false)] {
            let user = UserInfo { groups: vec![group.into()], ..UserInfo::default() };
            let question = Attributes::resource(&user, "delete", "", "nodes");
            let outcome = ready(Masters.authorize(&question));
            assert_eq!(outcome.allowed(), allowed);
        }
    }
}
