//! Which pods may use an image that is here: what each was pulled with. Upstream's `images/pullmanager` with its default policy,
//! `NeverVerifyPreloadedImages`.
//!
//! Invariants: an image that a kubelet of this node has pulled is for pods that have a credential it was pulled with, and for all if that
//! was none or the node's own; a pull is on disk before it begins, so that no image comes unnoticed; a record that cannot be read
//! grants nothing; an image without a record was loaded by an administrator and is for all. A record goes with its image, and the
//! credentials in it are bounded.

mod files;
#[cfg(test)]
mod tests;

use super::images::{canonical, repository};
use crate::keyring::{Credential, CredentialSource, ObjectName};
use files::{Files, Record};
use jiff::Timestamp;
use kaji_containers::{Image, RegistryAuth, RuntimeError};
use kaji_meta::{Clock, text::hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Secrets, and service accounts, of one repository of an image.
const MOST_SOURCES: usize = 100;

/// What the records say of an image that is here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// Any pod may use it.
    Free,
    /// A pod that has one of these credentials may use it.
    With(PulledWith),
    /// A pod has to pull it.
    AfterPull,
}

/// What an image was pulled with from one repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PulledWith {
    /// No credentials, or the node's own.
    node_pods_accessible: bool,
    kubernetes_secrets: Vec<PullSecret>,
    kubernetes_service_accounts: Vec<ObjectName>,
}

/// A credential of a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PullSecret {
    #[serde(flatten)]
    secret: ObjectName,
    credential_hash: String,
}

impl PullSecret {
    fn of(credential: &Credential) -> Option<PullSecret> {
        let CredentialSource::Secret(secret) = &credential.source else { return None };
        Some(PullSecret { secret: secret.clone(), credential_hash: hash(&credential.auth) })
    }
}

/// Of a credential, in its place.
fn hash(auth: &RegistryAuth) -> String {
    let mut digest = Sha256::new();
    for part in [&auth.username, &auth.password, &auth.auth, &auth.identity_token, &auth.registry_token] {
        // Lengths keep the parts apart.
        digest.update(part.len().to_le_bytes());
        digest.update(part.as_bytes());
    }
    hex(&digest.finalize())
}

/// Adds one that is not there, in place of the oldest if there are too many.
fn push<T>(list: &mut Vec<T>, new: T) {
    if list.len() >= MOST_SOURCES {
        list.remove(0);
    }
    list.push(new);
}

impl PulledWith {
    fn of(credential: Option<&Credential>) -> PulledWith {
        let source = credential.map(|credential| &credential.source);
        let account = match source {
            Some(CredentialSource::ServiceAccount(account)) => Some(account.clone()),
            _ => None,
        };
        PulledWith {
            node_pods_accessible: matches!(source, None | Some(CredentialSource::Node)),
            kubernetes_secrets: credential.and_then(PullSecret::of).into_iter().collect(),
            kubernetes_service_accounts: account.into_iter().collect(),
        }
    }

    fn is_empty(&self) -> bool {
        !self.node_pods_accessible
            && self.kubernetes_secrets.is_empty()
            && self.kubernetes_service_accounts.is_empty()
    }

    /// Adds what another pull was made with. Whether that is new.
    fn add(&mut self, new: PulledWith) -> bool {
        if self.node_pods_accessible {
            return false;
        }
        if new.node_pods_accessible {
            *self = new;
            return true;
        }
        let before = self.clone();
        for own in new.kubernetes_secrets {
            match self.kubernetes_secrets.iter_mut().find(|known| known.secret == own.secret) {
                Some(known) => *known = own,
                None => push(&mut self.kubernetes_secrets, own),
            }
        }
        for account in new.kubernetes_service_accounts {
            if !self.kubernetes_service_accounts.contains(&account) {
                push(&mut self.kubernetes_service_accounts, account);
            }
        }
        *self != before
    }

