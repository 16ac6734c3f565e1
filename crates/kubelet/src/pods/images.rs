//! Whether the images of containers and volumes are here, and pulling them. Upstream's `images/image_manager.go`.
//!
//! Invariants: a pull that failed is not tried again before its delay is over; an image that is here is used only by pods that its
//! records allow ([`super::pull_records`]), and the others do not see that it is here.

use super::backoff::Backoff;
use super::context::NodeContext;
use super::core::{Container, Pod};
use super::model;
use super::pull_records::Access;
use super::sources::KeyedKind;
use crate::keyring::{Credential, CredentialSource, Keyring, ObjectName};
use crate::metrics::families;
use kaji_containers::{Image, ImageSpec, PodSandboxConfig, PullProgress, PullRequest, RuntimeError};
use kaji_meta::duration;
use kaji_runtime::EventRecord;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::watch;

/// Between lines of the log about a pull that takes long.
const LOG_PULL: Duration = Duration::from_secs(30);

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
    let mut known = None;
    if needed.policy != "Always" {
        let found = cx.images.image_status(&spec).await.or_else(|error| {
            let message = format!("Failed to inspect image \"{requested}\": {error}");
            warn("InspectFailed", &message);
            failure("ImageInspectError", message)
        })?;
        if let Some(found) = found {
            let allowed = allowed(cx, pod, &spec.image, &found, &mut known).await;
            if allowed.or_else(|error| failure("ErrImagePull", error.to_string()))? {
                let message = format!(
                    "Container image \"{requested}\" already present on machine and can be accessed by the pod"
                );
                cx.api.record(EventRecord::normal(needed.reference.clone(), "Pulled", message));
                return Ok((found, spec));
            }
        }
        if needed.policy == "Never" {
            let message = format!("Container image \"{requested}\" is not present with pull policy of Never");
            warn("ErrImageNeverPull", &message);
            return failure("ErrImageNeverPull", message);
        }
    }
    pull_with_delay(cx, pod, (needed, &spec), sandbox, backoff, known).await.map(|found| (found, spec))
}

