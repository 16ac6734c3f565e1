//! The behaviour of simulated pods, by annotations below `sim.kaji.dev/`:
//!
//! | annotation | meaning |
//! |---|---|
//! | `start-after: 2s` | stay Pending that long |
//! | `ready: "false"` | run, but never become Ready |
//! | `exit-after: 5s` | containers end that long after their start |
//! | `exit-code: "1"` | with this code (default 0) |
//! | `exit-reason: OOMKilled` | for this reason |
//! | `stop-after: 5s` | containers take that long to stop (default 1 s) |
//! | `waiting: ImagePullBackOff` | stay Pending with this reason |
//! | `image: missing` | the image cannot be pulled; `invalid`: its name is none; `present`: it is there whatever its name |
//! | `mount-error: TEXT` | volumes cannot be mounted, for this reason |
//! | `config-error: TEXT` | containers cannot be configured, for this reason |
//! | `started-after: 5s` | the startup probe succeeds that long after a container's start; `never` |
//! | `ready-after: 5s` | the same of the readiness probe |
//! | `unready-after: 5s` | the readiness probe fails from so long after a container's start on |
//! | `unhealthy-after: 5s` | the same of the liveness probe |
//! | `cpu-usage: 250m` | each container uses so much, as metrics show it (default: a share of its requests) |
//! | `memory-usage: 64Mi` | the same of memory |
//!
//! All but the first, `mount-error` and those of usage may name a container: `exit-code.main`. Those about exits hold for the containers of
//! `spec.containers` unless they name one.
//!
//! Without annotations a container does what its command says, if that is understood (see [`super::script`]). Otherwise init
//! containers, pods of a Job and pods that are hooks of a Helm release end at once with code 0, since clients wait for their
//! end; all others run on, as the image `pause` does anywhere. On a Node, `down` is read by [`super::faults`].

use super::script::Effect;
use crate::pods::core::{Container, Pod};
use crate::pods::model::{self, ContainerKind};
use std::time::Duration;

/// What the names of the annotations begin with.
pub const PREFIX: &str = "sim.kaji.dev/";
/// Says when in a release's life Helm makes a pod, and waits until it has succeeded (also for tests).
const HELM_HOOK: &str = "helm.sh/hook";
/// How long containers take to stop. Longer than a client needs for a list and a request for one of its pods; after less, pods of
/// a rolling update go between the two.
const STOP: Duration = Duration::from_secs(1);

/// A time that may never come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// So long after the container's start.
    After(Duration),
    /// Not at all.
    Never,
}

/// Whether an image is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// It is.
    Present,
    /// It cannot be pulled.
    Missing,
    /// Its name is none.
    Invalid,
}

/// How a container ends by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exit {
    /// So long after its start.
    pub after: Duration,
    /// With this code.
    pub code: i32,
    /// `OOMKilled` and the like; empty for what follows from the code.
    pub reason: String,
}

/// What a container does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviour {
    /// Ends; `None` runs on, or does what its command says.
    pub exit: Option<Exit>,
    /// Never becomes Ready, with a readiness probe or without.
    pub unready: bool,
    /// Takes so long to stop.
    pub stop_after: Duration,
    /// Never starts, for this reason.
    pub waiting: Option<String>,
    /// Against what the image's name says.
    pub image: Option<Image>,
    /// Cannot be configured, for this reason.
    pub config_error: Option<String>,
    /// When the startup probe succeeds.
    pub started: Option<When>,
    /// When the readiness probe succeeds.
    pub ready: Option<When>,
    /// From when on the readiness probe fails.
    pub unready_after: Option<Duration>,
    /// From when on the liveness probe fails.
    pub unhealthy_after: Option<Duration>,
}

/// An annotation of a pod as informers show it, by its name below the prefix.
pub fn annotation<'a>(pod: &'a kaji_runtime::objects::Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.get(&format!("{PREFIX}{name}")).map(String::as_str)
}

fn asked<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(&format!("{PREFIX}{name}")).map(String::as_str)
}

