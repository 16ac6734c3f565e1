//! The last status of a pod: a phase that it never leaves, and an end for each container that it has or should have begun. Upstream's
//! `TerminatePod`.
//!
//! Invariant: what is known of the end of a container is kept; an unknown end counts as a failure.

use super::Inputs;
use crate::pods::core::{
    Container, ContainerState as ApiState, ContainerStateTerminated, ContainerStatus, PodStatus,
};
use crate::pods::model;

/// Completes the status of a pod of which nothing runs any more and nothing will.
pub(super) fn complete(inputs: &Inputs<'_>, status: &mut PodStatus) {
    if !inputs.terminal || inputs.observed.alive().next().is_some() {
        return;
    }
    set_ends(model::init_containers(inputs.pod), status);
    let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
    if !over && !model::is_static(inputs.pod) {
        status.phase = Some("Failed".to_owned());
    }
}

fn set_ends(init_containers: &[Container], status: &mut PodStatus) {
    if is_initialized(init_containers, status) {
        status.container_statuses.iter_mut().flatten().for_each(set_end);
    }
    // Those after the last that has begun have no end; the first should have begun at least.
    let init = status.init_container_statuses.as_deref_mut().unwrap_or_default();
    let count = init.iter().rposition(has_begun).unwrap_or(0) + 1;
    init.iter_mut().take(count).for_each(set_end);
}

fn set_end(status: &mut ContainerStatus) {
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        return;
    }
    let terminated = ContainerStateTerminated {
        exit_code: 137,
        reason: Some("ContainerStatusUnknown".to_owned()),
        message: Some("The container could not be located when the pod was terminated".to_owned()),
        ..ContainerStateTerminated::default()
    };
    status.state = Some(ApiState { terminated: Some(terminated), ..ApiState::default() });
}

fn has_begun(status: &ContainerStatus) -> bool {
    let waits = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
    !waits || status.last_state.as_ref().is_some_and(|state| state.terminated.is_some())
}

/// Whether the regular containers have begun, or were next.
fn is_initialized(init_containers: &[Container], status: &PodStatus) -> bool {
    let Some(last) = init_containers.last() else { return true };
    if status.container_statuses.iter().flatten().any(has_begun) {
        return true;
    }
    let Some(found) = status.init_container_statuses.iter().flatten().find(|s| s.name == last.name) else {
        return false;
    };
    if model::is_sidecar(last) {
        let runs = found.state.as_ref().is_some_and(|state| state.running.is_some());
        return runs && found.started == Some(true);
    }
    let states = [&found.state, &found.last_state].into_iter().flatten();
    states.filter_map(|state| state.terminated.as_ref()).any(|ended| ended.exit_code == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// The states of init containers and of containers after the end. `true` are sidecars.
    fn ends(init: &[(bool, Value)], regular: &[Value]) -> String {
        let of = |name: String, state: &Value| {
            let mut status =
                json!({"name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 0});
            for (field, value) in state.as_object().unwrap() {
                status[field] = value.clone();
            }
            status
        };
        let statuses = |states: Vec<&Value>, letter: &str| -> Vec<Value> {
            states.iter().enumerate().map(|(at, state)| of(format!("{letter}{at}"), state)).collect()
        };
        let specs: Vec<Container> = init
            .iter()
            .enumerate()
            .map(|(at, (sidecar, _))| {
                let policy = sidecar.then_some("Always");
                serde_json::from_value(json!({"name": format!("i{at}"), "restartPolicy": policy})).unwrap()
            })
            .collect();
        let mut status: PodStatus = serde_json::from_value(json!({
            "initContainerStatuses": statuses(init.iter().map(|(_, state)| state).collect(), "i"),
            "containerStatuses": statuses(regular.iter().collect(), "c"),
        }))
        .unwrap();
        set_ends(&specs, &mut status);
        let lists = [status.init_container_statuses, status.container_statuses];
        let all = lists.into_iter().flatten().flatten().map(|status| {
            let state = status.state.unwrap();
            let code = state.terminated.map_or("-".to_owned(), |ended| ended.exit_code.to_string());
            format!("{} {code}", status.name)
        });
        all.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn containers_that_have_begun_or_were_next_have_an_end() {
        let waits = json!({"state": {"waiting": {}}});
        let done = json!({"state": {"terminated": {"exitCode": 0}}});
        let failed = json!({"state": {"terminated": {"exitCode": 3}}});
        let again = json!({"state": {"waiting": {}}, "lastState": {"terminated": {"exitCode": 4}}});
        let runs = |started: bool| json!({"state": {"running": {}}, "started": started});
        let shown = [
            ends(&[], &[waits.clone(), done.clone()]),
            ends(&[(false, waits.clone()), (false, waits.clone())], std::slice::from_ref(&waits)),
            ends(
                &[(true, waits.clone()), (false, again.clone()), (false, waits.clone())],
                &[waits.clone(), waits.clone()],
            ),
            ends(&[(false, done.clone()), (false, failed)], std::slice::from_ref(&waits)),
            ends(&[(false, done.clone()), (false, done)], std::slice::from_ref(&waits)),
            ends(&[(true, runs(false))], std::slice::from_ref(&waits)),
            ends(&[(true, runs(true))], std::slice::from_ref(&waits)),
            ends(&[(false, waits.clone())], &[waits, again]),
        ];
        expect_test::expect![[r#"
            c0 137, c1 0
            i0 137, i1 -, c0 -
            i0 137, i1 137, i2 -, c0 -, c1 -
            i0 0, i1 3, c0 -
            i0 0, i1 0, c0 137
            i0 137, c0 -
            i0 137, c0 137
            i0 137, c0 137, c1 137"#]]
        .assert_eq(&shown.join("\n"));
    }
}
