//! What a policy must be, in upstream's words. Source: `apis/audit/validation`.

use super::file::{RawPolicy, RawResources, RawRule};
use crate::{Level, Stage};
use kaji_meta::{ErrorList, Path, field::Error, validation::is_dns1123_subdomain};

pub(super) fn validate(policy: &RawPolicy) -> ErrorList {
    let mut errors = stages(&policy.omit_stages, &Path::new("omitStages"));
    let rules = Path::new("rules");
    for (i, rule) in policy.rules.iter().enumerate() {
        errors.extend(self::rule(rule, &rules.index(i)));
    }
    errors
}

fn rule(rule: &RawRule, path: &Path) -> ErrorList {
    let mut errors = level(&rule.level, &path.child("level"));
    let urls = path.child("nonResourceURLs");
    errors.extend(paths(&rule.non_resource_urls, &urls));
    errors.extend(resources(&rule.resources, &path.child("resources")));
    errors.extend(stages(&rule.omit_stages, &path.child("omitStages")));
    let about_resources = !rule.resources.is_empty() || !rule.namespaces.is_empty();
    if !rule.non_resource_urls.is_empty() && about_resources {
        let detail = "rules cannot apply to both regular resources and non-resource URLs";
        errors.push(Error::invalid(&urls, rule.non_resource_urls.clone(), detail));
    }
    errors
}

fn level(level: &str, path: &Path) -> ErrorList {
    match (level, Level::parse(level)) {
        ("", _) => vec![Error::required(path, "")],
        (_, Some(_)) => vec![],
        _ => vec![Error::not_supported(path, level, &Level::ALL.map(Level::as_str))],
    }
}

fn paths(urls: &[String], path: &Path) -> ErrorList {
    let mut errors = vec![];
    for (i, url) in urls.iter().enumerate().filter(|(_, url)| *url != "*") {
        let invalid = |detail: &str| Error::invalid(&path.index(i), url.as_str(), detail);
        if !url.starts_with('/') {
            errors.push(invalid("non-resource URL rules must begin with a '/' character"));
        }
        if url.strip_suffix('*').unwrap_or(url).contains('*') {
            errors.push(invalid("non-resource URL wildcards '*' must be the final character of the rule"));
        }
    }
    errors
}

/// As upstream, without saying which of the entries it is.
fn resources(entries: &[RawResources], path: &Path) -> ErrorList {
    let mut errors = vec![];
    for entry in entries {
        if !matches!(entry.group.as_str(), "" | "*") {
            let problems = is_dns1123_subdomain(&entry.group);
            if !problems.is_empty() {
                let group = entry.group.as_str();
                errors.push(Error::invalid(&path.child("group"), group, problems.join(",")));
            }
        }
        if !entry.resource_names.is_empty() && entry.resources.is_empty() {
            let detail = "using resourceNames requires at least one resource";
            errors.push(Error::invalid(&path.child("resourceNames"), entry.resource_names.clone(), detail));
        }
    }
    errors
}

fn stages(stages: &[String], path: &Path) -> ErrorList {
    let allowed = || format!("allowed stages are {}", Stage::ALL.map(Stage::as_str).join(","));
    let unknown = stages.iter().enumerate().filter(|(_, s)| Stage::parse(s).is_none());
    unknown.map(|(i, s)| Error::invalid(&path.index(i), s.as_str(), allowed())).collect()
}