fn any(pod: &Pod) -> bool {
    pod.metadata.annotations.iter().flatten().any(|(name, _)| name.starts_with(PREFIX))
}

/// How long a pod stays Pending.
#[must_use]
pub fn start_after(pod: &Pod) -> Duration {
    asked(pod, "start-after").and_then(duration).unwrap_or_default()
}

/// Why its volumes cannot be mounted.
#[must_use]
pub fn mount_error(pod: &Pod) -> Option<&str> {
    asked(pod, "mount-error")
}

fn when(text: &str) -> Option<When> {
    if text == "never" { Some(When::Never) } else { duration(text).map(When::After) }
}

/// What the annotations say of a container.
#[must_use]
pub fn of(pod: &Pod, container: &Container, kind: ContainerKind) -> Behaviour {
    if !any(pod) {
        return Behaviour { stop_after: STOP, ..Behaviour::default() };
    }
    let own = |name: &str| asked(pod, &format!("{name}.{}", container.name));
    let get = |name: &str| own(name).or_else(|| asked(pod, name));
    // Those about exits.
    let ending = |name: &str| if kind == ContainerKind::Regular { get(name) } else { own(name) };
    let (after, code) =
        (ending("exit-after").and_then(duration), ending("exit-code").and_then(|c| c.parse().ok()));
    let reason = ending("exit-reason").unwrap_or_default();
    let exits = after.is_some() || code.is_some_and(|c: i32| c != 0) || !reason.is_empty();
    let exit = exits.then(|| Exit {
        after: after.unwrap_or_default(),
        code: code.unwrap_or(if reason == "OOMKilled" { 137 } else { 0 }),
        reason: reason.to_owned(),
    });
    Behaviour {
        exit,
        unready: get("ready") == Some("false"),
        stop_after: get("stop-after").and_then(duration).unwrap_or(STOP),
        waiting: get("waiting").map(str::to_owned),
        image: get("image").and_then(|image| match image {
            "missing" => Some(Image::Missing),
            "invalid" => Some(Image::Invalid),
            "present" => Some(Image::Present),
            _ => None,
        }),
        config_error: get("config-error").map(str::to_owned),
        started: get("started-after").and_then(when),
        ready: get("ready-after").and_then(when),
        unready_after: get("unready-after").and_then(duration),
        unhealthy_after: get("unhealthy-after").and_then(duration),
    }
}

/// Whether a container is there to do nothing: the image `pause`, or a test image that is asked to.
fn pauses(container: &Container) -> bool {
    let image = container.image.as_deref().unwrap_or_default();
    let name = image.rsplit('/').next().unwrap_or_default();
    let name = name.split([':', '@']).next().unwrap_or_default();
    let first = container.command.iter().chain(&container.args).flatten().next();
    name == "pause" || first.is_some_and(|word| word == "pause")
}

/// How a container ends by itself: by annotations, by its command as far as that is understood, or as others of its kind.
#[must_use]
pub fn exit(
    pod: &Pod,
    (container, kind): (&Container, ContainerKind),
    behaviour: &Behaviour,
    effect: Option<&Effect>,
) -> Option<Exit> {
    if let Some(exit) = &behaviour.exit {
        return Some(exit.clone());
    }
    if let Some(effect) = effect {
        return effect.takes.map(|after| Exit { after, code: effect.code, reason: String::new() });
    }
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let job = owners.iter().any(|o| o.controller == Some(true) && o.kind == "Job");
    let annotations = pod.metadata.annotations.as_ref();
    let hook =
        annotations.is_some_and(|a| a.contains_key(HELM_HOOK)) && model::restart_policy(pod) != "Always";
    let ends = match kind {
        ContainerKind::Init => !model::is_sidecar(container),
        ContainerKind::Regular => (job || hook) && !pauses(container),
        ContainerKind::Ephemeral => false,
    };
    ends.then(Exit::default)
}

