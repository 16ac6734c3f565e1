//! A node's key and certificate, and their store on disk.
//!
//! Invariants:
//! - Below the data directory, `pki/` and everything in it is for its owner only. Certificate and key are in one file that is
//!   replaced atomically, so that they always fit.
//! - The key of a pending request is stored, so that a restarted agent requests the same certificate again instead of
//!   another.
//! - A certificate is used only if it is the node's and fits the key.
//!
//! Source: kubelet's certificate store (`kubelet-client-current.pem`).

use super::AgentError;
use jiff::Timestamp;
use kaji_meta::{
    random::{Random, fraction},
    text,
    time::saturating,
};
use kaji_server::pki::{self, PkiError, write_private};
use rcgen::{CertificateParams, DnType, KeyPair, PublicKeyData};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    net::IpAddr,
    path::{Path, PathBuf},
};
use x509_parser::{extensions::GeneralName, parse_x509_certificate, pem::Pem};

const CURRENT: &str = "kubelet-client-current.pem";
const SERVING: &str = "kubelet-server-current.pem";
const PENDING: &str = "kubelet-client.key.tmp";
const AUTHORITY: &str = "ca.crt";
const USER: &str = "system:node:";
const GROUP: &str = "system:nodes";

/// The key of a certificate signing request.
pub struct NodeKey {
    node: String,
    pair: KeyPair,
}

impl NodeKey {
    /// A new one.
    ///
    /// # Errors
    /// When none can be generated.
    pub fn generate(node: &str) -> Result<NodeKey, AgentError> {
        let pair = KeyPair::generate().map_err(PkiError::from)?;
        Ok(NodeKey { node: node.to_owned(), pair })
    }

    /// The PKCS#10 request for a certificate of the node, PEM. `names` are its alternative names, addresses among them; a client
    /// certificate has none.
    ///
    /// # Errors
    /// When it cannot be signed.
    pub fn request(&self, names: &[String]) -> Result<String, AgentError> {
        let make = || -> Result<String, rcgen::Error> {
            let mut params = CertificateParams::new(names)?;
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::OrganizationName, GROUP);
            params.distinguished_name.push(DnType::CommonName, format!("{USER}{}", self.node));
            params.serialize_request(&self.pair)?.pem()
        };
        Ok(make().map_err(PkiError::from)?)
    }

    /// The name of the request with which a node joins: the same for the same key and node.
    pub fn request_name(&self) -> String {
        let mut digest = Sha256::new();
        digest.update(self.pair.subject_public_key_info());
        digest.update(self.node.as_bytes());
        format!("node-csr-{}", kaji_meta::text::hex(&digest.finalize()))
    }
}

/// A certificate with its key.
#[derive(Clone)]
pub struct Credential {
    /// PEM, the node's certificate first.
    pub certificate: String,
    /// PEM.
    pub key: String,
    /// The node that the certificate was issued to.
    pub node: String,
    /// When it begins to count.
    pub not_before: Timestamp,
    /// When it ends.
    pub not_after: Timestamp,
}

impl Credential {
    /// What was signed for a key.
    ///
    /// # Errors
    /// When it is something else than the node's certificate for this key.
    pub fn signed(certificate: &str, key: &NodeKey) -> Result<Credential, AgentError> {
        let error = |reason| AgentError::Certificate { node: key.node.clone(), reason };
        let credential = Credential::new(certificate, &key.pair).map_err(error)?;
        if credential.node == key.node {
            Ok(credential)
        } else {
            Err(error(format!("it is of node {:?}", credential.node)))
        }
    }

    fn new(certificate: &str, pair: &KeyPair) -> Result<Credential, String> {
        let block = Pem::iter_from_buffer(certificate.as_bytes()).find_map(Result::ok).ok_or("not PEM")?;
        let (_, leaf) = parse_x509_certificate(&block.contents).map_err(|e| format!("malformed: {e}"))?;
        if leaf.public_key().raw != pair.subject_public_key_info() {
            return Err("it is for another key".into());
        }
        let names: Vec<&str> = leaf.subject().iter_common_name().filter_map(|n| n.as_str().ok()).collect();
        let node = match names[..] {
            [name] => name.strip_prefix(USER).filter(|n| !n.is_empty()),
            _ => None,
        };
        Ok(Credential {
            certificate: certificate.to_owned(),
            key: pki::key_pem(pair).map_err(|e| e.to_string())?,
            node: node.ok_or("its name is not that of a node")?.to_owned(),
            not_before: saturating(leaf.validity().not_before.timestamp()),
            not_after: saturating(leaf.validity().not_after.timestamp()),
        })
    }

    /// Whether it is the serving certificate of a node at an address.
    pub fn serves(&self, node: &str, address: IpAddr) -> bool {
        let names =
            Pem::iter_from_buffer(self.certificate.as_bytes()).find_map(Result::ok).and_then(|block| {
                let (_, leaf) = parse_x509_certificate(&block.contents).ok()?;
                let names = leaf.subject_alternative_name().ok()??;
                Some(names.value.general_names.iter().any(|name| match name {
                    GeneralName::IPAddress(octets) => **octets == *octets_of(address),
                    _ => false,
                }))
            });
        self.node == node && names == Some(true)
    }

