//! A PKCS#10 request as signers look at it: subject, alternative names, public key.
//!
//! Invariant: of the subject only the attributes that X.509 names commonly have are kept, and one common name (the
//! last), so that what was checked is what is signed.

use kaji_auth::public_keys::PublicKey;
use std::net::IpAddr;
use x509_parser::{
    certification_request::X509CertificationRequest,
    extensions::{GeneralName, ParsedExtension},
    pem::Pem,
    prelude::FromDer,
};

/// The subject's attributes in the order in which they are written: the last part of their OIDs below 2.5.4.
/// C, O, OU, L, ST, STREET, postal code, CN, serial number.
pub const ATTRIBUTES: [u8; 9] = [6, 10, 11, 7, 8, 9, 17, 3, 5];
const ORGANIZATION: usize = 1;
const COMMON_NAME: usize = 7;
const SERIAL_NUMBER: usize = 8;

/// The content of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Values by the index of [`ATTRIBUTES`].
    pub subject: [Vec<String>; 9],
    /// Alternative names.
    pub dns: Vec<String>,
    /// Alternative names.
    pub emails: Vec<String>,
    /// Alternative names.
    pub addresses: Vec<IpAddr>,
    /// Alternative names.
    pub uris: Vec<String>,
    /// SubjectPublicKeyInfo.
    pub public_key: Vec<u8>,
    /// Why the request's own signature does not hold, if so.
    pub forged: Option<String>,
}

impl Request {
    /// Reads PEM.
    ///
    /// # Errors
    /// When the first block is no request, or malformed.
    pub fn parse(pem: &[u8]) -> Result<Request, String> {
        let block = Pem::iter_from_buffer(pem).find_map(Result::ok);
        let block = block
            .filter(|b| b.label == "CERTIFICATE REQUEST")
            .ok_or("PEM block type must be CERTIFICATE REQUEST")?;
        let malformed = |_| "asn1: structure error: the certificate request is malformed".to_owned();
        let (_, csr) = X509CertificationRequest::from_der(&block.contents).map_err(malformed)?;
        let info = &csr.certification_request_info;
        let mut request = Request {
            public_key: info.subject_pki.raw.to_vec(),
            forged: verify(&csr).err(),
            ..Request::default()
        };
        for attribute in info.subject.iter_attributes() {
            let oid = attribute.attr_type().as_bytes();
            let index = oid.strip_prefix(&[0x55, 0x04]).and_then(|rest| match rest {
                [last] => ATTRIBUTES.iter().position(|a| a == last),
                _ => None,
            });
            let (Some(index), Ok(value)) = (index, kaji_auth::authn::subject::text(attribute)) else {
                continue;
            };
            if matches!(index, COMMON_NAME | SERIAL_NUMBER) {
                request.subject[index].clear();
            }
            request.subject[index].push(value);
        }
        for extension in csr.requested_extensions().into_iter().flatten() {
            if let ParsedExtension::SubjectAlternativeName(names) = extension {
                names.general_names.iter().for_each(|name| request.add_name(name));
            }
        }
        Ok(request)
    }

    fn add_name(&mut self, name: &GeneralName<'_>) {
        match name {
            GeneralName::DNSName(name) => self.dns.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => self.emails.push((*name).to_owned()),
            GeneralName::URI(name) => self.uris.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => {
                let v4 = <[u8; 4]>::try_from(*bytes).map(IpAddr::from);
                let address = v4.or_else(|_| <[u8; 16]>::try_from(*bytes).map(IpAddr::from));
                self.addresses.extend(address.ok());
            }
            _ => {}
        }
    }

    /// The common name, `""` if there is none.
    pub fn common_name(&self) -> &str {
        self.subject[COMMON_NAME].first().map_or("", String::as_str)
    }

    /// The organizations.
    pub fn organizations(&self) -> &[String] {
        &self.subject[ORGANIZATION]
    }
}

/// Whether a request is signed by the key that it asks a certificate for: what the API server checked when it was created.
fn verify(csr: &X509CertificationRequest<'_>) -> Result<(), String> {
    let key = PublicKey::parse(&csr.certification_request_info.subject_pki);
    key.ok_or("x509: malformed public key")?.check_signature(csr)
}
