//! References of images: `nginx`, `nginx:1.27`, `registry.example:5000/team/app@sha256:…`.
//!
//! The grammar is that of the distribution project: a first component that has a dot or a colon, is `localhost` or has upper
//! case is a registry; names without one are Docker Hub's, those of one component in `library/`; without tag and digest the
//! tag is `latest`.

use crate::digest::Digest;
use crate::error::ImageError;
use std::fmt;

/// Docker Hub, as references name it.
pub const DOCKER_HUB: &str = "docker.io";
/// Docker Hub's registry.
const DOCKER_HUB_REGISTRY: &str = "registry-1.docker.io";
/// As the distribution project bounds them.
const MAX_NAME: usize = 255;
const MAX_TAG: usize = 128;

/// A normalised reference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reference {
    registry: String,
    path: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// Parses a reference as users write it.
    ///
    /// # Errors
    /// [`ImageError::Invalid`], with the texts of the distribution project.
    pub fn parse(text: &str) -> Result<Reference, ImageError> {
        let invalid =
            |why: &str| Err(ImageError::Invalid(format!("couldn't parse image name {text:?}: {why}")));
        if text.len() == 64 && text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)) {
            return invalid("invalid repository name, cannot specify 64-byte hexadecimal strings");
        }
        let (rest, digest) = match text.split_once('@') {
            Some((rest, digest)) => match Digest::parse(digest) {
                Ok(digest) => (rest, Some(digest)),
                Err(_) => return invalid("invalid reference format"),
            },
            None => (text, None),
        };
        let (name, tag) = match rest.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag)),
            _ => (rest, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return invalid("invalid reference format");
        }
        let (registry, path) = match name.split_once('/') {
            Some((first, path)) if is_registry(first) => (first, path.to_owned()),
            _ => (DOCKER_HUB, name.to_owned()),
        };
        let registry = if registry == "index.docker.io" { DOCKER_HUB } else { registry };
        let path = if registry == DOCKER_HUB && !path.contains('/') && !path.is_empty() {
            format!("library/{path}")
        } else {
            path
        };
        if path.bytes().any(|b| b.is_ascii_uppercase()) {
            return invalid("invalid reference format: repository name must be lowercase");
        }
        if !is_host(registry) || !path.split('/').all(is_component) {
            return invalid("invalid reference format");
        }
        if registry.len() + 1 + path.len() > MAX_NAME {
            return invalid("repository name must not be more than 255 characters");
        }
        let tag = match (tag, &digest) {
            (Some(tag), _) => Some(tag.to_owned()),
            (None, Some(_)) => None,
            (None, None) => Some("latest".to_owned()),
        };
        Ok(Reference { registry: registry.to_owned(), path, tag, digest })
    }

    /// The registry, as the reference names it: `docker.io`.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Host and port that serve it: `registry-1.docker.io`.
    #[must_use]
    pub fn host(&self) -> &str {
        if self.registry == DOCKER_HUB { DOCKER_HUB_REGISTRY } else { &self.registry }
    }

    /// The repository on its registry: `library/nginx`.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Registry and path: `docker.io/library/nginx`.
    #[must_use]
    pub fn repository(&self) -> String {
        format!("{}/{}", self.registry, self.path)
    }

    /// The digest, if it has one.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What a registry is asked for: the digest, or else the tag.
    #[must_use]
    pub fn object(&self) -> &str {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.as_str(),
            (None, tag) => tag.as_deref().unwrap_or("latest"),
        }
    }

    /// `repository:tag`, if it has a tag and no digest: what an image is listed by.
    #[must_use]
    pub fn repo_tag(&self) -> Option<String> {
        match (&self.digest, &self.tag) {
            (None, Some(tag)) => Some(format!("{}:{tag}", self.repository())),
            _ => None,
        }
    }

    /// `repository@digest`, with a manifest's digest.
    #[must_use]
    pub fn repo_digest(&self, manifest: &Digest) -> String {
        format!("{}@{manifest}", self.repository())
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.path)?;
        if let Some(tag) = &self.tag {
            write!(f, ":{tag}")?;
        }
        if let Some(digest) = &self.digest {
            write!(f, "@{digest}")?;
        }
        Ok(())
    }
}

fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost" || first.bytes().any(|b| b.is_ascii_uppercase())
}

