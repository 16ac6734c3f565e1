//! Starting the sandbox and the containers of a simulated pod, and what may hold that up: volumes, images, configuration, hooks.
//!
//! Invariant: reasons, messages and delays are those of a real node.

use super::behaviour::{self, Behaviour, Image};
use super::facts::{self, Facts};
use super::files::{self, ContainerFiles, HostFiles};
use super::runtime::{PodRuntime, Run, Sandbox};
use super::script::{self, Effect, Machine};
use super::step::Step;
use crate::pods::compute::Actions;
use crate::pods::core::{Container, Pod};
use crate::pods::environment::{self, EnvironmentInputs};
use crate::pods::model::{self, ContainerKind};
use crate::pods::resize::Actual;
use crate::pods::{expansion, images, restart_backoff, status};
use futures_util::FutureExt;
use kaji_runtime::EventRecord;
use kaji_runtime::objects::Service;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// After this long a pod without an address is looked at again, and an event is recorded.
const NO_ADDRESS: Duration = Duration::from_secs(10);
/// After a failed start.
const AGAIN: Duration = Duration::from_secs(1);

/// A waiting state: reason and message.
type Waits = (String, String);

/// Starts what the actions ask for. Whether anything was started.
pub(super) fn start(step: &mut Step<'_, '_>, actions: &Actions) -> bool {
    let pod = step.pod.clone();
    let to_start = containers(&pod, actions);
    let variables = to_start.iter().any(|(c, _)| facts::variables_refer(c));
    if step.needs_facts(variables) || !volumes(step, &pod) {
        return false;
    }
    let mut progress = false;
    if let Some(attempt) = actions.create_sandbox {
        if !sandbox(step, &pod, attempt) {
            return false;
        }
        progress = to_start.is_empty();
    }
    for (container, kind) in &to_start {
        match start_one(step, &pod, container, *kind) {
            Ok(()) => progress = true,
            Err(wait) => {
                if let Some(wait) = wait {
                    step.again_in(wait);
                }
                // The init containers after it have to wait.
                if *kind == ContainerKind::Init && !model::is_sidecar(container) {
                    break;
                }
            }
        }
    }
    progress
}

fn containers(pod: &Pod, actions: &Actions) -> Vec<(Container, ContainerKind)> {
    let ephemeral = actions.ephemeral.iter().filter_map(|i| model::ephemeral_containers(pod).get(*i));
    let ephemeral = ephemeral.map(|c| (model::as_container(c), ContainerKind::Ephemeral));
    let of = |list: &[Container], indexes: &[usize], kind| -> Vec<(Container, ContainerKind)> {
        indexes.iter().filter_map(|i| list.get(*i)).map(|c| (c.clone(), kind)).collect()
    };
    let init = of(model::init_containers(pod), &actions.init, ContainerKind::Init);
    let regular = of(model::containers(pod), &actions.regular, ContainerKind::Regular);
    ephemeral.chain(init).chain(regular).collect()
}

/// Whether the volumes are mounted.
fn volumes(step: &mut Step<'_, '_>, pod: &Pod) -> bool {
    if step.state.mounted {
        return true;
    }
    let now = step.now();
    if let Some(left) = step.state.mounts.waits("volumes", now) {
        step.again_in(left);
        return false;
    }
    let wrong = match (behaviour::mount_error(pod), step.inputs.facts) {
        (Some(text), _) => {
            let volume =
                model::spec(pod).volumes.iter().flatten().next().map_or("volume", |v| v.name.as_str());
            Err(format!("MountVolume.SetUp failed for volume \"{volume}\" : {text}"))
        }
        (None, Some(facts)) => facts.volumes(pod),
        (None, None) => Ok(()),
    };
    match wrong {
        Ok(()) => {
            step.state.mounts.reset("volumes");
            step.state.mounted = true;
            true
        }
        Err(text) => {
            step.warn("FailedMount", text);
            step.state.mounts.next("volumes", now, now);
            let wait = step.state.mounts.delay("volumes");
            step.again_in(wait);
            false
        }
    }
}

