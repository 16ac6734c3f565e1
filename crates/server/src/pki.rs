//! The cluster's certificates, laid out as kubeadm lays them out below `<data-dir>/pki`.
//!
//! Invariants:
//! - A private key is written with mode 0600 and never replaced while its certificate is still good. What is found open to
//!   other users is closed to them before it is used.
//! - The serving certificate covers every name asked for; it is reissued when it does not, or when it runs out soon.
//! - Files are written to a temporary name and renamed, so a killed process leaves no half file.

use kaji_auth::authn::{KeyError, pkcs8_from_pem, traditional_pem};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};
use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
    thread,
};

/// kubeadm's lifetime of certificate authorities.
const CA_DAYS: i64 = 3650;
/// kubeadm's lifetime of everything else.
const LEAF_DAYS: i64 = 365;
/// A leaf with no more than this left is reissued.
const RENEW_BEFORE_DAYS: i64 = 90;

/// Why the PKI could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
    /// A private key is none.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A certificate could not be made.
    #[error("certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A file holds something else than it should.
    #[error("{path}: {reason}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

/// A certificate with its key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Certificate (chain).
    pub certificate: String,
    /// Its key, as kubeadm writes it: SEC 1 or PKCS#1, which clients read that do not know PKCS#8.
    pub key: String,
}

impl<'a> From<&'a Identity> for kaji_files::kubeconfig::ClientCertificate<'a> {
    fn from(identity: &'a Identity) -> Self {
        Self { certificate: &identity.certificate, key: &identity.key }
    }
}

/// Everything a control plane needs.
#[derive(Clone, Debug)]
pub struct Pki {
    /// Signs serving and client certificates: `ca.crt`, `ca.key`.
    pub ca: Identity,
    /// The API server's: `apiserver.crt`, `apiserver.key`.
    pub serving: Identity,
    /// `system:masters` client for the admin kubeconfig.
    pub admin: Identity,
    /// Signs the aggregation layer's client certificate: `front-proxy-ca.crt`.
    pub front_proxy_ca: Identity,
    /// `front-proxy-client.crt`
    pub front_proxy_client: Identity,
    /// `apiserver-kubelet-client.crt`
    pub kubelet_client: Identity,
    /// Signs service-account tokens: `sa.key` (`sa.pub` beside it).
    pub service_account: KeyFile,
}

/// A bare key pair.
#[derive(Clone, Debug)]
pub struct KeyFile {
    /// Private key: SEC 1 or PKCS#1.
    pub private: String,
    /// SubjectPublicKeyInfo.
    pub public: String,
}

/// What a leaf certificate is for.
struct Leaf<'a> {
    file: &'a str,
    common_name: &'a str,
    organization: Option<&'a str>,
    names: &'a [String],
    usage: ExtendedKeyUsagePurpose,
}

const ADMIN: Leaf<'static> = client("admin", "kubernetes-admin", Some("system:masters"));
const KUBELET_CLIENT: Leaf<'static> =
    client("apiserver-kubelet-client", "kube-apiserver-kubelet-client", Some("kubeadm:cluster-admins"));
const FRONT_PROXY_CLIENT: Leaf<'static> = client("front-proxy-client", "front-proxy-client", None);

const fn client(
    file: &'static str,
    common_name: &'static str,
    organization: Option<&'static str>,
) -> Leaf<'static> {
    Leaf { file, common_name, organization, names: &[], usage: ExtendedKeyUsagePurpose::ClientAuth }
}

fn serving(names: &[String]) -> Leaf<'_> {
    Leaf {
        file: "apiserver",
        common_name: "kube-apiserver",
        organization: None,
        names,
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    }
}