/// A name or address, with or without a port.
fn is_host(text: &str) -> bool {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((address, rest)) if address.parse::<std::net::Ipv6Addr>().is_ok() => {
                (None, if rest.is_empty() { None } else { Some(rest.strip_prefix(':').unwrap_or("")) })
            }
            _ => return false,
        },
        None => match text.split_once(':') {
            Some((host, port)) => (Some(host), Some(port)),
            None => (Some(text), None),
        },
    };
    let label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        inner && !label.is_empty() && !label.starts_with('-') && !label.ends_with('-')
    };
    let number = |port: &str| {
        !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()
    };
    host.is_none_or(|host| host.split('.').all(label)) && port.is_none_or(number)
}

/// Letters and digits, joined by a dot, one or two underscores, or hyphens.
fn is_component(text: &str) -> bool {
    let alphanumeric = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    if !alphanumeric(*first) || !alphanumeric(*last) {
        return false;
    }
    bytes
        .split(|b| alphanumeric(*b))
        .all(|joint| matches!(joint, b"" | b"." | b"_" | b"__") || joint.iter().all(|b| *b == b'-'))
}

fn is_tag(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let first = text.bytes().next().is_some_and(word);
    first && text.len() <= MAX_TAG && text.bytes().all(|b| word(b) || b == b'.' || b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use proptest::prelude::*;

    #[test]
    fn references_are_normalised() {
        let digest = Digest::of(b"x");
        let mut seen = String::new();
        for text in [
            "nginx",
            "nginx:1.27",
            "user/app",
            "docker.io/nginx",
            "index.docker.io/user/app:v1",
            "localhost/app",
            "localhost:5000/app",
            "registry.k8s.io/pause:3.10",
            "[::1]:5000/a/b",
            "UPPER/app",
            "Nginx",
            "a//b",
            "a/b:",
            "a:b:c",
            "-a/b",
            "a__b/c--d.e",
            "a___b",
            "x.y:99999/z",
            "",
            "../../etc/passwd",
            "a@sha256:12",
            digest.hex(),
        ] {
            match Reference::parse(text) {
                Ok(reference) => seen += &format!("{text} -> {reference} on {}\n", reference.host()),
                Err(error) => seen += &format!("{error}\n"),
            }
        }
        expect![[r#"
            nginx -> docker.io/library/nginx:latest on registry-1.docker.io
            nginx:1.27 -> docker.io/library/nginx:1.27 on registry-1.docker.io
            user/app -> docker.io/user/app:latest on registry-1.docker.io
            docker.io/nginx -> docker.io/library/nginx:latest on registry-1.docker.io
            index.docker.io/user/app:v1 -> docker.io/user/app:v1 on registry-1.docker.io
            localhost/app -> localhost/app:latest on localhost
            localhost:5000/app -> localhost:5000/app:latest on localhost:5000
            registry.k8s.io/pause:3.10 -> registry.k8s.io/pause:3.10 on registry.k8s.io
            [::1]:5000/a/b -> [::1]:5000/a/b:latest on [::1]:5000
            UPPER/app -> UPPER/app:latest on UPPER
            couldn't parse image name "Nginx": invalid reference format: repository name must be lowercase
            couldn't parse image name "a//b": invalid reference format
            couldn't parse image name "a/b:": invalid reference format
            couldn't parse image name "a:b:c": invalid reference format
            couldn't parse image name "-a/b": invalid reference format
            a__b/c--d.e -> docker.io/a__b/c--d.e:latest on registry-1.docker.io
            couldn't parse image name "a___b": invalid reference format
            couldn't parse image name "x.y:99999/z": invalid reference format
            couldn't parse image name "": invalid reference format
            couldn't parse image name "../../etc/passwd": invalid reference format
            couldn't parse image name "a@sha256:12": invalid reference format
            couldn't parse image name "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881": invalid repository name, cannot specify 64-byte hexadecimal strings
        "#]]
        .assert_eq(&seen);
        let both = Reference::parse(&format!("a/b:t@{digest}")).unwrap();
        assert_eq!((both.object(), both.repo_tag()), (digest.as_str(), None));
    }

    proptest! {
        #[test]
        fn a_normalised_reference_is_itself(text in "[a-zA-Z0-9./:@_-]{0,40}") {
            if let Ok(reference) = Reference::parse(&text) {
                let shown = reference.to_string();
                prop_assert_eq!(Reference::parse(&shown).unwrap(), reference);
            }
        }
    }
}
