//! Starting sandboxes and containers: the configurations that the runtime is given.

use super::context::{NodeContext, PodRef};
use super::core::{Container, Pod};
use super::environment::{self, EnvironmentInputs};
use super::images::{ContainerImages, StartFailure, failure};
use super::model::{self, ContainerKind};
use super::observed::Observed;
use super::security::ImageUser;
use super::{downward, expansion, labels, network, resources, security};
use crate::plugins::devices::DeviceOptions;
use kaji_containers::{
    ContainerConfig, ContainerMetadata, ContainerSecurity, ImageSpec, LinuxResources, Mount,
    PodSandboxConfig, PodSandboxMetadata, RuntimeHandler, UserNamespace,
};
use kaji_runtime::EventRecord;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

/// Names a pod.
#[must_use]
pub fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        namespace: model::namespace(pod).to_owned(),
        name: model::name(pod).to_owned(),
        uid: model::uid(pod).to_owned(),
    }
}

/// What the pod's RuntimeClass names; empty for the runtime's default.
async fn runtime_handler(cx: &NodeContext, pod: &Pod) -> Result<String, String> {
    let class = model::spec(pod).runtime_class_name.as_deref().unwrap_or_default();
    if class.is_empty() {
        return Ok(String::new());
    }
    match cx.sources.runtime_handler(class).await {
        Ok(Some(handler)) => Ok(handler),
        Ok(None) => Err(format!("runtimeclass.node.k8s.io \"{class}\" not found")),
        Err(error) => Err(format!("failed to lookup RuntimeClass {class}: {error}")),
    }
}

/// The configuration of a pod's sandbox.
///
/// # Errors
/// The text of a `FailedCreatePodSandBox` event.
pub async fn sandbox_config(cx: &NodeContext, pod: &Pod, attempt: u32) -> Result<PodSandboxConfig, String> {
    let spec = model::spec(pod);
    let runtime_handler = runtime_handler(cx, pod).await?;
    let config = &cx.config;
    let (dns, warnings) = network::dns(pod, &config.dns);
    for warning in warnings {
        cx.api.record(EventRecord::warning(model::reference(pod), "DNSConfigForming", warning));
    }
    let mut security =
        security::of_sandbox(pod, &config.root_dir.join("seccomp")).map_err(|e| e.to_string())?;
    security.namespaces.user = user_namespace(cx, pod).await?;
    let sysctls = spec.security_context.as_ref().and_then(|s| s.sysctls.as_ref());
    let name = pod_ref(pod);
    Ok(PodSandboxConfig {
        hostname: network::node_name_or_fqdn(pod, &config.dns.domain, &config.node_name)?,
        log_directory: config.log_dir(&name).display().to_string(),
        metadata: PodSandboxMetadata { name: name.name, namespace: name.namespace, uid: name.uid, attempt },
        dns,
        port_mappings: network::port_mappings(pod),
        labels: labels::of_sandbox(pod),
        annotations: pod.metadata.annotations.clone().unwrap_or_default(),
        cgroup_parent: if cx.cgroups.is_some() { resources::cgroup_path(pod) } else { String::new() },
        security,
        sysctls: sysctls.into_iter().flatten().map(|s| (s.name.clone(), s.value.clone())).collect(),
        overhead: Some(resources::of_overhead(pod)),
        resources: Some(resources::of_pod(pod)),
        runtime_handler,
    })
}

/// Whether the handler of a pod has user namespaces. One that knows no handlers has none.
fn check_user_namespaces(handlers: &[RuntimeHandler], wanted: &str) -> Result<(), String> {
    let found = handlers.iter().find(|handler| handler.name == wanted);
    if found.is_some_and(|handler| handler.user_namespaces) {
        return Ok(());
    }
    let what = match wanted {
        "" => "runtime does not support user namespaces".to_owned(),
        wanted => format!("RuntimeClass handler {wanted:?} does not support user namespaces"),
    };
    let text = format!("can't set `spec.hostUsers: false`, {what}");
    if found.is_some() || handlers.is_empty() {
        return Err(text);
    }
    Err(format!("{text}: the handler {wanted:?} is not known"))
}