/// Whether a pod may use an image that is here. The pod's credentials are looked up for it if need be, and kept in `known`.
async fn allowed(
    cx: &NodeContext,
    pod: &Pod,
    image: &str,
    found: &Image,
    known: &mut Option<Vec<Credential>>,
) -> Result<bool, RuntimeError> {
    match cx.pull_records.access(image, found) {
        Access::Free => Ok(true),
        Access::AfterPull => Ok(false),
        Access::With(with) => {
            let own = known.insert(credentials(cx, pod, image).await?);
            Ok(cx.pull_records.allows(image, found, &with, own).await)
        }
    }
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

/// Pulls an image, unless its last pull failed too short a time ago.
async fn pull_with_delay(
    cx: &NodeContext,
    pod: &Pod,
    (needed, spec): (&Needed<'_>, &ImageSpec),
    sandbox: &PodSandboxConfig,
    backoff: &mut Backoff,
    known: Option<Vec<Credential>>,
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
    let pulled = Box::pin(pull(cx, pod, spec, sandbox, known)).await;
    let took = cx.clock.now().duration_since(now);
    match pulled {
        Ok(found) => {
            let size = [("image_size_in_bytes", families::image_size(found.size))];
            let seconds = std::time::Duration::try_from(took).unwrap_or_default();
            cx.metrics.observe(&families::PULL_TIMES, &size, seconds);
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
    duration::format(std::time::Duration::from_secs(seconds))
}

/// Pulls with each credential that fits, or without any. `known` are the pod's credentials, if they were looked up already.
async fn pull(
    cx: &NodeContext,
    pod: &Pod,
    spec: &ImageSpec,
    sandbox: &PodSandboxConfig,
    known: Option<Vec<Credential>>,
) -> Result<Image, RuntimeError> {
    let image = &spec.image;
    let known = match known {
        Some(known) => known,
        None => credentials(cx, pod, image).await?,
    };
    let mut tries: Vec<Option<Credential>> = known.into_iter().map(Some).collect();
    if tries.is_empty() {
        tries.push(None);
    }
    let mut noted = cx.pull_records.begin(image).await.map_err(|error| {
        let requested = &spec.user_specified;
        let what = format!("Failed to record image pull intent for container image \"{requested}\"");
        RuntimeError::Internal(format!("{what}: failed to record image pull intent: {error}"))
    })?;
    let mut last = RuntimeError::Internal("no pull was tried".to_owned());
    for credential in tries {
        let (progress, watched) = watch::channel(PullProgress::default());
        let request = PullRequest {
            image: spec.clone(),
            auth: credential.as_ref().map(|credential| credential.auth.clone()),
            sandbox: Some(sandbox.clone()),
            progress: Some(progress),
        };
        noted.request();
        let pulled = logged(image, watched, cx.images.pull_image(request));
        match pulled.await {
            Ok(_) => {
                let found = cx.images.image_status(spec).await?.ok_or_else(|| {
                    RuntimeError::ImageNotPresent(format!("image {image} is absent after its pull"))
                })?;
                noted.record(image, &found, credential.as_ref()).await;
                return Ok(found);
            }
            Err(error) => {
                noted.fail(&error);
                last = error;
            }
        }
    }
    Err(last)
}

/// Drives a pull, and logs how far it is while it takes long.
async fn logged<T>(image: &str, progress: watch::Receiver<PullProgress>, pull: impl Future<Output = T>) -> T {
    let mut pull = std::pin::pin!(pull);
    loop {
        tokio::select! {
            biased;
            outcome = &mut pull => return outcome,
            () = tokio::time::sleep(LOG_PULL) => {
                let PullProgress { received, total, unpacked_layers, layers } = *progress.borrow();
                tracing::info!(image, received, total, unpacked_layers, layers, "an image is being pulled");
            }
        }
    }
}

/// A reference with its registry: `docker.io/library/nginx:1`; with its digest alone where it has one, since a tag has no meaning then.
pub(super) fn canonical(image: &str) -> String {
    let repository = repository(image);
    let tag = image.rsplit_once(':').map(|(_, tag)| tag).filter(|tag| !tag.contains('/'));
    match (image.split_once('@'), tag) {
        (Some((_, digest)), _) => format!("{repository}@{digest}"),
        (None, Some(tag)) => format!("{repository}:{tag}"),
        (None, None) => repository,
    }
}

/// A reference's registry and path: `docker.io/library/nginx`.
pub(super) fn repository(image: &str) -> String {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    let name = match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    };
    match name.split_once('/') {
        Some(("index.docker.io", path)) => format!("docker.io/{path}"),
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

/// The credentials for an image: of the pod's pull secrets, then of the node's plug-ins, the most specific of either first.
///
/// # Errors
/// A secret that is malformed.
async fn credentials(cx: &NodeContext, pod: &Pod, image: &str) -> Result<Vec<Credential>, RuntimeError> {
    let (mut keyring, mut failed) = (Keyring::default(), vec![]);
    for reference in model::spec(pod).image_pull_secrets.iter().flatten() {
        let (namespace, name) = (model::namespace(pod), &reference.name);
        match cx.sources.keyed(KeyedKind::Secret, namespace, name).await {
            Ok(Some(secret)) => {
                let (namespace, name, uid) = (namespace.to_owned(), name.clone(), secret.uid.clone());
                let source = CredentialSource::Secret(ObjectName { namespace, name, uid });
                keyring
                    .add_secret(&secret.data, &source)
                    .map_err(|error| RuntimeError::InvalidArgument(error.to_string()))?;
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
    let repository = repository(image);
    let mut found = keyring.lookup(&repository);
    found.extend(cx.credentials.lookup(&*cx.sources, pod, &repository).await);
    Ok(found)
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
    fn credentials_are_looked_up_by_repositories() {
        let names = ["nginx", "team/app:1", "index.docker.io/a/b@sha256:1", "r.io:5000/x/y:2", "localhost/a"];
        let wanted = [
            "docker.io/library/nginx",
            "docker.io/team/app",
            "docker.io/a/b",
            "r.io:5000/x/y",
            "localhost/a",
        ];
        assert_eq!(names.map(repository), wanted);
    }

    #[test]
    fn names_of_one_image_are_one() {
        let names = [
            "nginx:1",
            "docker.io/library/nginx:1",
            "r.io:5000/x/y:2@sha256:1",
            "r.io:5000/x/y@sha256:1",
            "r.io:5000/x",
        ];
        let wanted = [
            "docker.io/library/nginx:1",
            "docker.io/library/nginx:1",
            "r.io:5000/x/y@sha256:1",
            "r.io:5000/x/y@sha256:1",
            "r.io:5000/x",
        ];
        assert_eq!(names.map(canonical), wanted);
    }
}
