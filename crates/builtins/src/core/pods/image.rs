//! Image references, as far as pull policies need them.

/// The policy for an image without a given pull policy: `Always` for the tag `latest` (also when it is implied),
/// else `IfNotPresent`. References that do not parse get `IfNotPresent`, as upstream ignores the error.
pub fn default_pull_policy(image: &str) -> &'static str {
    if tag(image) == Some("latest") { "Always" } else { "IfNotPresent" }
}

/// The tag of a reference, `latest` if there is neither tag nor digest, none if it has only a digest or does not parse.
fn tag(image: &str) -> Option<&str> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(n, d)| (n, Some(d)));
    let last = name.rfind('/').map_or(0, |i| i + 1);
    let (repository, tag) = match name[last..].find(':') {
        Some(i) => (&name[..last + i], Some(&name[last + i + 1..])),
        None => (name, None),
    };
    if !is_repository(repository) || tag.is_some_and(|t| !is_tag(t)) {
        return None;
    }
    tag.or(if digest.is_none() { Some("latest") } else { None })
}

fn is_tag(t: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    t.len() <= 128 && t.starts_with(word) && t.chars().all(|c| word(c) || c == '.' || c == '-')
}

/// The longest path of a repository, without its domain, in bytes.
const LONGEST_PATH: usize = 255;
/// What stands before the name of a repository that has neither domain nor slash.
const DEFAULT_PATH: &str = "library/";

fn is_repository(name: &str) -> bool {
    let (domain, path) = match name.split_once('/') {
        Some((d, p)) if d.contains(['.', ':']) || d == "localhost" || d.to_lowercase() != d => (Some(d), p),
        _ => (None, name),
    };
    let identifier = domain.is_none() && name.len() == 64 && name.chars().all(|c| c.is_ascii_hexdigit());
    let domain_ok = domain.is_none_or(|d| {
        !d.is_empty()
            && d.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']'))
    });
    let library = domain.is_none() && !path.contains('/');
    let length = path.len() + if library { DEFAULT_PATH.len() } else { 0 };
    !identifier && domain_ok && length <= LONGEST_PATH && path.split('/').all(is_component)
}

fn is_component(c: &str) -> bool {
    let word = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    c.starts_with(word) && c.ends_with(word) && c.chars().all(|c| word(c) || matches!(c, '.' | '_' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_the_pull_policy_by_the_tag() {
        for (image, want) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.25", "IfNotPresent"),
            ("registry:5000/a/b", "Always"),
            ("registry:5000/a/b:v1", "IfNotPresent"),
            ("a@sha256:0000000000000000000000000000000000000000000000000000000000000000", "IfNotPresent"),
            ("Foo/BAR", "IfNotPresent"),
            ("", "IfNotPresent"),
        ] {
            assert_eq!(default_pull_policy(image), want, "{image}");
        }
        assert_eq!(default_pull_policy(&"a".repeat(247)), "Always");
        assert_eq!(default_pull_policy(&"a".repeat(248)), "IfNotPresent");
        assert_eq!(default_pull_policy(&format!("example.com/{}", "a".repeat(255))), "Always");
        assert_eq!(default_pull_policy(&format!("example.com/{}", "a".repeat(256))), "IfNotPresent");
    }
}