/// The user namespace of a pod that asks for one of its own.
async fn user_namespace(cx: &NodeContext, pod: &Pod) -> Result<Option<UserNamespace>, String> {
    if model::spec(pod).host_users != Some(false) {
        return Ok(None);
    }
    let wanted = runtime_handler(cx, pod).await?;
    let handlers = cx.runtime.status().await.map_err(|error| error.to_string())?.handlers;
    check_user_namespaces(&handlers, &wanted)?;
    cx.user_namespaces.of_pod(model::uid(pod)).map(Some).map_err(|error| error.to_string())
}

/// What a container's configuration is made from.
pub struct ContainerInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// What the runtime shows of the pod.
    pub observed: &'a Observed,
    /// The pod's addresses.
    pub addresses: &'a [IpAddr],
    /// Its image, and those of its volumes.
    pub images: &'a ContainerImages,
    /// Which list it is in.
    pub kind: ContainerKind,
    /// Of an ephemeral container: the one that it shares a pid namespace with.
    pub target: Option<&'a str>,
}

/// How many containers of the name came before: by the runtime, else by what is left of their logs.
fn restart_count(cx: &NodeContext, inputs: &ContainerInputs<'_>) -> u32 {
    if let Some(newest) = inputs.observed.newest(&inputs.container.name) {
        return newest.kept.restart_count + 1;
    }
    let logs = cx.config.log_dir(&pod_ref(inputs.pod)).join(&inputs.container.name);
    let Ok(entries) = std::fs::read_dir(logs) else { return 0 };
    let number = |name: &str| name.split('.').next().and_then(|n| n.parse::<u32>().ok());
    let numbers = entries.flatten().filter_map(|e| number(&e.file_name().to_string_lossy()));
    numbers.max().map_or(0, |newest| newest + 1)
}

/// The configuration of a container. Blocking file operations are few and small.
///
/// # Errors
/// Reason and message of the waiting state.
pub async fn container_config(
    cx: &NodeContext,
    inputs: &ContainerInputs<'_>,
) -> Result<ContainerConfig, StartFailure> {
    let wrong = |message: String| StartFailure { reason: "CreateContainerConfigError", message };
    let (pod, container) = (inputs.pod, inputs.container);
    let Some(services) = cx.facts.services() else {
        return Err(wrong("services have not yet been read at least once, cannot construct envvars".into()));
    };
    let allocatable = downward::default_limits(pod, cx.facts.allocatable());
    let volume_file = |volume: &str, path: &str| cx.volumes.read_file(pod, volume, path);
    let environment = EnvironmentInputs {
        pod,
        container,
        pod_addresses: inputs.addresses,
        host_addresses: &cx.config.addresses,
        services: &services,
        allocatable: &allocatable,
        volume_files: Some(&volume_file),
    };
    let (envs, invalid) = environment::make(&environment, &*cx.sources).await.map_err(wrong)?;
    if !invalid.is_empty() {
        let text = format!(
            "Keys [{}] from the EnvFrom source were skipped since they are considered invalid environment variable names.",
            invalid.join(", ")
        );
        cx.api.record(EventRecord::warning(model::reference(pod), "InvalidEnvironmentVariableNames", text));
    }
    let count = restart_count(cx, inputs);
    let values: BTreeMap<&str, &str> = envs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let expand = |list: &Option<Vec<String>>| -> Vec<String> {
        let one = |t: &String| expansion::expand(t, |name| values.get(name).map(|v| (*v).to_owned()));
        list.iter().flatten().map(one).collect()
    };
    let (command, args) = (expand(&container.command), expand(&container.args));
    let mut mounts = cx.volumes.mounts(pod, container, &values).await.map_err(wrong)?;
    for image in mounts.iter_mut().filter_map(|mount| mount.image.as_mut()) {
        if let Some(found) = inputs.images.of_volumes.get(&image.image) {
            *image = found.clone();
        }
    }
    let mut devices = cx.volumes.devices(pod, container).map_err(wrong)?;
    let of_plugins = devices_of_plugins(cx, pod, container).await.map_err(wrong)?;
    devices.extend(of_plugins.devices);
    mounts.extend(of_plugins.mounts);
    mounts.extend(hosts_mount(cx, inputs, &mounts).map_err(wrong)?);
    mounts.extend(message_mount(cx, pod, container).map_err(wrong)?);
    let security = secured(cx, inputs, &mut mounts).await.map_err(wrong)?;
    let logs = cx.config.log_dir(&pod_ref(pod)).join(&container.name);
    std::fs::create_dir_all(&logs).map_err(|e| {
        wrong(format!("create container log directory for container {} failed: {e}", container.name))
    })?;
    Ok(ContainerConfig {
        metadata: ContainerMetadata { name: container.name.clone(), attempt: count },
        image: ImageSpec { image: inputs.images.image.id.clone(), ..inputs.images.spec.clone() },
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        envs: with_variables(envs, of_plugins.envs),
        mounts,
        devices,
        cdi_devices: of_plugins.cdi_devices,
        labels: labels::of_container(pod, container),
        annotations: with_annotations(of_plugins.annotations, labels::annotations(pod, container, count)),
        log_path: format!("{}/{count}.log", container.name),
        stdin: container.stdin.unwrap_or(false),
        stdin_once: container.stdin_once.unwrap_or(false),
        tty: container.tty.unwrap_or(false),
        resources: limits(cx, pod, container),
        security,
        stop_signal: container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
    })
}

