//! The environment of a container. Upstream's `makeEnvironmentVariables` and `envvars.FromServices`.
//!
//! Invariants: a name appears once; what the container sets wins over `envFrom`, which wins over services. Variables are in the
//! order in which the container has them, those of `envFrom` before them and those of services last.

use super::core::{Container, FileKeySelector, ObjectFieldSelector, Pod, ResourceFieldSelector};
use super::model;
use super::sources::{KeyedKind, Sources, required};
use super::{downward, env_file, expansion};
use kaji_runtime::objects::Service;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::PathBuf;

/// A file of a volume.
#[derive(Debug)]
pub struct VolumeFile {
    /// Where the node has it.
    pub path: PathBuf,
    /// What is in it.
    pub text: std::io::Result<String>,
}

/// Reads a file of one of a pod's volumes, by the volume's name and the path within it. `None` for a volume that is absent.
pub type ReadVolumeFile<'a> = dyn Fn(&str, &str) -> Option<VolumeFile> + Sync + 'a;

/// What is known of pod and node when a container is configured.
pub struct EnvironmentInputs<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// The container.
    pub container: &'a Container,
    /// The pod's addresses.
    pub pod_addresses: &'a [IpAddr],
    /// The node's addresses.
    pub host_addresses: &'a [IpAddr],
    /// All services.
    pub services: &'a [std::sync::Arc<Service>],
    /// What the node can hand out, for limits that are not set.
    pub allocatable: &'a BTreeMap<String, i64>,
    /// The files of the pod's volumes. `None` where volumes have none, on simulated nodes.
    pub volume_files: Option<&'a ReadVolumeFile<'a>>,
}

/// Variables in the order in which their names came, with the values that came last.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    known: HashMap<String, usize>,
}

impl Variables {
    fn set(&mut self, name: String, value: String) {
        match self.known.get(&name) {
            Some(at) => self.list[*at].1 = value,
            None => {
                self.known.insert(name.clone(), self.list.len());
                self.list.push((name, value));
            }
        }
    }

    fn get(&self, name: &str) -> Option<&String> {
        self.known.get(name).map(|at| &self.list[*at].1)
    }
}

/// The variables of a container, in order; and the keys of `envFrom` that can name none.
///
/// # Errors
/// The message of `CreateContainerConfigError`.
pub async fn make(
    inputs: &EnvironmentInputs<'_>,
    sources: &dyn Sources,
) -> Result<(Vec<(String, String)>, Vec<String>), String> {
    let mut variables = Variables::default();
    let mut invalid = vec![];
    from_objects(inputs, sources, &mut variables, &mut invalid).await?;
    let services = service_variables(inputs);
    for variable in inputs.container.env.iter().flatten() {
        let value = if let Some(source) = &variable.value_from {
            if let Some(selector) = &source.field_ref {
                field(inputs, selector)?
            } else if let Some(selector) = &source.resource_field_ref {
                resource(inputs, selector)?
            } else if let Some(r) = &source.config_map_key_ref {
                match key_value(inputs, sources, KeyedKind::ConfigMap, (&r.name, &r.key, r.optional)).await? {
                    Some(value) => value,
                    None => continue,
                }
            } else if let Some(r) = &source.secret_key_ref {
                match key_value(inputs, sources, KeyedKind::Secret, (&r.name, &r.key, r.optional)).await? {
                    Some(value) => value,
                    None => continue,
                }
            } else if let Some(r) = &source.file_key_ref {
                match from_file(inputs, r)? {
                    Some(value) => value,
                    None => continue,
                }
            } else {
                String::new()
            }
        } else {
            let known = |name: &str| variables.get(name).or_else(|| services.get(name)).cloned();
            expansion::expand(variable.value.as_deref().unwrap_or_default(), known)
        };
        variables.set(variable.name.clone(), value);
    }
    let of_services: Vec<_> =
        services.into_iter().filter(|(name, _)| !variables.known.contains_key(name)).collect();
    variables.list.extend(of_services);
    Ok((variables.list, invalid))
}

async fn from_objects(
    inputs: &EnvironmentInputs<'_>,
    sources: &dyn Sources,
    variables: &mut Variables,
    invalid: &mut Vec<String>,
) -> Result<(), String> {
    let namespace = model::namespace(inputs.pod);
    for source in inputs.container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        let (kind, name, optional) = match (&source.config_map_ref, &source.secret_ref) {
            (Some(r), _) => (KeyedKind::ConfigMap, &r.name, r.optional),
            (None, Some(r)) => (KeyedKind::Secret, &r.name, r.optional),
            (None, None) => continue,
        };
        let found = required(sources, kind, namespace, name, optional.unwrap_or(false)).await?;
        let Some(found) = found else { continue };
        for (name, value) in &found.data {
            let value = String::from_utf8_lossy(value).into_owned();
            let name = format!("{prefix}{name}");
            if name.is_empty()
                || name.contains('=')
                || name.chars().any(|c| !c.is_ascii_graphic() && c != ' ')
            {
                invalid.push(name);
            } else {
                variables.set(name, value);
            }
        }
    }
    Ok(())
}

