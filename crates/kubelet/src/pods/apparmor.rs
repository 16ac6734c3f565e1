//! Pods that ask for AppArmor on a node that cannot enforce it are refused. Upstream's `NewAppArmorAdmitHandler`.
//!
//! Pure. Invariant: a pod that has run already goes on.

use super::admission::PodRejection;
use super::core::{AppArmorProfile, Pod, SecurityContext};
use super::model;

/// Whether a node where AppArmor is enabled, or is not, takes the pod.
///
/// # Errors
/// The refusal.
pub fn check(pod: &Pod, enabled: bool) -> Result<(), PodRejection> {
    let pending = pod.status.as_ref().is_some_and(|s| s.phase.as_deref() == Some("Pending"));
    if enabled || !pending || !requires(pod) {
        return Ok(());
    }
    let message = "Cannot enforce AppArmor: AppArmor is not enabled on the host".to_owned();
    Err(PodRejection { reason: "AppArmor".to_owned(), message })
}

/// Whether the pod, or one of its containers, asks for a profile.
fn requires(pod: &Pod) -> bool {
    let confines = |profile: Option<&AppArmorProfile>| profile.is_some_and(|p| p.type_ != "Unconfined");
    let of = |context: Option<&SecurityContext>| confines(context.and_then(|c| c.app_armor_profile.as_ref()));
    let of_pod = model::spec(pod).security_context.as_ref().and_then(|s| s.app_armor_profile.as_ref());
    let mut containers = model::init_containers(pod).iter().chain(model::containers(pod));
    let mut ephemeral = model::ephemeral_containers(pod).iter();
    confines(of_pod)
        || containers.any(|c| of(c.security_context.as_ref()))
        || ephemeral.any(|c| of(c.security_context.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn refused(phase: &str, spec: &Value) -> bool {
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": {"phase": phase}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        assert!(check(&pod, true).is_ok());
        check(&pod, false).is_err()
    }

    #[test]
    fn pods_that_ask_for_a_profile_are_refused_before_they_run() {
        let profile = |kind: &str| json!({"appArmorProfile": {"type": kind}});
        let container = |context: Value| json!({"name": "c", "securityContext": context});
        let plain = json!([container(json!({}))]);
        assert!(!refused("Pending", &json!({"containers": plain})));
        for kind in ["RuntimeDefault", "Localhost"] {
            let of_pod = json!({"securityContext": profile(kind), "containers": plain});
            assert!(refused("Pending", &of_pod) && !refused("Running", &of_pod));
            assert!(refused("Pending", &json!({"containers": [container(profile(kind))]})));
            let of_init = json!({"initContainers": [container(profile(kind))], "containers": plain});
            assert!(refused("Pending", &of_init));
        }
        let unconfined = profile("Unconfined");
        let spec = json!({"securityContext": unconfined, "containers": [container(unconfined.clone())]});
        assert!(!refused("Pending", &spec));
    }
}
