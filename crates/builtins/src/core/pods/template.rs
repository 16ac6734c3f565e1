//! Pod templates: what their owners validate and warn about.

use super::{validate, warnings};
use crate::shared::{Fields, check};
use kaji_meta::{
    Path,
    field::{Error, ErrorList},
    labels::Selector,
    object, validation,
};
use kaji_resource::Ctx;
use serde_json::Value;

/// Validates a PodTemplateSpec.
pub fn validate(errs: &mut ErrorList, path: &Path, template: &Value) {
    let (meta, spec) = (template.at("metadata"), template.at("spec"));
    errs.extend(validation::validate_labels(meta.at("labels"), &path.child("labels")));
    errs.extend(validation::validate_annotations(meta.at("annotations"), &path.child("annotations")));
    validate::annotations::annotations(errs, &path.child("annotations"), meta, spec);
    let spec_path = path.child("spec");
    validate::pod_spec(errs, &spec_path, spec, None);
    validate::annotations::match_fields(errs, &spec_path, meta, spec);
    if !spec.list("ephemeralContainers").is_empty() {
        let text = "ephemeral containers not allowed in pod template";
        errs.push(Error::forbidden(&spec_path.child("ephemeralContainers"), text));
    }
}

/// The template of a workload that always restarts its pods: matched by its selector, valid, and without what only
/// pods without a template may have.
pub fn validate_restarted(
    errs: &mut ErrorList,
    path: &Path,
    template: &Value,
    selector: Option<&Selector>,
    kind: &str,
) {
    if let Some(s) = selector.filter(|s| !s.is_everything()) {
        check::selector_matches_template(errs, path, s, template);
    }
    validate(errs, path, template);
    only_restarted(errs, path, template, kind);
}

/// The selector and the template of a Deployment's or ReplicaSet's spec.
pub fn validate_replicated(errs: &mut ErrorList, path: &Path, spec: &Value) {
    let (selector, at) = (spec.at("selector"), path.child("selector"));
    check::workload_selector(errs, &at, selector, "deployment");
    match Selector::from_label_selector(selector) {
        Err(_) => {
            errs.push(check::invalid_struct(&at, check::LABEL_SELECTOR, selector, "invalid label selector"));
        }
        Ok(s) => {
            validate_restarted(errs, &path.child("template"), spec.at("template"), Some(&s), "ReplicaSet");
        }
    }
}

/// `restartPolicy: Always` and no deadline.
pub fn only_restarted(errs: &mut ErrorList, path: &Path, template: &Value, kind: &str) {
    let spec = template.at("spec");
    let path = path.child("spec");
    check::one_of(errs, &path.child("restartPolicy"), spec.text("restartPolicy"), &["Always"]);
    if spec.has("activeDeadlineSeconds") {
        let text = format!("activeDeadlineSeconds in {kind} is not Supported");
        errs.push(Error::forbidden(&path.child("activeDeadlineSeconds"), text));
    }
}

/// Upstream's warnings for a template, at the path of the template.
pub fn warn(path: &Path, template: &Value) -> Vec<String> {
    warnings::spec_and_meta(path, true, template.at("spec"), template.at("metadata"))
}

/// Upstream's warnings for a workload with a template of pods that are named after it: for a new name, and for a template
/// that is new or may have changed.
pub fn warn_workload(ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
    let of_template = || warn(&Path::new("spec").child("template"), new.at("spec").at("template"));
    match old {
        None => {
            let of_name = warn_name(object::name(new), "Pod names and hostnames");
            of_name.into_iter().chain(of_template()).collect()
        }
        Some(old) if ctx.subresource.is_empty() && object::generation(new) != object::generation(old) => {
            of_template()
        }
        Some(_) => vec![],
    }
}

/// The warning for names that make poor host names. `what` is how the name is used.
pub fn warn_name(name: &str, what: &str) -> Option<String> {
    let messages = validation::is_dns1123_label(name);
    (!messages.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in {what}, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            messages.join(" ")
        )
    })
}