impl Pki {
    /// Reads what is there and makes what is missing. `names` are the DNS names and addresses clients may use.
    pub fn ensure(dir: &Path, names: &[String], now: jiff::Timestamp) -> Result<Pki, PkiError> {
        kaji_files::private_dir(dir).map_err(at(dir))?;
        // Each file is synced before the next one is written. Chains of files that do not depend on each other are made by
        // threads, so that their syncs run at the same time.
        thread::scope(|scope| {
            let service_account = scope.spawn(|| ensure_service_account_key(dir));
            let front_proxy = scope.spawn(|| {
                let ca = ensure_ca(dir, "front-proxy-ca", "front-proxy-ca", now)?;
                let client = ensure_leaf(dir, &ca, &FRONT_PROXY_CLIENT, now)?;
                Ok::<_, PkiError>((ca, client))
            });
            let ca = ensure_ca(dir, "ca", "kubernetes", now)?;
            let (serving, admin, kubelet_client) = thread::scope(|scope| {
                let admin = scope.spawn(|| ensure_leaf(dir, &ca, &ADMIN, now));
                let kubelet_client = scope.spawn(|| ensure_leaf(dir, &ca, &KUBELET_CLIENT, now));
                Ok::<_, PkiError>((
                    ensure_leaf(dir, &ca, &serving(names), now)?,
                    join(admin)?,
                    join(kubelet_client)?,
                ))
            })?;
            let (front_proxy_ca, front_proxy_client) = join(front_proxy)?;
            let service_account = join(service_account)?;
            Ok(Pki {
                serving,
                admin,
                kubelet_client,
                front_proxy_client,
                service_account,
                front_proxy_ca,
                ca,
            })
        })
    }
}

/// The result of a thread; a panic goes on in this one.
fn join<T>(handle: thread::ScopedJoinHandle<'_, T>) -> T {
    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Pki {
    /// Makes one that no file ever holds, for a server that keeps its data in memory. What `old` has that never expires in
    /// practice (authorities, the service account key) is kept.
    ///
    /// # Errors
    /// When a name can be in no certificate.
    pub fn in_memory(old: Option<&Pki>, names: &[String], now: jiff::Timestamp) -> Result<Pki, PkiError> {
        let authority = |old: Option<&Identity>, name| match old {
            Some(old) => Ok(old.clone()),
            None => make_ca(name, now),
        };
        let ca = authority(old.map(|o| &o.ca), "kubernetes")?;
        let front_proxy_ca = authority(old.map(|o| &o.front_proxy_ca), "front-proxy-ca")?;
        let service_account = match old {
            Some(old) => old.service_account.clone(),
            None => key_file(&KeyPair::generate()?)?,
        };
        Ok(Pki {
            serving: make_leaf(&ca, &serving(names), now)?,
            admin: make_leaf(&ca, &ADMIN, now)?,
            kubelet_client: make_leaf(&ca, &KUBELET_CLIENT, now)?,
            front_proxy_client: make_leaf(&front_proxy_ca, &FRONT_PROXY_CLIENT, now)?,
            service_account,
            front_proxy_ca,
            ca,
        })
    }

    /// When the first certificate that this server issues to itself is to be renewed.
    pub fn renew_at(&self) -> Option<jiff::Timestamp> {
        renewal([&self.serving].into_iter().chain(self.clients()))
    }

    /// The same for a server with a given serving certificate.
    pub fn renew_clients_at(&self) -> Option<jiff::Timestamp> {
        renewal(self.clients().into_iter())
    }

    fn clients(&self) -> [&Identity; 3] {
        [&self.admin, &self.kubelet_client, &self.front_proxy_client]
    }
}

fn renewal<'a>(leaves: impl Iterator<Item = &'a Identity>) -> Option<jiff::Timestamp> {
    let ends = leaves.filter_map(|leaf| {
        let (_, pem) = x509_parser::pem::parse_x509_pem(leaf.certificate.as_bytes()).ok()?;
        let end = pem.parse_x509().ok()?.validity().not_after.timestamp();
        jiff::Timestamp::from_second(end - RENEW_BEFORE_DAYS * 86_400).ok()
    });
    ends.min()
}

/// Makes an authority that is written nowhere.
///
/// # Errors
/// When the name can be in no certificate.
pub fn authority(common_name: &str, now: jiff::Timestamp) -> Result<Identity, PkiError> {
    make_ca(common_name, now)
}

/// Whether an authority's key is available: it may be kept outside.
pub fn can_sign(authority: &Identity) -> bool {
    key_pair(&authority.key).is_ok_and(|key| Issuer::from_ca_cert_pem(&authority.certificate, key).is_ok())
}