    /// When it is to be renewed: after 70 to 90 % of its life, so that nodes that joined together do not all ask at once.
    pub fn renew_at(&self, random: &dyn Random) -> Timestamp {
        let life = self.not_after.as_second() - self.not_before.as_second();
        let seconds = (life as f64 * (0.7 + 0.2 * fraction(random))) as i64;
        Timestamp::from_second(self.not_before.as_second() + seconds).unwrap_or(self.not_after)
    }
}

/// The directory with the node's key, certificate and certificate authorities.
pub struct CredentialStore(PathBuf);

impl CredentialStore {
    /// Makes it if it is missing, and closes it to other users if it is there.
    ///
    /// # Errors
    /// When it cannot be created or closed, or belongs to another user.
    pub fn open(data_dir: &Path) -> Result<CredentialStore, AgentError> {
        let dir = data_dir.join("pki");
        let error = |path: &Path, source| PkiError::Io { path: path.into(), source };
        kaji_files::parent_of_private(data_dir).map_err(|e| error(data_dir, e))?;
        kaji_files::private_dir(&dir).map_err(|e| error(&dir, e))?;
        Ok(CredentialStore(dir))
    }

    /// Where the certificate is.
    pub fn path(&self) -> PathBuf {
        self.0.join(CURRENT)
    }

    /// What is kept.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no certificate that fits its key.
    pub fn current(&self) -> Result<Option<Credential>, AgentError> {
        read_credential(&self.path())
    }

    /// The kept serving certificate.
    ///
    /// # Errors
    /// When the file cannot be read, or holds no certificate that fits its key.
    pub fn serving(&self) -> Result<Option<Credential>, AgentError> {
        read_credential(&self.0.join(SERVING))
    }

    /// Keeps a certificate and its key in place of the former; a key that waits for one is not needed any more.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn replace(&self, credential: &Credential) -> Result<(), AgentError> {
        write_credential(&self.path(), credential)?;
        self.forget_pending()
    }

    /// Keeps a serving certificate and its key in place of the former.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn replace_serving(&self, credential: &Credential) -> Result<(), AgentError> {
        write_credential(&self.0.join(SERVING), credential)
    }

    /// The authorities that were trusted when the node joined, PEM.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn authorities(&self) -> Result<Option<String>, AgentError> {
        read(&self.0.join(AUTHORITY))
    }

    /// Keeps the authorities (DER).
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn trust(&self, authorities: &[Vec<u8>]) -> Result<(), AgentError> {
        let text: String = authorities.iter().map(|der| text::pem("CERTIFICATE", der)).collect();
        Ok(write_private(&self.0.join(AUTHORITY), &text)?)
    }

    /// The key to join with: that of the pending request, or a new one.
    ///
    /// # Errors
    /// When it can be neither read nor generated.
    pub fn pending(&self, node: &str) -> Result<NodeKey, AgentError> {
        let path = self.0.join(PENDING);
        if let Some(pair) = read(&path)?.and_then(|pem| pki::key_pair(&pem).ok()) {
            return Ok(NodeKey { node: node.to_owned(), pair });
        }
        let key = NodeKey::generate(node)?;
        write_private(&path, &pki::key_pem(&key.pair)?)?;
        Ok(key)
    }

    /// Forgets the key to join with: its request was refused, or it has a certificate.
    ///
    /// # Errors
    /// When the file cannot be removed.
    pub fn forget_pending(&self) -> Result<(), AgentError> {
        let path = self.0.join(PENDING);
        match fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(PkiError::Io { path, source }.into())
            }
            _ => Ok(()),
        }
    }
}

fn octets_of(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn read_credential(path: &Path) -> Result<Option<Credential>, AgentError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let malformed = |reason: String| PkiError::Malformed { path: path.to_owned(), reason };
    let pair = pki::key_pair(key_block(&text)).map_err(|e| malformed(e.to_string()))?;
    let certificate = text.strip_suffix(key_block(&text)).unwrap_or(&text);
    Ok(Some(Credential::new(certificate, &pair).map_err(malformed)?))
}

fn write_credential(path: &Path, credential: &Credential) -> Result<(), AgentError> {
    let end = if credential.certificate.ends_with('\n') { "" } else { "\n" };
    Ok(write_private(path, &format!("{}{end}{}", credential.certificate, credential.key))?)
}

/// The key of a file that has certificates before it.
fn key_block(text: &str) -> &str {
    let label = text.find("PRIVATE KEY-----").unwrap_or(0);
    text[..label].rfind("-----BEGIN ").map_or("", |at| &text[at..])
}