/// Whether there is a sandbox now.
fn sandbox(step: &mut Step<'_, '_>, pod: &Pod, attempt: u32) -> bool {
    let now = step.now();
    let began = pod.status.as_ref().and_then(|s| s.start_time.as_ref()).map_or(now, |t| t.0);
    let begins = began.saturating_add(behaviour::start_after(pod)).unwrap_or(now);
    if now < begins {
        step.again_at(begins);
        return false;
    }
    if step.inputs.addresses.is_empty() && !model::host_network(pod) {
        if now.duration_since(began).as_secs() >= NO_ADDRESS.as_secs() as i64 && !step.state.without_address {
            step.state.without_address = true;
            step.warn(
                "FailedCreatePodSandBox",
                "Failed to create pod sandbox: the node's ranges (spec.podCIDRs) have no address for it",
            );
        }
        step.again_in(NO_ADDRESS);
        return false;
    }
    if attempt > 0 {
        let text = "Pod sandbox changed, it will be killed and re-created.";
        step.events.push(EventRecord::normal(model::reference(pod), "SandboxChanged", text));
    }
    step.state.runtime.sandbox = Some(Sandbox { attempt, ready: true, created: now });
    true
}

/// Starts one container. Fails with the time after which to try again, if that is not known otherwise.
fn start_one(
    step: &mut Step<'_, '_>,
    pod: &Pod,
    container: &Container,
    kind: ContainerKind,
) -> Result<(), Option<Duration>> {
    let name = &container.name;
    let now = step.now();
    let behaviour = behaviour::of(pod, container, kind);
    let held = step.state.hook.clone().filter(|(held, _)| held == name);
    if held.is_none() {
        // What was killed for this start does not delay it.
        let killed = step.state.runtime.was_stopped(name);
        let observed = step.observed();
        let mut runs = observed.containers.iter().filter(|c| c.name == *name);
        let last = if killed { runs.nth(1) } else { observed.last_ended(name) };
        restart_backoff::check(&mut step.state.restarts, pod, container, last, now).map_err(|backoff| {
            // It is said once for each delay.
            if step.state.waiting.insert(name.clone(), backoff.waiting.clone()) != Some(backoff.waiting) {
                step.events.push(backoff.event);
            }
            Some(backoff.left)
        })?;
        image(step, pod, container, &behaviour)?;
        if let Some(text) = &behaviour.waiting {
            step.state.waiting.insert(name.clone(), (text.clone(), String::new()));
            return Err(None);
        }
    }
    let wait = |step: &mut Step<'_, '_>, waits: Waits| {
        let reference = model::container_reference(pod, name);
        if step.state.waiting.get(name) != Some(&waits) {
            step.events.push(EventRecord::warning(reference, "Failed", format!("Error: {}", waits.1)));
        }
        step.state.waiting.insert(name.clone(), waits);
        Some(AGAIN)
    };
    let env = match variables(step, pod, container, &behaviour) {
        Ok(env) => env,
        Err(text) => return Err(wait(step, ("CreateContainerConfigError".to_owned(), text))),
    };
    let mut started = now;
    let hook =
        container.lifecycle.as_ref().and_then(|l| l.post_start.as_ref()).and_then(|h| h.sleep.as_ref());
    if let Some(sleep) =
        hook.map(|h| Duration::from_secs(h.seconds.max(0).unsigned_abs())).filter(|s| !s.is_zero())
    {
        match held {
            None => {
                step.state.hook = Some((name.clone(), now.saturating_add(sleep).unwrap_or(now)));
                return Err(Some(sleep));
            }
            Some((_, until)) if now < until => {
                step.again_at(until);
                return Err(None);
            }
            Some((_, until)) => {
                step.state.hook = None;
                started = until.saturating_sub(sleep).unwrap_or(now);
            }
        }
    }
    run(step, pod, (container, kind), &behaviour, (env, started));
    Ok(())
}

