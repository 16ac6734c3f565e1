//! Groups of the Kubernetes community need an approval to be named in a definition's annotation.
//! Source: KEP-2337; apiextensions-apiserver, `pkg/apihelpers`.

use kaji_meta::{
    field::{Error, ErrorList, Path},
    object,
};
use serde_json::Value;

/// The annotation: a URL, or why there is none.
const ANNOTATION: &str = "api-approved.kubernetes.io";
const ASKED: &str = "protected groups must have approval annotation \"api-approved.kubernetes.io\"";
const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";

/// What the annotation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    Bypassed,
    Approved,
    Invalid,
}

fn protected(definition: &Value) -> bool {
    let group = object::str_at(definition, &["spec", "group"]);
    ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|g| group.strip_suffix(g).is_some_and(|p| p.is_empty() || p.ends_with('.')))
}

/// Whether this is a URL with a scheme and a host.
fn is_url(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return false };
    let mut letters = scheme.bytes();
    let good = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    let host = rest.split('/').next().unwrap_or_default();
    letters.next().is_some_and(|b| b.is_ascii_alphabetic())
        && letters.all(good)
        && !host.is_empty()
        && !rest.bytes().any(|b| b.is_ascii_control() || b == b' ')
}

fn state(definition: &Value) -> (State, String) {
    match object::annotation(definition, ANNOTATION).unwrap_or_default() {
        "" => (State::Missing, format!("{ASKED}, {SEE}")),
        text if text.starts_with("unapproved") => (State::Bypassed, format!("not approved: {text:?}")),
        text if is_url(text) => (State::Approved, format!("approved in {text}")),
        _ => {
            let either = "with either a URL or a reason starting with \"unapproved\"";
            (State::Invalid, format!("{ASKED} {either}, {SEE}"))
        }
    }
}

/// Refuses a missing or unusable annotation, unless it was that way before.
pub fn check(new: &Value, old: Option<&Value>) -> ErrorList {
    let (now, reason) = state(new);
    if !protected(new) || old.is_some_and(|old| state(old).0 == now) {
        return vec![];
    }
    let path = Path::new("metadata").child("annotations").key(ANNOTATION);
    let value = object::annotation(new, ANNOTATION).unwrap_or_default();
    match now {
        State::Missing => vec![Error::required(&path, reason)],
        State::Invalid => vec![Error::invalid(&path, value, reason)],
        State::Approved | State::Bypassed => vec![],
    }
}

/// What the condition `KubernetesAPIApprovalPolicyConformant` is: status, reason, message. Only protected groups have one.
pub fn condition(definition: &Value) -> Option<(bool, &'static str, String)> {
    if !protected(definition) {
        return None;
    }
    let (state, message) = state(definition);
    let reason = match state {
        State::Missing => "MissingAnnotation",
        State::Bypassed => "UnapprovedAnnotation",
        State::Approved => "ApprovedAnnotation",
        State::Invalid => "InvalidAnnotation",
    };
    Some((state == State::Approved, reason, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use serde_json::json;

    #[test]
    fn protected_groups_are_approved_by_annotation() {
        let crd = |group: &str, annotation: &str| json!({"metadata": {"annotations": {ANNOTATION: annotation}}, "spec": {"group": group}});
        let mut out = String::new();
        for (group, annotation) in [
            ("example.com", ""),
            ("notk8s.io", ""),
            ("sigs.k8s.io", ""),
            ("kubernetes.io", "unapproved, experimental"),
            ("k8s.io", "https://github.com/kubernetes/kubernetes/pull/79724"),
            ("k8s.io", "https:///path"),
            ("k8s.io", "text"),
        ] {
            let crd = crd(group, annotation);
            let errors: Vec<String> = check(&crd, None).iter().map(ToString::to_string).collect();
            out += &format!("{group} {annotation:?}: {:?} {}\n", condition(&crd), errors.join("; "));
        }
        expect![[r#"
            example.com "": None 
            notk8s.io "": None 
            sigs.k8s.io "": Some((false, "MissingAnnotation", "protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111")) metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111
            kubernetes.io "unapproved, experimental": Some((false, "UnapprovedAnnotation", "not approved: \"unapproved, experimental\"")) 
            k8s.io "https://github.com/kubernetes/kubernetes/pull/79724": Some((true, "ApprovedAnnotation", "approved in https://github.com/kubernetes/kubernetes/pull/79724")) 
            k8s.io "https:///path": Some((false, "InvalidAnnotation", "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111")) metadata.annotations[api-approved.kubernetes.io]: Invalid value: "https:///path": protected groups must have approval annotation "api-approved.kubernetes.io" with either a URL or a reason starting with "unapproved", see https://github.com/kubernetes/enhancements/pull/1111
            k8s.io "text": Some((false, "InvalidAnnotation", "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111")) metadata.annotations[api-approved.kubernetes.io]: Invalid value: "text": protected groups must have approval annotation "api-approved.kubernetes.io" with either a URL or a reason starting with "unapproved", see https://github.com/kubernetes/enhancements/pull/1111
        "#]]
        .assert_eq(&out);
        let (was, is) = (crd("k8s.io", "text"), crd("k8s.io", "other"));
        assert!(check(&is, Some(&was)).is_empty(), "what was wrong before is not held against updates");
        assert_eq!(check(&was, Some(&crd("k8s.io", "unapproved"))).len(), 1);
    }
}
