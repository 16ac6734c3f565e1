//! What refused a write, by the text of the answer.
//!
//! Source: the messages of upstream's admission plugins, authorizers and field managers.

/// The rule that refused a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// `ResourceQuota`, `Webhook`, `ValidatingAdmissionPolicy`, `PodSecurity`, `RBAC`, `FieldManager`, `DisruptionBudget`,
    /// `Validation`, `Admission`.
    pub kind: &'static str,
    /// Its name, where the message says it.
    pub name: String,
}

impl Rule {
    /// Of an answer.
    pub fn of(code: u16, message: &str) -> Rule {
        let named = |kind, name: &str| Rule { kind, name: name.to_owned() };
        for (marker, end) in [("exceeded quota: ", ","), ("failed quota: ", ":")] {
            if let Some(name) = between(message, marker, end) {
                return named("ResourceQuota", name);
            }
        }
        for marker in ["admission webhook \"", "failed calling webhook \""] {
            if let Some(name) = between(message, marker, "\"") {
                return named("Webhook", name);
            }
        }
        if let Some(name) = between(message, "ValidatingAdmissionPolicy '", "'") {
            return named("ValidatingAdmissionPolicy", name);
        }
        if let Some(level) = between(message, "violates PodSecurity \"", "\"") {
            return named("PodSecurity", level);
        }
        if code == 409 {
            return named("FieldManager", between(message, "conflict with \"", "\"").unwrap_or_default());
        }
        if message.contains("disruption budget") {
            return named("DisruptionBudget", "");
        }
        match code {
            403 if message.contains("User \"") && message.contains("\" cannot ") => named("RBAC", ""),
            422 => named("Validation", ""),
            _ => named("Admission", ""),
        }
    }
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    Some(rest.split_once(after).map_or(rest, |(name, _)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_what_refused() {
        let all = [
            (
                403,
                "pods \"a\" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2",
            ),
            (403, "pods \"a\" is forbidden: failed quota: few: must specify cpu for: main"),
            (400, "admission webhook \"guard.acme.example.com\" denied the request: no"),
            (500, "Internal error occurred: failed calling webhook \"guard.acme.example.com\": no endpoints"),
            (
                422,
                "deployments.apps \"a\" is forbidden: ValidatingAdmissionPolicy 'few' with binding 'b' denied request: x",
            ),
            (403, "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": privileged"),
            (
                409,
                "Apply failed with 1 conflict: conflict with \"kubectl-scale\" with subresource \"scale\": .spec.replicas",
            ),
            (429, "Cannot evict pod as it would violate the pod's disruption budget."),
            (
                403,
                "pods is forbidden: User \"bob\" cannot create resource \"pods\" in API group \"\" in the namespace \"d\"",
            ),
            (422, "Pod \"a\" is invalid: spec: Forbidden: no"),
        ];
        let text: Vec<String> = all
            .iter()
            .map(|(code, message)| {
                let Rule { kind, name } = Rule::of(*code, message);
                format!("{kind} {name}").trim_end().to_owned()
            })
            .collect();
        expect_test::expect![[r"
            ResourceQuota few
            ResourceQuota few
            Webhook guard.acme.example.com
            Webhook guard.acme.example.com
            ValidatingAdmissionPolicy few
            PodSecurity restricted:latest
            FieldManager kubectl-scale
            DisruptionBudget
            RBAC
            Validation"]]
        .assert_eq(&text.join("\n"));
    }
}