/// The container runs.
fn run(
    step: &mut Step<'_, '_>,
    pod: &Pod,
    (container, kind): (&Container, ContainerKind),
    behaviour: &Behaviour,
    (env, started): (BTreeMap<String, String>, jiff::Timestamp),
) {
    let name = &container.name;
    let attempt = step.state.runtime.next_attempt(name);
    files::reset(&mut step.state.runtime.files, name);
    let random = step.inputs.random;
    let mut sees =
        ContainerFiles { pod, container, files: &mut step.state.runtime.files, host: step.inputs.host_files };
    let effect = effect(pod, container, env, &mut sees, &|| random.u64());
    let message = effect.as_ref().map(|effect| message(container, effect, &sees)).unwrap_or_default();
    let exit = behaviour::exit(pod, (container, kind), behaviour, effect.as_ref());
    let handles_signals =
        container.command.iter().chain(&container.args).flatten().any(|t| t.contains("trap "));
    let mut run = Run {
        attempt,
        sandbox: step.state.runtime.sandbox.map_or(0, |s| s.attempt),
        hash: model::container_hash(container),
        started,
        planned: None,
        stopping: None,
        ended: None,
        deaf: effect.is_some() && !handles_signals,
        followed: false,
        stdout: effect.map(|c| c.stdout + &c.stderr).unwrap_or_default().into(),
        message: message.into(),
        actual: Actual::of(pod, container),
    };
    run.plan(exit);
    step.state.runtime.start(name, run);
    step.state.waiting.remove(name);
    // One event for a pod's first start, not one for each container: pods are many.
    let first =
        kind == ContainerKind::Regular && model::containers(pod).first().is_some_and(|c| c.name == *name);
    if attempt == 0 && first {
        let reference = model::container_reference(pod, name);
        step.events.push(EventRecord::normal(reference, "Started", "Container started"));
    }
}

/// Plans the ends of the containers of a pod that were found running, as if they had just been started.
pub(super) fn plan(runtime: &mut PodRuntime, pod: &Pod, host: &HostFiles) {
    let alive: Vec<String> = runtime.alive().map(|(name, _)| name.to_owned()).collect();
    for name in alive {
        let Some((container, kind)) = model::find_container(pod, &name) else { continue };
        let behaviour = behaviour::of(pod, &container, kind);
        let mut sees = ContainerFiles { pod, container: &container, files: &mut runtime.files, host };
        let effect = effect(pod, &container, BTreeMap::new(), &mut sees, &|| 0);
        let exit = behaviour::exit(pod, (&container, kind), &behaviour, effect.as_ref());
        runtime.plan(&name, exit, effect.is_some());
    }
}

/// What a container's command does, if that is understood.
pub(super) fn effect(
    pod: &Pod,
    container: &Container,
    env: BTreeMap<String, String>,
    files: &mut ContainerFiles<'_>,
    random: &dyn Fn() -> u64,
) -> Option<Effect> {
    let command = container.command.as_deref().filter(|c| !c.is_empty())?;
    let expand = |text: &String| expansion::expand(text, |name| env.get(name).cloned());
    let words: Vec<String> = command.iter().chain(container.args.iter().flatten()).map(expand).collect();
    let hostname = model::spec(pod).hostname.clone().unwrap_or_else(|| model::name(pod).to_owned());
    let mut machine = Machine { env, hostname, files, random };
    script::run(&words, &mut machine).ok()
}

/// The termination message that a container leaves.
fn message(container: &Container, effect: &Effect, files: &ContainerFiles<'_>) -> String {
    use super::script::Files;
    let path = container.termination_message_path.as_deref().unwrap_or("/dev/termination-log");
    let text = files.read(path).unwrap_or_default();
    let fallback = container.termination_message_policy.as_deref() == Some("FallbackToLogsOnError");
    if text.is_empty() && fallback && effect.code != 0 {
        format!("{}{}", effect.stdout, effect.stderr)
    } else {
        text
    }
}

