//! Documents of paths that belong to no group-version: discovery, the server's version, and the keys of service accounts' tokens.
//! Source: the routes of k8s.io/apiserver (`endpoints/discovery`, `server/routes`) and of the kube-apiserver (`OpenIDMetadataServer`).

use super::operations::{Body, Media, OK, Operation, PathItem, camel};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// One of these documents. Each has one path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Root {
    /// The versions of the core group.
    Core,
    /// All groups.
    Groups,
    /// The versions of a built-in group. Those of custom resources have none.
    Group(String),
    /// The server's version.
    Version,
    /// What verifies tokens needs to know.
    OpenIdConfiguration,
    /// The keys that verify tokens.
    OpenIdKeys,
}

impl Root {
    /// Those of a server with these built-in groups.
    pub fn all<'a>(groups: impl IntoIterator<Item = &'a str>) -> Vec<Root> {
        let mut groups: Vec<&str> = groups.into_iter().filter(|group| !group.is_empty()).collect();
        groups.sort_unstable();
        groups.dedup();
        let fixed = [Root::Core, Root::Groups, Root::Version, Root::OpenIdConfiguration, Root::OpenIdKeys]
            .into_iter();
        fixed.chain(groups.into_iter().map(|group| Root::Group(group.to_owned()))).collect()
    }

    /// The key in the index of v3 documents, which is the path without the slashes around it.
    pub fn key(&self) -> String {
        match self {
            Root::Core => "api".into(),
            Root::Groups => "apis".into(),
            Root::Group(name) => format!("apis/{name}"),
            Root::Version => "version".into(),
            Root::OpenIdConfiguration => ".well-known/openid-configuration".into(),
            Root::OpenIdKeys => "openid/v1/jwks".into(),
        }
    }

    /// The type of the answer, unless it is text to the documents.
    pub(super) fn answer(&self) -> Option<String> {
        match self {
            Root::Core => Some(format!("{META}.APIVersions")),
            Root::Groups => Some(format!("{META}.APIGroupList")),
            Root::Group(_) => Some(format!("{META}.APIGroup")),
            Root::Version => Some("io.k8s.apimachinery.pkg.version.Info".into()),
            Root::OpenIdConfiguration | Root::OpenIdKeys => None,
        }
    }

    pub(super) fn path(&self) -> PathItem<'static> {
        let versions = "get available API versions";
        let (tag, id, description, media) = match self {
            Root::Core => ("core".into(), "getCoreAPIVersions".into(), versions, Media::NEGOTIATED),
            Root::Groups => ("apis".into(), "getAPIVersions".into(), versions, Media::NEGOTIATED),
            Root::Group(name) => {
                let name = name.strip_suffix(".k8s.io").unwrap_or(name);
                let id = format!("get{}APIGroup", camel(name, true));
                (camel(name, false), id, "get information of a group", Media::NEGOTIATED)
            }
            Root::Version => {
                let description = "get the version information for this server";
                ("version".into(), "getCodeVersion".into(), description, Media::JSON)
            }
            Root::OpenIdConfiguration => (
                "WellKnown".into(),
                "getServiceAccountIssuerOpenIDConfiguration".into(),
                "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
                Media { produces: &["application/json"], consumes: &[] },
            ),
            Root::OpenIdKeys => (
                "openid".into(),
                "getServiceAccountIssuerOpenIDKeyset".into(),
                "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
                Media { produces: &["application/jwk-set+json"], consumes: &[] },
            ),
        };
        let operation = Operation {
            method: "get",
            id,
            description: description.into(),
            action: "",
            params: Vec::new(),
            body: Body::None,
            answer: self.answer(),
            codes: OK,
            streams: false,
            gvk: None,
            custom: false,
            media: Some(media),
            tag,
        };
        let path = format!("/{}/", self.key());
        PathItem { path, params: Vec::new(), operations: vec![operation], models: Vec::new() }
    }
}
