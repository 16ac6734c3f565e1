//! The condition of a runtime, and its events.

use crate::messages as cri;
use kaji_containers::{RuntimeCondition, RuntimeEvent, RuntimeEventKind, RuntimeHandler, RuntimeStatus};

/// The conditions that decide whether a node is ready. Runtimes have others, which warn.
const CONDITIONS: [&str; 2] = ["RuntimeReady", "NetworkReady"];

numbers!(
    event_kind, event_kind_of, RuntimeEventKind,
    [0 => RuntimeEventKind::Created, 1 => RuntimeEventKind::Started, 2 => RuntimeEventKind::Stopped, 3 => RuntimeEventKind::Deleted],
    else RuntimeEventKind::Created
);

/// What a runtime says of itself. One that misses a condition is not ready.
#[must_use]
pub fn status(status: cri::StatusResponse) -> RuntimeStatus {
    let shown = status.status.unwrap_or_default().conditions;
    let conditions = CONDITIONS.map(|kind| {
        let found = shown.iter().find(|condition| condition.kind == kind);
        found.map_or_else(
            || RuntimeCondition {
                kind: kind.to_owned(),
                status: false,
                reason: "Unknown".to_owned(),
                message: "the container runtime does not report it".to_owned(),
            },
            |c| RuntimeCondition {
                kind: kind.to_owned(),
                status: c.status,
                reason: c.reason.clone(),
                message: c.message.clone(),
            },
        )
    });
    let handlers = status.runtime_handlers.into_iter().map(|handler| {
        let features = handler.features.unwrap_or_default();
        RuntimeHandler {
            name: handler.name,
            recursive_read_only_mounts: features.recursive_read_only_mounts,
            user_namespaces: features.user_namespaces,
        }
    });
    RuntimeStatus {
        conditions: conditions.into(),
        handlers: handlers.collect(),
        supplemental_groups_policy: status.features.is_some_and(|f| f.supplemental_groups_policy),
    }
}

/// An event. One of a sandbox that is gone names no pod.
#[must_use]
pub fn event(event: cri::ContainerEventResponse) -> RuntimeEvent {
    let pod = event.pod_sandbox_status.and_then(|status| status.metadata).unwrap_or_default();
    RuntimeEvent {
        kind: event_kind_of(event.container_event_type),
        id: event.container_id,
        pod_uid: pod.uid,
        at_nanos: event.created_at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_that_only_warn_leave_a_node_ready() {
        let condition = |kind: &str, status| cri::RuntimeCondition {
            kind: kind.into(),
            status,
            reason: "R".into(),
            message: "m".into(),
        };
        let shown = cri::RuntimeStatus {
            conditions: vec![
                condition("RuntimeReady", true),
                condition("ContainerdHasNoDeprecationWarnings", false),
            ],
        };
        let status = status(cri::StatusResponse { status: Some(shown), ..Default::default() });
        let kinds: Vec<(&str, bool)> =
            status.conditions.iter().map(|c| (c.kind.as_str(), c.status)).collect();
        assert_eq!(kinds, [("RuntimeReady", true), ("NetworkReady", false)]);
        assert!(!status.supplemental_groups_policy);
    }
}