/// The variables of a container.
fn variables(
    step: &Step<'_, '_>,
    pod: &Pod,
    container: &Container,
    behaviour: &Behaviour,
) -> Result<BTreeMap<String, String>, String> {
    if let Some(text) = &behaviour.config_error {
        return Err(text.clone());
    }
    let addresses = status::sorted(step.inputs.addresses, &[step.inputs.host]);
    let none = Facts::default();
    let facts = step.inputs.facts.unwrap_or(&none);
    // Nothing reads the variables of a container that runs the command of its image.
    if container.env.is_none() && container.env_from.is_none() && container.command.is_none() {
        return Ok(BTreeMap::new());
    }
    let services = if container.command.is_some() { (step.inputs.services)() } else { vec![] };
    of_environment(pod, container, (&addresses, step.inputs.host), facts, &services)
}

/// The environment of a container.
pub(super) fn of_environment(
    pod: &Pod,
    container: &Container,
    (addresses, host): (&[IpAddr], IpAddr),
    facts: &Facts,
    services: &[Arc<Service>],
) -> Result<BTreeMap<String, String>, String> {
    let allocatable = super::nodes::allocatable();
    let inputs = EnvironmentInputs {
        pod,
        container,
        pod_addresses: addresses,
        host_addresses: &[host],
        services,
        allocatable: &allocatable,
        volume_files: None,
    };
    match environment::make(&inputs, facts).now_or_never() {
        Some(Ok((variables, _))) => Ok(variables.into_iter().collect()),
        Some(Err(error)) => Err(error),
        None => Err("the environment was not made at once".to_owned()),
    }
}

/// Whether the container's image is there.
fn image(
    step: &mut Step<'_, '_>,
    pod: &Pod,
    container: &Container,
    behaviour: &Behaviour,
) -> Result<(), Option<Duration>> {
    let requested = container.image.as_deref().unwrap_or_default();
    let name = &container.name;
    let reference = || model::container_reference(pod, name);
    let named = images::with_default_tag(requested);
    let there = behaviour::image(behaviour, requested);
    let invalid = match (named, there) {
        (Err(error), _) => Some(error),
        (Ok(_), Image::Invalid) => {
            Some(format!("couldn't parse image name \"{requested}\": invalid reference format"))
        }
        (Ok(_), Image::Present) => return Ok(()),
        (Ok(_), Image::Missing) => None,
    };
    let wait = |step: &mut Step<'_, '_>, reason: &str, message: String, event: EventRecord| {
        let waits = (reason.to_owned(), message);
        if step.state.waiting.insert(name.clone(), waits.clone()) != Some(waits) {
            step.events.push(event);
        }
    };
    if let Some(error) = invalid {
        let message = format!("Failed to apply default image tag \"{requested}\": {error}");
        let event = EventRecord::warning(reference(), "InspectFailed", message.clone());
        wait(step, "InvalidImageName", message, event);
        // Only another image ends that.
        return Err(None);
    }
    if container.image_pull_policy.as_deref() == Some("Never") {
        let message = format!("Container image \"{requested}\" is not present with pull policy of Never");
        let event = EventRecord::warning(reference(), "ErrImageNeverPull", message.clone());
        wait(step, "ErrImageNeverPull", message, event);
        return Err(None);
    }
    let (key, now) = (format!("image {requested}"), step.now());
    let error = format!(
        "rpc error: code = NotFound desc = failed to pull and unpack image \"{requested}\": failed to resolve reference \"{requested}\": {requested}: not found"
    );
    if let Some(left) = step.state.pulls.waits(&key, now) {
        let text = format!("Back-off pulling image \"{requested}\"");
        let event = EventRecord::normal(reference(), "BackOff", text.clone());
        wait(step, "ImagePullBackOff", format!("{text}: ErrImagePull: {error}"), event);
        return Err(Some(left));
    }
    step.events.push(EventRecord::normal(reference(), "Pulling", format!("Pulling image \"{requested}\"")));
    let failed =
        EventRecord::warning(reference(), "Failed", format!("Failed to pull image \"{requested}\": {error}"));
    step.state.pulls.next(&key, now, now);
    wait(step, "ErrImagePull", error, failed);
    // The back-off is shown a moment later.
    Err(Some(AGAIN))
}