/// What a container gets because of its claims and of the devices of plug-ins.
async fn devices_of_plugins(
    cx: &NodeContext,
    pod: &Pod,
    container: &Container,
) -> Result<DeviceOptions, String> {
    let mut options = cx.devices.options(pod, container).await?;
    options.cdi_devices = [cx.dra.cdi_devices(pod, container)?, options.cdi_devices].concat();
    Ok(options)
}

/// Limits of a container, the processors that it runs on, the nodes of its memory, and how much of that is protected.
fn limits(cx: &NodeContext, pod: &Pod, container: &Container) -> LinuxResources {
    let limits = resources::of_container(pod, container, cx.config.memory);
    let limits = cx.managers.with_places(pod, &container.name, limits);
    let allocatable = cx.facts.allocatable().get("memory").copied().unwrap_or(0);
    let files = cx.config.memory_qos.of_container(pod, container, allocatable);
    resources::with_group_kill(resources::with_unified(limits, files))
}

/// Users, groups and profiles of a container, and how its mounts show their owners.
async fn secured(
    cx: &NodeContext,
    inputs: &ContainerInputs<'_>,
    mounts: &mut [Mount],
) -> Result<ContainerSecurity, String> {
    let (pod, container) = (inputs.pod, inputs.container);
    let user = ImageUser { uid: inputs.images.image.uid, name: inputs.images.image.username.clone() };
    let profiles = cx.config.root_dir.join("seccomp");
    let security = security::of_container(pod, container, &user, inputs.target, &profiles);
    let mut security = security.map_err(|e| e.to_string())?;
    security.namespaces.user = user_namespace(cx, pod).await?;
    if let Some(user) = &security.namespaces.user {
        for mount in mounts {
            (mount.uid_mappings, mount.gid_mappings) = (user.uids.clone(), user.gids.clone());
        }
    }
    // Groups that volumes ask for.
    for group in cx.volumes.groups(model::uid(pod)) {
        if !security.supplemental_groups.contains(&group) {
            security.supplemental_groups.push(group);
        }
    }
    Ok(security)
}

/// With variables of device plug-ins, unless the container sets them itself.
fn with_variables(own: Vec<(String, String)>, of_plugins: BTreeMap<String, String>) -> Vec<(String, String)> {
    let new = of_plugins.into_iter().filter(|(name, _)| !own.iter().any(|(known, _)| known == name));
    let new: Vec<(String, String)> = new.collect();
    new.into_iter().chain(own).collect()
}

/// The kubelet's own annotations win.
fn with_annotations(
    mut of_plugins: BTreeMap<String, String>,
    own: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    of_plugins.extend(own);
    of_plugins
}

/// `/etc/hosts`, unless the container mounts one of its own.
fn hosts_mount(
    cx: &NodeContext,
    inputs: &ContainerInputs<'_>,
    mounts: &[Mount],
) -> Result<Option<Mount>, String> {
    let host_network = model::host_network(inputs.pod);
    if mounts.iter().any(|m| m.container_path == "/etc/hosts") || inputs.addresses.is_empty() && !host_network
    {
        return Ok(None);
    }
    let (name, domain) = network::hostname(inputs.pod, &cx.config.dns.domain)?;
    let node_hosts = if host_network {
        Some(std::fs::read_to_string(&cx.config.hosts_file).map_err(|e| e.to_string())?)
    } else {
        None
    };
    let text = network::hosts_file(inputs.pod, inputs.addresses, &name, &domain, node_hosts.as_deref());
    let path = cx.config.pod_dir(model::uid(inputs.pod)).join("etc-hosts");
    write_file(&path, text.as_bytes(), 0o644)?;
    Ok(Some(Mount {
        container_path: "/etc/hosts".to_owned(),
        host_path: path.display().to_string(),
        selinux_relabel: true,
        ..Mount::default()
    }))
}

