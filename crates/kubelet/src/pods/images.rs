//! Whether the images of containers and volumes are here, and pulling them. Upstream's `images/image_manager.go`.
//!
//! Invariant: a pull that failed is not tried again before its delay is over.

use super::backoff::{Backoff, go_duration};
use super::context::NodeContext;
use super::core::{Container, Pod};
use super::model;
use super::sources::KeyedKind;
use base64::{Engine, engine::general_purpose::STANDARD};
use kaji_containers::{Image, ImageSpec, PodSandboxConfig, PullRequest, RegistryAuth, RuntimeError};
use kaji_runtime::EventRecord;
use serde_json::Value;
use std::collections::BTreeMap;

/// Why a container cannot start: reason and message of its waiting state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartFailure {
    /// `ErrImagePull`, `CreateContainerError`, …
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// A failure.
pub fn failure<T>(reason: &'static str, message: impl Into<String>) -> Result<T, StartFailure> {
    Err(StartFailure { reason, message: message.into() })
}

/// The image's reference with the default tag, `latest`.
///
/// # Errors
/// For text that is no reference.
pub fn with_default_tag(image: &str) -> Result<String, String> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    let last = name.rsplit('/').next().unwrap_or(name);
    let (repository, tag) = match last.rsplit_once(':') {
        Some((_, tag)) => (&name[..name.len() - tag.len() - 1], Some(tag)),
        None => (name, None),
    };
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '.' | '_' | '-');
    let host = |part: &str| {
        part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']'))
            && (part.contains(['.', ':']) || part == "localhost")
    };
    let parts: Vec<&str> = repository.split('/').collect();
    let named = parts.iter().enumerate().all(|(index, part)| {
        let plain = part.chars().all(lower) && part.starts_with(|c: char| c.is_ascii_alphanumeric());
        !part.is_empty() && (plain || index == 0 && parts.len() > 1 && host(part))
    });
    let tagged = tag.is_none_or(|t| {
        let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        !t.is_empty() && t.len() <= 128 && t.chars().all(word) && !t.starts_with(['.', '-'])
    });
    let digested = digest.is_none_or(|d| {
        d.split_once(':')
            .is_some_and(|(_, hex)| hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit()))
    });
    if !(named && tagged && digested) {
        return Err(format!("couldn't parse image name \"{image}\": invalid reference format"));
    }
    Ok(if tag.is_none() && digest.is_none() { format!("{image}:latest") } else { image.to_owned() })
}

/// An image that a pod needs: a container's, or a volume's.
#[derive(Debug, Clone)]
pub struct Needed<'a> {
    /// As the pod names it.
    pub image: &'a str,
    /// `Always`, `IfNotPresent` or `Never`; the second if it is empty.
    pub policy: &'a str,
    /// What events about it are about.
    pub reference: Value,
}

