//! Authentication: who a request comes from. For now client certificates only; tokens are refused, not ignored.

use crate::{discovery::hex, stack::StackError};
use kaji_auth::names::{ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED};
use kaji_meta::Status;
use kaji_resource::UserInfo;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Who a connection's verified client certificate names: CN is the user, every O is a group.
/// Source: Kubernetes, "Authenticating", X509 client certificates.
pub fn from_certificate(der: &[u8]) -> Result<UserInfo, StackError> {
    let (_, certificate) = x509_parser::parse_x509_certificate(der)
        .map_err(|e| StackError::Certificate(format!("client certificate: {e}")))?;
    let subject = certificate.subject();
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().map(str::to_owned).ok();
    let name = subject.iter_common_name().next().and_then(text).unwrap_or_default();
    if name.is_empty() {
        return Err(StackError::Certificate("client certificate has no common name".into()));
    }
    let mut groups: Vec<String> = subject.iter_organization().filter_map(text).collect();
    groups.push(AUTHENTICATED.into());
    // KEP-740: which credential it was, for audit and for what is made on its behalf.
    let id = format!("X509SHA256={}", hex(&Sha256::digest(der)));
    let extra = BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), vec![id])]);
    Ok(UserInfo { name, groups, extra, ..UserInfo::default() })
}

/// The user of requests without any credentials.
pub fn anonymous() -> UserInfo {
    UserInfo { name: ANONYMOUS.into(), groups: vec![UNAUTHENTICATED.into()], ..UserInfo::default() }
}

/// The identity of a request: its connection's certificate, else anonymous. A bearer token or basic credentials
/// that nothing can verify are refused, as upstream refuses unknown ones.
pub fn authenticate(connection: Option<&UserInfo>, headers: &http::HeaderMap) -> Result<UserInfo, Status> {
    // Acting on as oneself would be the opposite of what was asked for.
    if headers.keys().any(|name| name.as_str().starts_with("impersonate-")) {
        let gr = kaji_meta::GroupResource::new("", "users");
        return Err(Status::forbidden(&gr, "", "impersonation is not supported by this server yet"));
    }
    if let Some(user) = connection {
        return Ok(user.clone());
    }
    if headers.contains_key(http::header::AUTHORIZATION) {
        return Err(Status::unauthorized("Unauthorized"));
    }
    Ok(anonymous())
}