    /// Whether these credentials are among those. One of a secret that is known by its name or its content only has to be added.
    fn allows(&self, credentials: &[Credential]) -> Option<PulledWith> {
        for own in credentials.iter().filter_map(PullSecret::of) {
            let same = |known: &PullSecret| {
                let same_object = !own.secret.uid.is_empty() && known.secret == own.secret;
                same_object || known.credential_hash == own.credential_hash
            };
            if self.kubernetes_secrets.iter().any(same) {
                return Some(PulledWith { kubernetes_secrets: vec![own], ..PulledWith::default() });
            }
        }
        let account = credentials.iter().find_map(|credential| match &credential.source {
            CredentialSource::ServiceAccount(account) => Some(account),
            CredentialSource::Node | CredentialSource::Secret(_) => None,
        })?;
        self.kubernetes_service_accounts.contains(account).then(PulledWith::default)
    }
}

/// Pulls of one image that run, or of which the outcome is not known.
#[derive(Debug, Default)]
struct Intent {
    pulls: usize,
    /// It stays on disk when no pull runs: the image may have come.
    lasting: bool,
}

struct Inner {
    files: Files,
    clock: Arc<dyn Clock>,
    /// By the names of their files.
    intents: Mutex<BTreeMap<String, Intent>>,
    /// Held while files are changed.
    changes: Mutex<()>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of what these locks protect is complete before anything can panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    /// Whether a pull has begun that may have brought the image.
    fn is_pulled(&self, image: &str, found: &Image) -> bool {
        let intents = lock(&self.intents);
        let named = [image].into_iter().chain(found.names());
        named.map(|name| files::name(&canonical(name))).any(|file| intents.contains_key(&file))
    }

    fn write_intent(&self, image: &str) -> io::Result<()> {
        let _changes = lock(&self.changes);
        self.files.write_intent(image)
    }

    fn add(&self, image_id: &str, repository: &str, with: PulledWith) -> io::Result<()> {
        let _changes = lock(&self.changes);
        let now = self.clock.now();
        let found = self.files.record(image_id).unwrap_or_else(|error| {
            tracing::warn!(%error, "a record of image pulls that cannot be read is replaced");
            None
        });
        let mut record = found.unwrap_or_else(|| Record::new(image_id, now));
        record.add(repository, with);
        // Also of one that says nothing new: it is about an image that has come since, perhaps, images were listed for `prune`.
        record.last_updated_time = now;
        self.files.write_record(&record)
    }

    fn prune(&self, kept: &BTreeSet<String>, named: &BTreeSet<String>, listed: Timestamp) {
        let _changes = lock(&self.changes);
        self.files.sweep(kept, listed);
        lock(&self.intents).retain(|file, intent| {
            let stays = intent.pulls > 0 || named.contains(file);
            if !stays {
                self.files.remove_intent(file);
            }
            stays
        });
    }
}

async fn add(inner: &Arc<Inner>, image: &str, found: &Image, with: PulledWith) -> io::Result<()> {
    let (inner, id, repository) = (inner.clone(), found.id.clone(), repository(image));
    let added = tokio::task::spawn_blocking(move || inner.add(&id, &repository, with)).await;
    added.map_err(io::Error::other)?
}

/// The records of a node.
pub struct PullRecords {
    inner: Arc<Inner>,
}

impl PullRecords {
    /// Those in a kubelet's directory.
    #[must_use]
    pub fn new(root: &Path, clock: Arc<dyn Clock>) -> PullRecords {
        let files = Files::new(root);
        let of = |file: String| (file, Intent { pulls: 0, lasting: true });
        let intents = Mutex::new(files.intents().into_iter().map(of).collect());
        PullRecords { inner: Arc::new(Inner { files, clock, intents, changes: Mutex::default() }) }
    }