/// Whether an image is there, by its name: what is called `invalid…` has no name that can be, what has the tag `404` or is on a
/// registry `invalid.…` cannot be pulled.
#[must_use]
pub fn image(behaviour: &Behaviour, name: &str) -> Image {
    if let Some(image) = behaviour.image {
        return image;
    }
    let tag = name.rsplit('/').next().and_then(|last| last.split_once(':')).map(|(_, tag)| tag);
    let registry = name.split_once('/').map(|(host, _)| host).filter(|host| host.contains('.'));
    if tag == Some("404") || registry.is_some_and(|host| host.starts_with("invalid.")) {
        return Image::Missing;
    }
    if name.starts_with("invalid") { Image::Invalid } else { Image::Present }
}

/// `1m30s`, `500ms`, `2s`, `1h`
pub(super) fn duration(text: &str) -> Option<Duration> {
    kaji_meta::duration::parse_non_negative(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(annotations: serde_json::Value, owner: &str, policy: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {
                "annotations": annotations,
                "ownerReferences": [{"apiVersion": "v1", "name": "o", "uid": "o", "kind": owner, "controller": true}],
            },
            "spec": {"restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]},
        }))
        .unwrap()
    }

    fn exits(pod: &Pod) -> String {
        let container = &model::containers(pod)[0];
        let behaviour = of(pod, container, ContainerKind::Regular);
        match exit(pod, (container, ContainerKind::Regular), &behaviour, None) {
            None => "runs on".to_owned(),
            Some(e) => format!("{:?} {} {}", e.after, e.code, e.reason),
        }
    }

    #[test]
    fn reads_when_containers_end() {
        let sim = |name: &str, value: &str| json!({format!("sim.kaji.dev/{name}"): value});
        let hook = || json!({"helm.sh/hook": "test"});
        let both = json!({"sim.kaji.dev/exit-after": "1m30s", "sim.kaji.dev/exit-code": "3"});
        let named = json!({"sim.kaji.dev/exit-code": "3", "sim.kaji.dev/exit-code.c": "4"});
        let mut paused = pod(json!({}), "Job", "Never");
        let containers = paused.spec.iter_mut().flat_map(|s| &mut s.containers);
        containers.for_each(|c| c.image = Some("registry.k8s.io/pause:3.10".into()));
        let lines: Vec<String> = [
            pod(json!({}), "ReplicaSet", "Always"),
            pod(json!({}), "Job", "Never"),
            pod(both, "Job", "Never"),
            pod(named, "x", "Always"),
            pod(sim("exit-code", "0"), "x", "Never"),
            pod(sim("exit-after", "0s"), "x", "Never"),
            pod(sim("exit-reason", "OOMKilled"), "x", "Never"),
            pod(hook(), "none", "Never"),
            pod(hook(), "none", "OnFailure"),
            pod(hook(), "none", "Always"),
            paused,
        ]
        .iter()
        .map(exits)
        .collect();
        expect_test::expect![[r#"
            runs on
            0ns 0 
            90s 3 
            0ns 4 
            runs on
            0ns 0 
            0ns 137 OOMKilled
            0ns 0 
            0ns 0 
            runs on
            runs on"#]]
        .assert_eq(&lines.join("\n"));
    }

    #[test]
    fn simulates_missing_and_invalid_images_by_name() {
        let names = [
            "nginx",
            "web:404",
            "r.io:404/web",
            "invalid.registry.k8s.io/a/b:1",
            "invalid-name",
            "a/invalid",
        ];
        let shown: Vec<String> =
            names.iter().map(|n| format!("{n} {:?}", image(&Behaviour::default(), n))).collect();
        expect_test::expect![[r#"
            nginx Present
            web:404 Missing
            r.io:404/web Present
            invalid.registry.k8s.io/a/b:1 Missing
            invalid-name Invalid
            a/invalid Present"#]]
        .assert_eq(&shown.join("\n"));
        for bad in ["", "5", "s", "5x", "99999999999999999999s", "é"] {
            assert_eq!(duration(bad), None, "{bad}");
        }
    }
}