/// Makes a certificate that a node's kubelet serves with, for these names and addresses.
/// Source: the signer `kubernetes.io/kubelet-serving`.
///
/// # Errors
/// When the authority cannot sign, or a name can be in no certificate.
pub fn kubelet_serving(
    authority: &Identity,
    node: &str,
    names: &[String],
    now: jiff::Timestamp,
) -> Result<Identity, PkiError> {
    let common_name = format!("system:node:{node}");
    let leaf = Leaf {
        file: "",
        common_name: &common_name,
        organization: Some("system:nodes"),
        names,
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    };
    make_leaf(authority, &leaf, now)
}

/// Makes a certificate that a component of the control plane serves health and metrics with, for these names and addresses.
///
/// # Errors
/// When the authority cannot sign, or a name can be in no certificate.
pub fn component_serving(
    authority: &Identity,
    component: &str,
    names: &[String],
    now: jiff::Timestamp,
) -> Result<Identity, PkiError> {
    let leaf = Leaf {
        file: "",
        common_name: component,
        organization: None,
        names,
        usage: ExtendedKeyUsagePurpose::ServerAuth,
    };
    make_leaf(authority, &leaf, now)
}

/// The certificates of a PEM text, DER.
pub fn certificates(pem: &str) -> Result<Vec<Vec<u8>>, PkiError> {
    use tokio_rustls::rustls::pki_types::{CertificateDer, pem::PemObject};
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .map(|c| c.map(|c| c.to_vec()))
        .collect::<Result<_, _>>()
        .map_err(|e| PkiError::Malformed { path: "certificates".into(), reason: e.to_string() })
}

fn ensure_ca(dir: &Path, file: &str, common_name: &str, now: jiff::Timestamp) -> Result<Identity, PkiError> {
    if let Some(found) = read_identity(dir, file)? {
        return Ok(found);
    }
    let made = make_ca(common_name, now)?;
    write_identity(dir, file, &made.certificate, &made.key)
}

fn make_ca(common_name: &str, now: jiff::Timestamp) -> Result<Identity, PkiError> {
    let mut params = CertificateParams::new(vec![common_name.to_owned()])?;
    params.distinguished_name = subject(common_name, None);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    validity(&mut params, now, CA_DAYS);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    Ok(Identity { certificate: certificate.pem(), key: key_pem(&key)? })
}

fn ensure_leaf(
    dir: &Path,
    ca: &Identity,
    leaf: &Leaf<'_>,
    now: jiff::Timestamp,
) -> Result<Identity, PkiError> {
    if let Some(found) = read_identity(dir, leaf.file)?
        && still_good(&found.certificate, leaf.names, now)
    {
        return Ok(found);
    }
    let made = make_leaf(ca, leaf, now)?;
    write_identity(dir, leaf.file, &made.certificate, &made.key)
}

fn make_leaf(ca: &Identity, leaf: &Leaf<'_>, now: jiff::Timestamp) -> Result<Identity, PkiError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = subject(leaf.common_name, leaf.organization);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    params.extended_key_usages = vec![leaf.usage.clone()];
    params.subject_alt_names = leaf.names.iter().map(|n| san(n)).collect::<Result<_, _>>()?;
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, now, LEAF_DAYS);
    let key = KeyPair::generate()?;
    let issuer = Issuer::from_ca_cert_pem(&ca.certificate, key_pair(&ca.key)?)?;
    let certificate = params.signed_by(&key, &issuer)?;
    Ok(Identity { certificate: certificate.pem(), key: key_pem(&key)? })
}

fn ensure_service_account_key(dir: &Path) -> Result<KeyFile, PkiError> {
    let (key_path, public_path) = (dir.join("sa.key"), dir.join("sa.pub"));
    kaji_files::keep_private(&key_path).map_err(at(&key_path))?;
    kaji_files::keep_unwritable(&public_path).map_err(at(&public_path))?;
    let key = match read_optional(&key_path)? {
        Some(pem) => key_pair(&pem)?,
        None => {
            let key = KeyPair::generate()?;
            write_private(&key_path, &key_pem(&key)?)?;
            key
        }
    };
    let file = key_file(&key)?;
    if read_optional(&public_path)?.as_deref() != Some(file.public.as_str()) {
        write_public(&public_path, &file.public)?;
    }
    Ok(file)
}