    /// Which pods may use an image that is here. `image` is its name with a tag or a digest, as the pod has it.
    #[must_use]
    pub fn access(&self, image: &str, found: &Image) -> Access {
        let record = match self.inner.files.record(&found.id) {
            Ok(record) => record,
            Err(error) => {
                tracing::error!(%error, image, "the record of image pulls cannot be read");
                return Access::AfterPull;
            }
        };
        let Some(mut record) = record else {
            let pulled = self.inner.is_pulled(image, found);
            return if pulled { Access::AfterPull } else { Access::Free };
        };
        match record.credential_mapping.remove(&repository(image)) {
            Some(with) if with.node_pods_accessible => Access::Free,
            Some(with) if !with.is_empty() => Access::With(with),
            _ => Access::AfterPull,
        }
    }

    /// Whether a pod with these credentials may use an image that was pulled with those.
    pub async fn allows(
        &self,
        image: &str,
        found: &Image,
        with: &PulledWith,
        credentials: &[Credential],
    ) -> bool {
        let Some(new) = with.allows(credentials) else { return false };
        if with.clone().add(new.clone())
            && let Err(error) = add(&self.inner, image, found, new).await
        {
            tracing::error!(%error, image, "the record of image pulls cannot be written");
        }
        true
    }

    /// Notes that an image is about to be pulled.
    ///
    /// # Errors
    /// When that cannot be written.
    pub async fn begin(&self, image: &str) -> io::Result<Pull> {
        let name = canonical(image);
        let file = files::name(&name);
        lock(&self.inner.intents).entry(file.clone()).or_default().pulls += 1;
        let pull =
            Pull { inner: self.inner.clone(), file, requested: false, unanswered: false, recorded: false };
        let inner = self.inner.clone();
        let written = tokio::task::spawn_blocking(move || inner.write_intent(&name)).await;
        written.map_err(io::Error::other)??;
        Ok(pull)
    }

    /// Removes what is about images that are not here any more; `listed` is from before they were listed.
    pub async fn prune(&self, images: &[Image], listed: Timestamp) {
        let kept: BTreeSet<String> = images.iter().map(|image| files::name(&image.id)).collect();
        let named = images.iter().flat_map(Image::names).map(|name| files::name(&canonical(name)));
        let (named, inner) = (named.collect(), self.inner.clone());
        let pruned = tokio::task::spawn_blocking(move || inner.prune(&kept, &named, listed)).await;
        if let Err(error) = pruned {
            tracing::error!(%error, "the records of image pulls were not cleaned up");
        }
    }
}

/// A pull that runs. Dropped, it was given up, or has failed if the runtime said so.
pub struct Pull {
    inner: Arc<Inner>,
    /// Of the intent.
    file: String,
    /// The runtime carries out what it was asked for even if nothing waits for the answer.
    requested: bool,
    unanswered: bool,
    recorded: bool,
}

impl Pull {
    /// The runtime is about to be asked: from here on the image may come.
    pub fn request(&mut self) {
        self.requested = true;
    }

    /// The runtime has not pulled the image; without its answer it may have.
    pub fn fail(&mut self, error: &RuntimeError) {
        self.requested = false;
        self.unanswered |= matches!(error, RuntimeError::DeadlineExceeded(_) | RuntimeError::Unavailable(_));
    }

    /// Notes what the image was pulled with. If that fails, the image counts as pulled with unknown credentials.
    pub async fn record(mut self, image: &str, found: &Image, credential: Option<&Credential>) {
        match add(&self.inner, image, found, PulledWith::of(credential)).await {
            Ok(()) => self.recorded = true,
            Err(error) => tracing::error!(%error, image, "the record of image pulls cannot be written"),
        }
    }
}

impl Drop for Pull {
    fn drop(&mut self) {
        let mut intents = lock(&self.inner.intents);
        let Some(intent) = intents.get_mut(&self.file) else { return };
        intent.pulls = intent.pulls.saturating_sub(1);
        intent.lasting = !self.recorded && (intent.lasting || self.requested || self.unanswered);
        let over = intent.pulls == 0 && !intent.lasting;
        if over {
            intents.remove(&self.file);
            self.inner.files.remove_intent(&self.file);
        }
    }
}
