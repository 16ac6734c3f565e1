//! Flags of the authorities that sign certificates: one for all of Kubernetes' signers, or one each.
//!
//! Invariant: as upstream, the authority for all is not used beside those of single signers, and signers without one sign nothing then.

use clap::Args;
use std::path::PathBuf;

/// The authorities' files.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Certificates")]
pub(super) struct SigningFlags {
    /// The authority that signs certificates, PEM; without it requests stay unsigned.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_key_file")]
    cluster_signing_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_cert_file")]
    cluster_signing_key_file: Option<PathBuf>,
    /// The authority of the signer kubernetes.io/kubelet-serving, PEM; not beside --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_serving_key_file")]
    cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_serving_cert_file")]
    cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
    /// The authority of the signer kubernetes.io/kube-apiserver-client-kubelet, PEM; not beside --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_client_key_file")]
    cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kubelet_client_cert_file")]
    cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// The authority of the signer kubernetes.io/kube-apiserver-client, PEM; not beside --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kube_apiserver_client_key_file")]
    cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_kube_apiserver_client_cert_file")]
    cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// The authority of the signer kubernetes.io/legacy-unknown, PEM; not beside --cluster-signing-cert-file.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_legacy_unknown_key_file")]
    cluster_signing_legacy_unknown_cert_file: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, value_name = "FILE", requires = "cluster_signing_legacy_unknown_cert_file")]
    cluster_signing_legacy_unknown_key_file: Option<PathBuf>,
}

/// The files of an authority that signs certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SigningFiles {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

/// The authority of each signer; one without it signs nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignerFiles {
    /// `kubernetes.io/kubelet-serving`
    pub kubelet_serving: Option<SigningFiles>,
    /// `kubernetes.io/kube-apiserver-client-kubelet`
    pub kubelet_client: Option<SigningFiles>,
    /// `kubernetes.io/kube-apiserver-client`
    pub client: Option<SigningFiles>,
    /// `kubernetes.io/legacy-unknown`
    pub legacy_unknown: Option<SigningFiles>,
}

fn files(certificate: Option<PathBuf>, key: Option<PathBuf>) -> Option<SigningFiles> {
    certificate.zip(key).map(|(certificate, key)| SigningFiles { certificate, key })
}

impl SigningFlags {
    /// The files.
    ///
    /// # Errors
    /// Upstream's text where an authority for all stands beside those of single signers.
    pub fn files(self) -> Result<SignerFiles, String> {
        let for_all = files(self.cluster_signing_cert_file, self.cluster_signing_key_file);
        let single = SignerFiles {
            kubelet_serving: files(
                self.cluster_signing_kubelet_serving_cert_file,
                self.cluster_signing_kubelet_serving_key_file,
            ),
            kubelet_client: files(
                self.cluster_signing_kubelet_client_cert_file,
                self.cluster_signing_kubelet_client_key_file,
            ),
            client: files(
                self.cluster_signing_kube_apiserver_client_cert_file,
                self.cluster_signing_kube_apiserver_client_key_file,
            ),
            legacy_unknown: files(
                self.cluster_signing_legacy_unknown_cert_file,
                self.cluster_signing_legacy_unknown_key_file,
            ),
        };
        match for_all {
            None => Ok(single),
            Some(_) if single != SignerFiles::default() => {
                Err("cannot specify default and per controller certs at the same time".to_owned())
            }
            Some(files) => Ok(SignerFiles {
                kubelet_serving: Some(files.clone()),
                kubelet_client: Some(files.clone()),
                client: Some(files.clone()),
                legacy_unknown: Some(files),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use expect_test::expect;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        signing: SigningFlags,
    }

    fn parse(flags: &str) -> String {
        let flags = ["kaji"].into_iter().chain(flags.split_whitespace());
        let files =
            Flags::try_parse_from(flags).map_err(|_| "not taken".to_owned()).and_then(|f| f.signing.files());
        let files = match files {
            Ok(files) => files,
            Err(error) => return error,
        };
        let all = [&files.kubelet_serving, &files.kubelet_client, &files.client, &files.legacy_unknown];
        let show = |files: &Option<SigningFiles>| {
            files
                .as_ref()
                .map_or("-".to_owned(), |f| format!("{}+{}", f.certificate.display(), f.key.display()))
        };
        all.map(show).join(" ")
    }

    #[test]
    fn one_authority_signs_all_or_each_signer_has_its_own() {
        let all = [
            parse(""),
            parse("--cluster-signing-cert-file=c --cluster-signing-key-file=k"),
            parse(
                "--cluster-signing-kubelet-client-cert-file=c --cluster-signing-kubelet-client-key-file=k \
                 --cluster-signing-legacy-unknown-cert-file=d --cluster-signing-legacy-unknown-key-file=l",
            ),
            parse(
                "--cluster-signing-kubelet-serving-cert-file=c --cluster-signing-kubelet-serving-key-file=k \
                 --cluster-signing-kube-apiserver-client-cert-file=d --cluster-signing-kube-apiserver-client-key-file=l",
            ),
            parse(
                "--cluster-signing-cert-file=c --cluster-signing-key-file=k \
                 --cluster-signing-kubelet-client-cert-file=c --cluster-signing-kubelet-client-key-file=k",
            ),
            parse("--cluster-signing-kubelet-client-cert-file=c"),
            parse("--cluster-signing-legacy-unknown-key-file=k"),
        ];
        expect![[r#"
            - - - -
            c+k c+k c+k c+k
            - c+k - d+l
            c+k - d+l -
            cannot specify default and per controller certs at the same time
            not taken
            not taken"#]]
        .assert_eq(&all.join("\n"));
    }
}