fn key_file(key: &KeyPair) -> Result<KeyFile, PkiError> {
    Ok(KeyFile { private: key_pem(key)?, public: key.public_key_pem() })
}

/// Reads a private key in any of the forms that Kubernetes' tools write.
///
/// # Errors
/// When it is none that signs.
pub fn key_pair(pem: &str) -> Result<KeyPair, PkiError> {
    Ok(KeyPair::try_from(pkcs8_from_pem(pem)?)?)
}

/// A private key as kubeadm writes it.
///
/// # Errors
/// When its encoding is malformed.
pub fn key_pem(key: &KeyPair) -> Result<String, PkiError> {
    Ok(traditional_pem(&key.serialize_pem())?)
}

fn san(name: &str) -> Result<SanType, rcgen::Error> {
    Ok(match name.parse::<IpAddr>() {
        Ok(ip) => SanType::IpAddress(ip),
        Err(_) => SanType::DnsName(name.try_into()?),
    })
}

fn subject(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut dn = DistinguishedName::new();
    if let Some(o) = organization {
        dn.push(DnType::OrganizationName, o);
    }
    dn.push(DnType::CommonName, common_name);
    dn
}

fn validity(params: &mut CertificateParams, now: jiff::Timestamp, days: i64) {
    // Five minutes of slack for clients with clocks that are behind, as upstream's signers give.
    let date = |seconds: i64| {
        let z = jiff::Timestamp::from_second(seconds).unwrap_or(now).to_zoned(jiff::tz::TimeZone::UTC);
        rcgen::date_time_ymd(i32::from(z.year()), z.month() as u8, z.day() as u8)
    };
    params.not_before = date(now.as_second() - 300);
    params.not_after = date(now.as_second() + days * 86_400);
}

/// Whether a certificate covers the names and does not run out soon.
fn still_good(pem: &str, names: &[String], now: jiff::Timestamp) -> bool {
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(pem.as_bytes()) else { return false };
    let Ok(cert) = pem.parse_x509() else { return false };
    if cert.validity().not_after.timestamp() <= now.as_second() + RENEW_BEFORE_DAYS * 86_400 {
        return false;
    }
    let san = cert.subject_alternative_name().ok().flatten();
    names.iter().all(|name| {
        san.as_ref().is_some_and(|s| s.value.general_names.iter().any(|g| general_name_is(g, name)))
    })
}

fn general_name_is(general: &x509_parser::extensions::GeneralName<'_>, name: &str) -> bool {
    use x509_parser::extensions::GeneralName;
    match general {
        GeneralName::DNSName(d) => *d == name,
        GeneralName::IPAddress(bytes) => match name.parse::<IpAddr>() {
            Ok(IpAddr::V4(v4)) => v4.octets() == *bytes,
            Ok(IpAddr::V6(v6)) => v6.octets() == *bytes,
            Err(_) => false,
        },
        _ => false,
    }
}

fn read_identity(dir: &Path, file: &str) -> Result<Option<Identity>, PkiError> {
    let (crt, key) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    kaji_files::keep_unwritable(&crt).map_err(at(&crt))?;
    kaji_files::keep_private(&key).map_err(at(&key))?;
    match (read_optional(&crt)?, read_optional(&key)?) {
        (Some(certificate), Some(key)) => {
            // An invalid key is reported where it is used: an authority without its key signs nothing.
            let key = traditional_pem(&key).unwrap_or(key);
            Ok(Some(Identity { certificate, key }))
        }
        (None, None) => Ok(None),
        (Some(_), None) => {
            Err(PkiError::Malformed { path: key, reason: "missing, but its certificate exists".into() })
        }
        // The key is written first: a lone key is what a killed start leaves behind.
        (None, Some(_)) => Ok(None),
    }
}

fn write_identity(dir: &Path, file: &str, certificate: &str, key: &str) -> Result<Identity, PkiError> {
    write_private(&dir.join(format!("{file}.key")), key)?;
    write_public(&dir.join(format!("{file}.crt")), certificate)?;
    Ok(Identity { certificate: certificate.into(), key: key.into() })
}

fn read_optional(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Io { path: path.into(), source }),
    }
}