/// An empty file for the termination message, one a container.
fn message_mount(cx: &NodeContext, pod: &Pod, container: &Container) -> Result<Option<Mount>, String> {
    let path = container.termination_message_path.as_deref().unwrap_or_default();
    if path.is_empty() {
        return Ok(None);
    }
    let dir = cx.config.pod_dir(model::uid(pod)).join("containers").join(&container.name);
    std::fs::create_dir_all(&dir).map_err(|e| e.to_string())?;
    let file = dir.join(format!("{:08x}", cx.random.u64() >> 32));
    // Any user of the container may write it.
    write_file(&file, b"", 0o666)?;
    Ok(Some(Mount {
        container_path: path.to_owned(),
        host_path: file.display().to_string(),
        selinux_relabel: true,
        ..Mount::default()
    }))
}

fn write_file(path: &Path, bytes: &[u8], mode: u32) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let text = |e: std::io::Error| format!("{}: {e}", path.display());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(text)?;
    }
    std::fs::write(path, bytes).map_err(text)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(text)
}

/// Creates and starts a container in a sandbox. Answers its id.
///
/// # Errors
/// Reason and message of the waiting state.
pub async fn run(
    cx: &NodeContext,
    inputs: &ContainerInputs<'_>,
    sandbox: &str,
) -> Result<String, StartFailure> {
    let reference = model::container_reference(inputs.pod, &inputs.container.name);
    let event = |reason: &str, message: String| {
        cx.api.record(EventRecord::warning(reference.clone(), reason, message));
    };
    let config = match container_config(cx, inputs).await {
        Ok(config) => config,
        Err(error) => {
            event("Failed", format!("Error: {}", error.message));
            return Err(error);
        }
    };
    let log = cx.config.log_dir(&pod_ref(inputs.pod)).join(&config.log_path);
    let id = match cx.runtime.create_container(sandbox, config).await {
        Ok(id) => id,
        Err(error) => {
            event("Failed", format!("Error: {error}"));
            return failure("CreateContainerError", error.to_string());
        }
    };
    cx.api.record(EventRecord::normal(reference.clone(), "Created", "Container created"));
    if let Err(error) = cx.runtime.start_container(&id).await {
        event("Failed", format!("Error: {error}"));
        return failure("RunContainerError", error.to_string());
    }
    cx.api.record(EventRecord::normal(reference, "Started", "Container started"));
    link_log(cx, inputs, &id, &log);
    Ok(id)
}

/// The link by which log collectors find a container's log.
fn link_log(cx: &NodeContext, inputs: &ContainerInputs<'_>, id: &str, log: &Path) {
    let pod = pod_ref(inputs.pod);
    let name = format!("{}_{}_{}-{id}.log", pod.name, pod.namespace, inputs.container.name);
    let dir = &cx.config.container_log_dir;
    let linked = std::fs::create_dir_all(dir).and_then(|()| std::os::unix::fs::symlink(log, dir.join(name)));
    if let Err(error) = linked {
        tracing::warn!(%error, container = id, "cannot link the container's log");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_namespaces_are_those_of_the_pod_s_handler() {
        let handler = |name: &str, user_namespaces| RuntimeHandler {
            name: name.to_owned(),
            user_namespaces,
            ..RuntimeHandler::default()
        };
        let known = [handler("", true), handler("runc", true), handler("kata", false)];
        let of = |handlers: &[RuntimeHandler], wanted| {
            check_user_namespaces(handlers, wanted).err().unwrap_or_else(|| "-".to_owned())
        };
        let shown = [of(&known, ""), of(&known, "runc"), of(&known, "kata"), of(&known, "x"), of(&[], "")];
        expect_test::expect![[r#"
            -
            -
            can't set `spec.hostUsers: false`, RuntimeClass handler "kata" does not support user namespaces
            can't set `spec.hostUsers: false`, RuntimeClass handler "x" does not support user namespaces: the handler "x" is not known
            can't set `spec.hostUsers: false`, runtime does not support user namespaces"#]]
        .assert_eq(&shown.join("\n"));
    }
}
