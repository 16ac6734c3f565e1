//! Which container a request for logs means: by the pod's status, as upstream's kubelet decides.
//!
//! Pure, but for the look at the runtime when the status is older than it.

use super::super::lookup;
use crate::pods::core::{ContainerStatus, Pod};
use crate::pods::model;
use kaji_containers::{ContainerRuntime, ContainerState};

/// The status of a container, from any of the lists.
fn status_of<'a>(pod: &'a Pod, container: &str) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let lists =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    lists.into_iter().flatten().flatten().find(|c| c.name == container)
}

/// The id, with the runtime's scheme, of the container that logs are asked of; `previous` asks for the one before the
/// present one.
///
/// # Errors
/// Upstream's text when there is none.
pub fn container_id(pod: &Pod, container: &str, previous: bool) -> Result<String, String> {
    let name = model::name(pod);
    let text = |what: &str| format!("container {container:?} in pod {name:?} {what}");
    let status = status_of(pod, container).ok_or_else(|| text("is not available"))?;
    let state = status.state.as_ref();
    let id = |of: &Option<String>| of.clone().filter(|id| !id.is_empty());
    let last = status.last_state.as_ref().and_then(|s| s.terminated.as_ref());
    let last_id = last.and_then(|t| id(&t.container_id));
    if previous {
        let missing = || format!("previous terminated container {container:?} in pod {name:?} not found");
        return last_id.ok_or_else(missing);
    }
    if state.is_some_and(|s| s.running.is_some()) {
        return id(&status.container_id).ok_or_else(|| text("is not available"));
    }
    if let Some(terminated) = state.and_then(|s| s.terminated.as_ref()) {
        return id(&terminated.container_id).or(last_id).ok_or_else(|| text("is terminated"));
    }
    if last.is_some() {
        return last_id.ok_or_else(|| text("is terminated"));
    }
    let Some(waiting) = state.and_then(|s| s.waiting.as_ref()) else {
        return Err(text("is waiting to start - no logs yet"));
    };
    Err(text(&match waiting.reason.as_deref().unwrap_or_default() {
        "ErrImagePull" => "is waiting to start: image can't be pulled".to_owned(),
        "ImagePullBackOff" => "is waiting to start: trying and failing to pull image".to_owned(),
        reason => format!("is waiting to start: {reason}"),
    }))
}

/// The same by what the runtime shows, for a status that was not written yet: the newest container, if it has run.
pub async fn newest_id(runtime: &dyn ContainerRuntime, pod: &Pod, container: &str) -> Option<String> {
    let newest = lookup::newest_container(runtime, model::uid(pod), container).await.ok()??;
    matches!(newest.state, ContainerState::Running | ContainerState::Exited).then_some(newest.id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn chosen(status: Value, previous: bool) -> String {
        let pod = json!({"metadata": {"name": "p"}, "status": status});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        container_id(&pod, "c", previous).unwrap_or_else(|error| error)
    }

    #[test]
    fn the_container_of_a_status() {
        let one = |mut status: Value| {
            status["name"] = json!("c");
            for (field, value) in [("image", json!("")), ("imageID", json!("")), ("ready", json!(false))] {
                status[field] = value;
            }
            status["restartCount"] = json!(0);
            json!({"containerStatuses": [status]})
        };
        let terminated = |id: &str| json!({"terminated": {"exitCode": 0, "containerID": id}});
        let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
        let statuses = [
            json!({}),
            one(
                json!({"state": {"running": {}}, "containerID": "kaji://1", "lastState": terminated("kaji://0")}),
            ),
            one(json!({"state": terminated("kaji://1")})),
            one(json!({"state": terminated(""), "lastState": terminated("kaji://0")})),
            one(json!({"state": terminated("")})),
            one(json!({"state": waiting("CrashLoopBackOff"), "lastState": terminated("kaji://0")})),
            one(json!({"state": waiting("CrashLoopBackOff"), "lastState": terminated("")})),
            one(json!({"state": waiting("ContainerCreating")})),
            one(json!({"state": waiting("ErrImagePull")})),
            one(json!({"state": waiting("ImagePullBackOff")})),
            one(json!({})),
        ];
        let lines: Vec<String> = statuses
            .into_iter()
            .map(|status| format!("{} | {}", chosen(status.clone(), false), chosen(status, true)))
            .collect();
        expect_test::expect![[r#"
            container "c" in pod "p" is not available | container "c" in pod "p" is not available
            kaji://1 | kaji://0
            kaji://1 | previous terminated container "c" in pod "p" not found
            kaji://0 | kaji://0
            container "c" in pod "p" is terminated | previous terminated container "c" in pod "p" not found
            kaji://0 | kaji://0
            container "c" in pod "p" is terminated | previous terminated container "c" in pod "p" not found
            container "c" in pod "p" is waiting to start: ContainerCreating | previous terminated container "c" in pod "p" not found
            container "c" in pod "p" is waiting to start: image can't be pulled | previous terminated container "c" in pod "p" not found
            container "c" in pod "p" is waiting to start: trying and failing to pull image | previous terminated container "c" in pod "p" not found
            container "c" in pod "p" is waiting to start - no logs yet | previous terminated container "c" in pod "p" not found"#]].assert_eq(&lines.join("\n"));
    }
}