/// The value of one key; `None` for one that is absent and optional.
async fn key_value(
    inputs: &EnvironmentInputs<'_>,
    sources: &dyn Sources,
    kind: KeyedKind,
    (name, key, optional): (&str, &str, Option<bool>),
) -> Result<Option<String>, String> {
    let namespace = model::namespace(inputs.pod);
    let optional = optional.unwrap_or(false);
    let Some(found) = required(sources, kind, namespace, name, optional).await? else { return Ok(None) };
    match found.data.get(key) {
        Some(value) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
        None if optional => Ok(None),
        None => Err(format!("couldn't find key {key} in {} {namespace}/{name}", kind.name())),
    }
}

/// The value of a variable in a file of a volume; `None` for one that is absent or empty, and optional.
fn from_file(inputs: &EnvironmentInputs<'_>, from: &FileKeySelector) -> Result<Option<String>, String> {
    let (volume, key) = (&from.volume_name, &from.key);
    let Some(read) = inputs.volume_files else {
        return Err("environment variables from files (fileKeyRef) are not supported by this node".into());
    };
    let file = read(volume, &from.path)
        .ok_or_else(|| format!("cannot find the volume \"{volume}\" referenced by FileKeyRef"))?;
    let failed = |error: &dyn std::fmt::Display| {
        let (pod, path) = (model::display(inputs.pod), file.path.display());
        tracing::warn!(%pod, %path, %error, "environment variables cannot be read from a file");
        "couldn't parse env file".to_owned()
    };
    let text = file.text.as_ref().map_err(|error| failed(error))?;
    let value = env_file::value(text, key).map_err(|error| failed(&error))?;
    if !value.is_empty() {
        return Ok(Some(value));
    }
    if from.optional.unwrap_or(false) {
        return Ok(None);
    }
    Err(format!("environment variable key \"{key}\" not found in file \"{}\"", file.path.display()))
}

fn field(inputs: &EnvironmentInputs<'_>, selector: &ObjectFieldSelector) -> Result<String, String> {
    let join = |list: &[IpAddr]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    let first = |list: &[IpAddr]| list.first().map(ToString::to_string).unwrap_or_default();
    Ok(match selector.field_path.as_str() {
        "spec.nodeName" => model::spec(inputs.pod).node_name.clone().unwrap_or_default(),
        "spec.serviceAccountName" => model::spec(inputs.pod).service_account_name.clone().unwrap_or_default(),
        "status.hostIP" => first(inputs.host_addresses),
        "status.hostIPs" => join(inputs.host_addresses),
        "status.podIP" => first(inputs.pod_addresses),
        "status.podIPs" => join(inputs.pod_addresses),
        path => downward::field(inputs.pod, path)?,
    })
}

fn resource(inputs: &EnvironmentInputs<'_>, selector: &ResourceFieldSelector) -> Result<String, String> {
    let name = selector.container_name.as_deref().filter(|n| !n.is_empty());
    match name {
        None => downward::resource(inputs.container, selector, inputs.allocatable),
        Some(name) => {
            let found = model::find_container(inputs.pod, name);
            let (container, _) = found.ok_or_else(|| format!("container {name} not found"))?;
            downward::resource(&container, selector, inputs.allocatable)
        }
    }
}

/// Variables of the services of the pod's namespace, and always of the API server's.
fn service_variables(inputs: &EnvironmentInputs<'_>) -> BTreeMap<String, String> {
    let links = model::spec(inputs.pod).enable_service_links.unwrap_or(true);
    let namespace = model::namespace(inputs.pod);
    let mut variables = BTreeMap::new();
    for service in inputs.services {
        let meta = &service.metadata;
        let api_server = meta.namespace == "default" && meta.name == "kubernetes";
        if !(api_server || links && meta.namespace == namespace) {
            continue;
        }
        let address = service.spec.cluster_ip.as_str();
        let Some(first) = service.spec.ports.first() else { continue };
        if address.is_empty() || address == "None" {
            continue;
        }
        let prefix = meta.name.to_uppercase().replace('-', "_");
        let host = if address.contains(':') { format!("[{address}]") } else { address.to_owned() };
        let mut put = |name: String, value: String| {
            variables.insert(name, value);
        };
        put(format!("{prefix}_SERVICE_HOST"), address.to_owned());
        put(format!("{prefix}_SERVICE_PORT"), first.port.to_string());
        for port in &service.spec.ports {
            if !port.name.is_empty() {
                let name = port.name.to_uppercase().replace('-', "_");
                put(format!("{prefix}_SERVICE_PORT_{name}"), port.port.to_string());
            }
        }
        let url = |p: &kaji_runtime::objects::ServicePort| {
            let protocol = if p.protocol.is_empty() { "TCP" } else { p.protocol.as_str() };
            (protocol.to_owned(), format!("{}://{host}:{}", protocol.to_lowercase(), p.port))
        };
        put(format!("{prefix}_PORT"), url(first).1);
        for port in &service.spec.ports {
            let (protocol, url) = url(port);
            let base = format!("{prefix}_PORT_{}_{protocol}", port.port);
            put(base.clone(), url);
            put(format!("{base}_PROTO"), protocol.to_lowercase());
            put(format!("{base}_PORT"), port.port.to_string());
            put(format!("{base}_ADDR"), address.to_owned());
        }
    }
    variables
}