impl<'a> Needed<'a> {
    /// A container's.
    #[must_use]
    pub fn by_container(pod: &Pod, container: &'a Container) -> Needed<'a> {
        Needed {
            image: container.image.as_deref().unwrap_or_default(),
            policy: container.image_pull_policy.as_deref().unwrap_or_default(),
            reference: model::container_reference(pod, &container.name),
        }
    }

    /// Those of the volumes that a container mounts.
    #[must_use]
    pub fn by_volumes(pod: &'a Pod, container: &Container) -> Vec<Needed<'a>> {
        let mounted = |name: &str| container.volume_mounts.iter().flatten().any(|m| m.name == name);
        let volumes = model::spec(pod).volumes.iter().flatten().filter(|volume| mounted(&volume.name));
        let needed = volumes.filter_map(|volume| volume.image.as_ref()).map(|source| Needed {
            image: source.reference.as_deref().unwrap_or_default(),
            policy: source.pull_policy.as_deref().unwrap_or_default(),
            reference: model::reference(pod),
        });
        needed.collect()
    }

    /// Under which its delay is kept.
    #[must_use]
    pub fn backoff_key(&self) -> String {
        format!("image {}", self.image)
    }
}

/// Makes sure that an image is here. Answers it, and the reference that containers are created from.
///
/// # Errors
/// Reason and message of the waiting state.
async fn ensure(
    cx: &NodeContext,
    pod: &Pod,
    needed: &Needed<'_>,
    sandbox: &PodSandboxConfig,
    backoff: &mut Backoff,
) -> Result<(Image, ImageSpec), StartFailure> {
    let requested = needed.image;
    let warn = |reason: &str, message: &str| {
        cx.api.record(EventRecord::warning(needed.reference.clone(), reason, message));
    };
    let image = match with_default_tag(requested) {
        Ok(image) => image,
        Err(error) => {
            let message = format!("Failed to apply default image tag \"{requested}\": {error}");
            warn("InspectFailed", &message);
            return failure("InvalidImageName", message);
        }
    };
    let spec = ImageSpec {
        image,
        user_specified: requested.to_owned(),
        runtime_handler: sandbox.runtime_handler.clone(),
        annotations: Default::default(),
    };
    if needed.policy != "Always" {
        match cx.images.image_status(&spec).await {
            Err(error) => {
                let message = format!("Failed to inspect image \"{requested}\": {error}");
                warn("InspectFailed", &message);
                return failure("ImageInspectError", message);
            }
            Ok(Some(found)) => {
                let message = format!(
                    "Container image \"{requested}\" already present on machine and can be accessed by the pod"
                );
                cx.api.record(EventRecord::normal(needed.reference.clone(), "Pulled", message));
                return Ok((found, spec));
            }
            Ok(None) if needed.policy == "Never" => {
                let message =
                    format!("Container image \"{requested}\" is not present with pull policy of Never");
                warn("ErrImageNeverPull", &message);
                return failure("ErrImageNeverPull", message);
            }
            Ok(None) => {}
        }
    }
    pull_with_delay(cx, pod, (needed, &spec), sandbox, backoff).await.map(|found| (found, spec))
}

/// What a container is started from.
#[derive(Debug)]
pub struct ContainerImages {
    /// Its own image.
    pub image: Image,
    /// The reference that it is created from.
    pub spec: ImageSpec,
    /// The images of the volumes that it mounts, by the references in the pod.
    pub of_volumes: BTreeMap<String, ImageSpec>,
}

/// Makes sure that the images of a container and of the volumes that it mounts are here.
///
/// # Errors
/// Reason and message of the waiting state. An event about the container tells the reason.
pub async fn ensure_all(
    cx: &NodeContext,
    pod: &Pod,
    container: &Container,
    sandbox: &PodSandboxConfig,
    backoff: &mut Backoff,
) -> Result<ContainerImages, StartFailure> {
    let found = async {
        let mut of_volumes = BTreeMap::new();
        for needed in Needed::by_volumes(pod, container) {
            let (image, spec) = ensure(cx, pod, &needed, sandbox, backoff).await?;
            of_volumes.insert(needed.image.to_owned(), ImageSpec { image: image.id, ..spec });
        }
        let needed = Needed::by_container(pod, container);
        let (image, spec) = ensure(cx, pod, &needed, sandbox, backoff).await?;
        Ok(ContainerImages { image, spec, of_volumes })
    };
    found.await.inspect_err(|failed: &StartFailure| {
        let reference = model::container_reference(pod, &container.name);
        cx.api.record(EventRecord::warning(reference, "Failed", format!("Error: {}", failed.reason)));
    })
}

/// Pulls an image that is not here, unless its last pull failed too short a time ago.
async fn pull_with_delay(
    cx: &NodeContext,
    pod: &Pod,
    (needed, spec): (&Needed<'_>, &ImageSpec),
    sandbox: &PodSandboxConfig,
    backoff: &mut Backoff,
) -> Result<Image, StartFailure> {
    let requested = needed.image;
    let normal = |reason: &str, message: String| {
        cx.api.record(EventRecord::normal(needed.reference.clone(), reason, message));
    };
    let key = needed.backoff_key();
    let now = cx.clock.now();
    if backoff.waits(&key, now).is_some() {
        let message = format!("Back-off pulling image \"{requested}\"");
        normal("BackOff", message.clone());
        return failure("ImagePullBackOff", message);
    }
    normal("Pulling", format!("Pulling image \"{requested}\""));
    let pulled = pull(cx, pod, spec, sandbox).await;
    let took = cx.clock.now().duration_since(now);
    match pulled {
        Ok(found) => {
            backoff.reset(&key);
            let took = precise(took.as_millis());
            normal(
                "Pulled",
                format!(
                    "Successfully pulled image \"{requested}\" in {took} ({took} including waiting). Image size: {} bytes.",
                    found.size
                ),
            );
            Ok(found)
        }
        Err(error) => {
            let message = format!("Failed to pull image \"{requested}\": {error}");
            cx.api.record(EventRecord::warning(needed.reference.clone(), "Failed", message));
            let ended = cx.clock.now();
            backoff.next(&key, ended, ended);
            let reason = match error {
                RuntimeError::RegistryUnavailable(_) => "RegistryUnavailable",
                RuntimeError::SignatureValidationFailed(_) => "SignatureValidationFailed",
                _ => "ErrImagePull",
            };
            failure(reason, error.to_string())
        }
    }
}

/// `1.234s`
fn precise(millis: i128) -> String {
    if millis < 1000 {
        return format!("{millis}ms");
    }
    let seconds = u64::try_from(millis / 1000).unwrap_or(0);
    if seconds < 60 {
        let text = format!("{seconds}.{:03}", millis % 1000);
        return format!("{}s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    go_duration(std::time::Duration::from_secs(seconds))
}

/// Pulls with each credential that fits, and without any.
async fn pull(
    cx: &NodeContext,
    pod: &Pod,
    spec: &ImageSpec,
    sandbox: &PodSandboxConfig,
) -> Result<Image, RuntimeError> {
    let mut tries: Vec<Option<RegistryAuth>> =
        credentials(cx, pod, &spec.image).await.into_iter().map(Some).collect();
    if tries.is_empty() {
        tries.push(None);
    }
    let mut last = RuntimeError::Internal("no pull was tried".to_owned());
    for auth in tries {
        let request =
            PullRequest { image: spec.clone(), auth, sandbox: Some(sandbox.clone()), progress: None };
        match cx.images.pull_image(request).await {
            Ok(_) => {
                let found = cx.images.image_status(spec).await?;
                return found.ok_or_else(|| {
                    RuntimeError::ImageNotPresent(format!("image {} is absent after its pull", spec.image))
                });
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// The credentials of the pod's pull secrets for an image's registry, the most specific first.
async fn credentials(cx: &NodeContext, pod: &Pod, image: &str) -> Vec<RegistryAuth> {
    let mut found: Vec<(usize, RegistryAuth)> = vec![];
    let mut failed = vec![];
    for reference in model::spec(pod).image_pull_secrets.iter().flatten() {
        match cx.sources.keyed(KeyedKind::Secret, model::namespace(pod), &reference.name).await {
            Ok(Some(secret)) => {
                let data = |key: &str| secret.data.get(key).map(Vec::as_slice);
                let configuration = data(".dockerconfigjson").or_else(|| data(".dockercfg"));
                let value: Option<Value> = configuration.and_then(|c| serde_json::from_slice(c).ok());
                let Some(value) = value else { continue };
                let entries = value.get("auths").unwrap_or(&value).as_object().cloned().unwrap_or_default();
                for (registry, entry) in entries {
                    if let Some(rank) = registry_matches(&registry, image) {
                        found.push((rank, auth(&entry)));
                    }
                }
            }
            Ok(None) | Err(_) => failed.push(reference.name.clone()),
        }
    }
    if !failed.is_empty() {
        cx.api.record(EventRecord::warning(
            model::reference(pod),
            "FailedToRetrieveImagePullSecret",
            format!(
                "Unable to retrieve some image pull secrets ({}); attempting to pull the image may not succeed.",
                failed.join(", ")
            ),
        ));
    }
    found.sort_by_key(|(rank, _)| std::cmp::Reverse(*rank));
    found.into_iter().map(|(_, auth)| auth).collect()
}

fn auth(entry: &Value) -> RegistryAuth {
    let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    let mut auth = RegistryAuth {
        username: text("username"),
        password: text("password"),
        auth: text("auth"),
        identity_token: text("identitytoken"),
        registry_token: text("registrytoken"),
    };
    let decoded = STANDARD.decode(auth.auth.trim()).ok().and_then(|b| String::from_utf8(b).ok());
    if let Some((user, password)) = decoded.as_deref().and_then(|d| d.split_once(':')) {
        user.clone_into(&mut auth.username);
        password.clone_into(&mut auth.password);
    }
    auth
}

/// Whether credentials for a registry, with `*` for parts of its name and maybe a path, are for an image. The length of the
/// path, by which the more specific goes first.
fn registry_matches(registry: &str, image: &str) -> Option<usize> {
    let registry = registry.trim_start_matches("https://").trim_start_matches("http://");
    let registry = registry.trim_end_matches('/');
    let (host, path) = registry.split_once('/').unwrap_or((registry, ""));
    let path = path.trim_start_matches("v1").trim_start_matches("v2").trim_start_matches('/');
    let (image_host, image_path) = match image.split_once('/') {
        Some((h, p)) if h.contains(['.', ':']) || h == "localhost" => (h, p),
        _ => ("index.docker.io", image),
    };
    let hub = |h: &str| matches!(h, "docker.io" | "index.docker.io" | "registry-1.docker.io");
    let (a, b): (Vec<&str>, Vec<&str>) = (host.split('.').collect(), image_host.split('.').collect());
    let part = |(p, text): (&&str, &&str)| match p.split_once('*') {
        Some((start, end)) => {
            text.len() >= start.len() + end.len() && text.starts_with(start) && text.ends_with(end)
        }
        None => p == text,
    };
    let same = hub(host) && hub(image_host) || a.len() == b.len() && a.iter().zip(&b).all(part);
    (same && image_path.starts_with(path)).then_some(path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_get_a_tag_and_wrong_ones_are_refused() {
        let shown = [
            "busybox",
            "a.io:5000/x/y",
            "a/b:1",
            "b@sha256:0123456789abcdef0123456789abcdef",
            "Upper",
            "",
            "a//b",
            "x:",
        ]
        .map(|i| with_default_tag(i).unwrap_or_else(|e| e));
        expect_test::expect![[r#"
            busybox:latest
            a.io:5000/x/y:latest
            a/b:1
            b@sha256:0123456789abcdef0123456789abcdef
            couldn't parse image name "Upper": invalid reference format
            couldn't parse image name "": invalid reference format
            couldn't parse image name "a//b": invalid reference format
            couldn't parse image name "x:": invalid reference format"#]]
        .assert_eq(&shown.join("\n"));
    }

    #[test]
    fn credentials_are_for_their_registry_only() {
        let cases = [
            ("https://index.docker.io/v1/", "busybox:1"),
            ("*.gcr.io", "eu.gcr.io/p/i:1"),
            ("*.gcr.io", "gcr.io/p/i:1"),
            ("quay.io/team", "quay.io/team/app:1"),
            ("quay.io/team", "quay.io/other/app:1"),
        ];
        let shown: Vec<_> = cases.iter().map(|(r, i)| registry_matches(r, i)).collect();
        assert_eq!(shown, [Some(0), Some(0), None, Some(4), None]);
    }
}
