//! The files of configMap, secret, downwardAPI and projected volumes.
//!
//! Invariant: paths are relative and have no `..`: validation says so, and it is checked again here.

use super::pod_certificates::PodCertificates;
use super::tokens::Tokens;
use crate::pods::context::NodeContext;
use crate::pods::core::{
    ClusterTrustBundleProjection, DownwardAPIVolumeFile, KeyToPath, Pod, PodCertificateProjection,
    ServiceAccountTokenProjection, Volume,
};
use crate::pods::sources::{KeyedKind, TokenRequest, required};
use crate::pods::{downward, model};
use std::collections::BTreeMap;

/// A file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ContentFile {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    /// Its owner, if not root.
    pub(super) user: Option<u32>,
}

/// Files by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) files: BTreeMap<String, ContentFile>,
}

impl Content {
    fn add(&mut self, path: &str, bytes: Vec<u8>, mode: u32, user: Option<u32>) -> Result<(), String> {
        let path = path.trim_end_matches('/');
        if path.is_empty() || path.starts_with('/') || path.split('/').any(|p| p == ".." || p.is_empty()) {
            return Err(format!("invalid path: {path}"));
        }
        if path.starts_with("..") {
            return Err(format!("invalid path: must not start with '..': {path}"));
        }
        self.files.insert(path.to_owned(), ContentFile { bytes, mode, user });
        Ok(())
    }
}

fn mode(own: Option<i32>, default: Option<i32>) -> u32 {
    own.or(default).and_then(|m| u32::try_from(m).ok()).unwrap_or(0o644) & 0o777
}

/// What a volume's files are made from, and those made so far.
struct Maker<'a> {
    cx: &'a NodeContext,
    tokens: &'a Tokens,
    certificates: &'a PodCertificates,
    pod: &'a Pod,
    default: Option<i32>,
    content: Content,
}

/// The files of a volume.
pub(super) async fn of_volume(
    cx: &NodeContext,
    (tokens, certificates): (&Tokens, &PodCertificates),
    pod: &Pod,
    volume: &Volume,
) -> Result<Content, String> {
    let mut maker = Maker { cx, tokens, certificates, pod, default: None, content: Content::default() };
    if let Some(source) = &volume.config_map {
        maker.default = source.default_mode;
        maker.keyed(KeyedKind::ConfigMap, &source.name, source.items.as_deref(), source.optional).await?;
    } else if let Some(source) = &volume.secret {
        maker.default = source.default_mode;
        let name = source.secret_name.as_deref().unwrap_or_default();
        maker.keyed(KeyedKind::Secret, name, source.items.as_deref(), source.optional).await?;
    } else if let Some(source) = &volume.downward_api {
        maker.default = source.default_mode;
        maker.downward(source.items.as_deref().unwrap_or_default())?;
    } else if let Some(source) = &volume.projected {
        maker.default = source.default_mode;
        for (index, part) in source.sources.iter().flatten().enumerate() {
            if let Some(p) = &part.config_map {
                maker.keyed(KeyedKind::ConfigMap, &p.name, p.items.as_deref(), p.optional).await?;
            } else if let Some(p) = &part.secret {
                maker.keyed(KeyedKind::Secret, &p.name, p.items.as_deref(), p.optional).await?;
            } else if let Some(p) = &part.downward_api {
                maker.downward(p.items.as_deref().unwrap_or_default())?;
            } else if let Some(p) = &part.service_account_token {
                maker.token(p).await?;
            } else if let Some(p) = &part.cluster_trust_bundle {
                maker.trust_bundle(p).await?;
            } else if let Some(p) = &part.pod_certificate {
                maker.certificate((&volume.name, index), p).await?;
            }
        }
    }
    Ok(maker.content)
}