/// Writes a file that only its owner may read, atomically.
pub fn write_private(path: &Path, text: &str) -> Result<(), PkiError> {
    kaji_files::replace(path, text.as_bytes(), kaji_files::PRIVATE).map_err(at(path))
}

/// Writes a file that every user may read, atomically.
pub fn write_public(path: &Path, text: &str) -> Result<(), PkiError> {
    kaji_files::replace(path, text.as_bytes(), kaji_files::PUBLIC).map_err(at(path))
}

/// An error of a file.
fn at(path: &Path) -> impl FnOnce(io::Error) -> PkiError + use<> {
    let path = path.to_owned();
    |source| PkiError::Io { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn now() -> jiff::Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    #[test]
    fn is_made_once_and_keys_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let first = Pki::ensure(dir.path(), &names, now()).unwrap();
        let second = Pki::ensure(dir.path(), &names, now()).unwrap();
        assert_eq!(first.serving.certificate, second.serving.certificate);
        for entry in fs::read_dir(dir.path()).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name().to_string_lossy().ends_with(".key") {
                assert_eq!(entry.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{entry:?}");
            }
        }
    }

    #[test]
    fn what_was_open_to_other_users_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        Pki::ensure(dir.path(), &[], now()).unwrap();
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let files = || fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        files().for_each(|file| chmod(&file, 0o666));
        chmod(dir.path(), 0o777);
        Pki::ensure(dir.path(), &[], now()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(dir.path()), 0o700);
        for file in files() {
            let expected = if file.extension().unwrap() == "key" { 0o600 } else { 0o644 };
            assert_eq!(mode(&file), expected, "{file:?}");
        }
    }

    #[test]
    fn keys_are_written_as_kubeadm_does_and_read_in_any_form() {
        let dir = tempfile::tempdir().unwrap();
        let made = Pki::ensure(dir.path(), &[], now()).unwrap();
        let all = |pki: &Pki| {
            let identities =
                [&pki.ca, &pki.serving, &pki.admin, &pki.front_proxy_ca, &pki.front_proxy_client];
            let mut keys: Vec<String> = identities.iter().map(|i| i.key.clone()).collect();
            keys.extend([pki.kubelet_client.key.clone(), pki.service_account.private.clone()]);
            keys
        };
        for file in fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()) {
            if file.extension().is_some_and(|e| e == "key") {
                let text = fs::read_to_string(&file).unwrap();
                assert!(text.starts_with("-----BEGIN EC PRIVATE KEY-----\n"), "{file:?}: {text}");
                // As former versions wrote it.
                fs::write(&file, key_pair(&text).unwrap().serialize_pem()).unwrap();
            }
        }
        let again = Pki::ensure(dir.path(), &[], now()).unwrap();
        assert_eq!(all(&again), all(&made));
        assert!(can_sign(&again.ca));
    }

    #[test]
    fn a_new_name_or_old_age_reissues_the_serving_certificate_only() {
        let dir = tempfile::tempdir().unwrap();
        let first = Pki::ensure(dir.path(), &["localhost".into()], now()).unwrap();
        let named = Pki::ensure(dir.path(), &["localhost".into(), "10.1.2.3".into()], now()).unwrap();
        assert_ne!(first.serving.certificate, named.serving.certificate);
        assert_eq!(first.ca.certificate, named.ca.certificate);
        assert_eq!(first.admin.certificate, named.admin.certificate);
        let later = now() + jiff::SignedDuration::from_hours(24 * 300);
        let aged = Pki::ensure(dir.path(), &["localhost".into()], later).unwrap();
        assert_ne!(named.admin.certificate, aged.admin.certificate);
        assert_eq!(first.ca.certificate, aged.ca.certificate);
    }

    #[test]
    fn a_lost_key_is_an_error_not_a_new_authority() {
        let dir = tempfile::tempdir().unwrap();
        Pki::ensure(dir.path(), &[], now()).unwrap();
        fs::remove_file(dir.path().join("ca.key")).unwrap();
        let error = Pki::ensure(dir.path(), &[], now()).unwrap_err();
        assert!(error.to_string().contains("ca.key: missing, but its certificate exists"), "{error}");
    }
}