/// All files are private: a process that can write the authorities can impersonate the API server.
fn read(path: &Path) -> Result<Option<String>, AgentError> {
    kaji_files::keep_private(path).map_err(|source| PkiError::Io { path: path.into(), source })?;
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::Io { path: path.into(), source }.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kaji_meta::random::SeededRandom;
    use std::os::unix::fs::PermissionsExt;

    /// What a signer makes of a key, for a subject.
    fn sign(name: &str, pair: &KeyPair) -> String {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 4, 11);
        params.self_signed(pair).unwrap().pem()
    }

    #[test]
    fn stores_credentials_privately_and_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let store = CredentialStore::open(&dir.path().join("a/b")).unwrap();
        assert!(store.current().unwrap().is_none() && store.authorities().unwrap().is_none());
        let key = store.pending("n").unwrap();
        assert_eq!(store.pending("n").unwrap().request_name(), key.request_name());
        assert_ne!(store.pending("m").unwrap().request_name(), key.request_name());
        let credential = Credential::signed(&sign("system:node:n", &key.pair), &key).unwrap();
        store.replace(&credential).unwrap();
        assert_ne!(store.pending("n").unwrap().request_name(), key.request_name());
        let kept = store.current().unwrap().unwrap();
        assert_eq!((kept.certificate, kept.key, &*kept.node), (credential.certificate, credential.key, "n"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.path()), mode(&store.0)), (0o600, 0o700));
        // As former versions wrote it, and open to other users.
        let pkcs8 = key.pair.serialize_pem();
        let former = kept_text(&store).replace(key_block(&kept_text(&store)), &pkcs8);
        fs::write(store.path(), former).unwrap();
        for (path, open) in [(store.path(), 0o666), (store.0.clone(), 0o777), (dir.path().join("a/b"), 0o777)]
        {
            fs::set_permissions(path, fs::Permissions::from_mode(open)).unwrap();
        }
        let store = CredentialStore::open(&dir.path().join("a/b")).unwrap();
        let kept = store.current().unwrap().unwrap();
        assert!(kept.key.starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        assert_eq!(pki::key_pair(&kept.key).unwrap().public_key_pem(), key.pair.public_key_pem());
        assert_eq!((mode(&store.path()), mode(&store.0)), (0o600, 0o700));
        assert_eq!(mode(&dir.path().join("a/b")), 0o755);
        assert_eq!(mode(&store.0.join(PENDING)), 0o600);

        let der = Pem::iter_from_buffer(kept_text(&store).as_bytes()).next().unwrap().unwrap().contents;
        store.trust(&[der.clone(), der.clone()]).unwrap();
        let again: Vec<_> = Pem::iter_from_buffer(store.authorities().unwrap().unwrap().as_bytes())
            .map(|p| p.unwrap().contents)
            .collect();
        assert_eq!(again, [der.clone(), der]);

        fs::write(store.path(), "nonsense").unwrap();
        assert!(store.current().is_err());
    }

    fn kept_text(store: &CredentialStore) -> String {
        fs::read_to_string(store.path()).unwrap()
    }

    #[test]
    fn rejects_certificates_of_other_keys_and_nodes() {
        let (key, other) = (NodeKey::generate("n").unwrap(), NodeKey::generate("n").unwrap());
        let reason =
            |pem: &str| Credential::signed(pem, &key).err().map(|e| e.to_string()).unwrap_or_default();
        let all = [
            reason(&sign("system:node:n", &other.pair)),
            reason(&sign("system:node:m", &key.pair)),
            reason(&sign("admin", &key.pair)),
            reason(&sign("system:node:", &key.pair)),
            reason(""),
            reason(&sign("system:node:n", &key.pair)),
        ];
        expect_test::expect![[r#"
            the certificate of node "n": it is for another key
            the certificate of node "n": it is of node "m"
            the certificate of node "n": its name is not that of a node
            the certificate of node "n": its name is not that of a node
            the certificate of node "n": not PEM
        "#]]
        .assert_eq(&all.join("\n"));
    }

    #[test]
    fn renews_between_70_and_90_percent_of_life() {
        let key = NodeKey::generate("n").unwrap();
        let credential = Credential::signed(&sign("system:node:n", &key.pair), &key).unwrap();
        let random = SeededRandom::new(1);
        // A hundred days.
        let days: Vec<i64> = (0..1000)
            .map(|_| (credential.renew_at(&random).as_second() - credential.not_before.as_second()) / 86_400)
            .collect();
        assert_eq!((days.iter().min(), days.iter().max()), (Some(&70), Some(&89)));
    }

    #[test]
    fn requests_name_the_node() {
        use x509_parser::prelude::{FromDer, X509CertificationRequest};
        for names in [&[][..], &["n".to_owned(), "10.0.0.1".to_owned()]] {
            let pem = NodeKey::generate("n").unwrap().request(names).unwrap();
            let block = Pem::iter_from_buffer(pem.as_bytes()).next().unwrap().unwrap();
            let (_, csr) = X509CertificationRequest::from_der(&block.contents).unwrap();
            let subject = csr.certification_request_info.subject.to_string();
            assert_eq!(subject, "O=system:nodes, CN=system:node:n");
            let extensions = csr.requested_extensions().map_or(0, |all| all.count());
            assert_eq!(extensions, usize::from(!names.is_empty()), "alternative names");
        }
    }
}