impl Maker<'_> {
    async fn keyed(
        &mut self,
        kind: KeyedKind,
        name: &str,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
    ) -> Result<(), String> {
        let optional = optional.unwrap_or(false);
        let namespace = model::namespace(self.pod);
        let found = required(&*self.cx.sources, kind, namespace, name, optional).await?;
        let Some(found) = found else { return Ok(()) };
        let of = |key: &str| found.data.get(key).or_else(|| found.binary.get(key));
        let Some(items) = items.filter(|i| !i.is_empty()) else {
            for (key, bytes) in found.data.iter().chain(&found.binary) {
                self.content.add(key, bytes.clone(), mode(None, self.default), None)?;
            }
            return Ok(());
        };
        for item in items {
            match of(&item.key) {
                Some(bytes) => {
                    let mode = mode(item.mode, self.default);
                    self.content.add(&item.path, bytes.clone(), mode, None)?;
                }
                None if optional => {}
                None => {
                    let what = kind.word();
                    let word = what.trim_end_matches("map");
                    return Err(format!("{what} references non-existent {word} key: {}", item.key));
                }
            }
        }
        Ok(())
    }

    fn downward(&mut self, items: &[DownwardAPIVolumeFile]) -> Result<(), String> {
        let limits = downward::default_limits(self.pod, self.cx.facts.allocatable());
        for item in items {
            let value = if let Some(field) = &item.field_ref {
                downward::field(self.pod, &field.field_path)?
            } else if let Some(selector) = &item.resource_field_ref {
                let name = selector.container_name.as_deref().unwrap_or_default();
                let found = model::find_container(self.pod, name);
                let (container, _) = found.ok_or_else(|| format!("container {name} not found"))?;
                downward::resource(&container, selector, &limits)?
            } else {
                continue;
            };
            self.content.add(&item.path, value.into_bytes(), mode(item.mode, self.default), None)?;
        }
        Ok(())
    }

    async fn token(&mut self, projection: &ServiceAccountTokenProjection) -> Result<(), String> {
        let account = model::spec(self.pod).service_account_name.as_deref().filter(|a| !a.is_empty());
        let request = TokenRequest {
            namespace: model::namespace(self.pod).to_owned(),
            service_account: account.unwrap_or("default").to_owned(),
            audience: projection.audience.clone().unwrap_or_default(),
            expiration: projection.expiration_seconds.unwrap_or(3600),
            pod: model::name(self.pod).to_owned(),
            pod_uid: model::uid(self.pod).to_owned(),
        };
        let now = self.cx.clock.now();
        let token = self.tokens.get(&*self.cx.sources, &request, now).await?;
        let (mode, user) = self.personal();
        self.content.add(&projection.path, token.into_bytes(), mode, user)
    }

    /// Mode and owner of credentials: they are for the containers' only user, or for the volume's group, or for all.
    fn personal(&self) -> (u32, Option<u32>) {
        let context = model::spec(self.pod).security_context.as_ref();
        let user = only_user(self.pod);
        let mode = match (context.and_then(|c| c.fs_group), user) {
            (Some(_), _) | (None, Some(_)) => 0o600,
            (None, None) => mode(None, self.default),
        };
        (mode, user)
    }

    async fn certificate(
        &mut self,
        at: (&str, usize),
        projection: &PodCertificateProjection,
    ) -> Result<(), String> {
        let found = self.certificates.get(self.cx, self.pod, at, projection).await?;
        let (mode, user) = self.personal();
        let bundle = format!("{}{}", found.key, found.chain);
        for (path, text) in [
            (&projection.credential_bundle_path, &bundle),
            (&projection.key_path, &found.key),
            (&projection.certificate_chain_path, &found.chain),
        ] {
            if let Some(path) = path.as_deref().filter(|path| !path.is_empty()) {
                self.content.add(path, text.clone().into_bytes(), mode, user)?;
            }
        }
        Ok(())
    }

    async fn trust_bundle(&mut self, projection: &ClusterTrustBundleProjection) -> Result<(), String> {
        let optional = projection.optional.unwrap_or(false);
        let selector = projection.label_selector.as_ref();
        let mut terms: Vec<String> = vec![];
        for (key, value) in selector.and_then(|s| s.match_labels.as_ref()).into_iter().flatten() {
            terms.push(format!("{key}={value}"));
        }
        for r in selector.and_then(|s| s.match_expressions.as_ref()).into_iter().flatten() {
            let values = r.values.as_deref().unwrap_or_default().join(",");
            terms.push(match r.operator.as_str() {
                "In" => format!("{} in ({values})", r.key),
                "NotIn" => format!("{} notin ({values})", r.key),
                "DoesNotExist" => format!("!{}", r.key),
                _ => r.key.clone(),
            });
        }
        let (name, signer) = (projection.name.as_deref(), projection.signer_name.as_deref());
        // Without a selector a signer's bundles are not chosen, other than with an empty one.
        let found = if name.is_none() && selector.is_none() {
            None
        } else {
            self.cx.sources.trust_bundles(name, signer, &terms.join(",")).await?
        };
        let bundle = match found {
            Some(bundle) => bundle,
            None if optional => String::new(),
            None => {
                return Err(match name {
                    Some(name) => format!(
                        "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io {name:?} not found"
                    ),
                    None => "combination of signerName and labelSelector matched zero ClusterTrustBundles"
                        .to_owned(),
                });
            }
        };
        self.content.add(&projection.path, bundle.into_bytes(), mode(None, self.default), None)
    }
}

/// The user that all containers of a pod run as, if its spec says so.
fn only_user(pod: &Pod) -> Option<u32> {
    let of_pod = model::spec(pod).security_context.as_ref().and_then(|s| s.run_as_user);
    let all = model::containers(pod).iter().chain(model::init_containers(pod));
    let users: Option<Vec<i64>> =
        all.map(|c| c.security_context.as_ref().and_then(|s| s.run_as_user).or(of_pod)).collect();
    let users = users?;
    let first = *users.first()?;
    users.iter().all(|u| *u == first).then(|| u32::try_from(first).ok())?
}
