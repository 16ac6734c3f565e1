//! CustomResourceDefinitions: names, versions and defaults here; schemas are checked by `Deps::validate_crd`.

use crate::{
    Deps, ValidateCrd,
    admissionregistration::client,
    shared::{
        check, conditions, created, metadata, rules,
        value::{Fields, copy_field, default_text, ensure_object, list_mut, put, set_default},
    },
};
use kaji_meta::{
    field::{Error, ErrorList, Path},
    object, validation,
};
use kaji_resource::{Ctx, DeletionHooks, Hooks, ResourceDef, Scope, SubresourceDef};
use serde_json::{Value, json};

/// The finalizer that keeps a definition until its objects are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

struct Definitions {
    deep: Option<ValidateCrd>,
}

fn spec_path(field: &str) -> Path {
    Path::new("spec").child(field)
}

fn joined(errs: &mut ErrorList, path: &Path, value: &str, bad: Vec<String>, intro: &str) {
    if !bad.is_empty() {
        errs.push(Error::invalid(path, value, format!("{intro}{}", bad.join(","))));
    }
}

fn names(errs: &mut ErrorList, names: &Value, path: &Path, required: bool) {
    const MIXED: &str = "may have mixed case, but should otherwise match: ";
    for f in ["plural", "singular", "kind", "listKind"].into_iter().filter(|_| required) {
        check::required(errs, &path.child(f), names.text(f));
    }
    for (f, intro) in [("plural", ""), ("singular", ""), ("kind", MIXED), ("listKind", MIXED)] {
        let text = names.text(f);
        if !text.is_empty() {
            joined(errs, &path.child(f), text, validation::is_dns1035_label(&lower(f, text)), intro);
        }
    }
    for (i, s) in names.strings("shortNames").enumerate() {
        joined(errs, &path.child("shortNames").index(i), s, validation::is_dns1035_label(s), "");
    }
    let kind = names.text("kind");
    if !kind.is_empty() && kind == names.text("listKind") {
        errs.push(Error::invalid(&path.child("listKind"), kind, "kind and listKind may not be the same"));
    }
    for (i, c) in names.strings("categories").enumerate() {
        joined(errs, &path.child("categories").index(i), c, validation::is_dns1035_label(c), "");
    }
}

/// Kinds may have capitals; names of resources may not.
fn lower(field: &str, text: &str) -> String {
    if ["kind", "listKind"].contains(&field) { text.to_lowercase() } else { text.to_owned() }
}

fn column(errs: &mut ErrorList, path: &Path, c: &Value) {
    check::required(errs, &path.child("name"), c.text("name"));
    let types = ["boolean", "date", "integer", "number", "string"];
    let known = |all: &[&str]| format!("must be one of {}", all.join(","));
    match c.text("type") {
        "" => errs.push(Error::required(&path.child("type"), known(&types))),
        ty if !types.contains(&ty) => errs.push(Error::invalid(&path.child("type"), ty, known(&types))),
        _ => {}
    }
    let formats = ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    let format = c.text("format");
    if !format.is_empty() && !formats.contains(&format) {
        errs.push(Error::invalid(&path.child("format"), format, known(&formats)));
    }
    // Upstream's internal name of the field.
    let at = path.child("JSONPath");
    match c.text("jsonPath") {
        "" => errs.push(Error::required(&at, "")),
        text if !text.starts_with('.') => errs.push(Error::invalid(&at, text, NO_PATH)),
        _ => {}
    }
}

const NO_PATH: &str = "must be a simple json path starting with .";

fn scale(errs: &mut ErrorList, path: &Path, s: &Value) {
    let checks = [
        ("specReplicasPath", ".spec.", true),
        ("statusReplicasPath", ".status.", true),
        ("labelSelectorPath", "", false),
    ];
    for (f, prefix, required) in checks {
        let (at, text) = (path.child(f), s.text(f));
        if text.is_empty() {
            if required {
                errs.push(Error::required(&at, ""));
            }
        } else if !text.starts_with('.') {
            errs.push(Error::invalid(&at, text, NO_PATH));
        } else if !prefix.is_empty() && !text.starts_with(prefix) {
            errs.push(Error::invalid(
                &at,
                text,
                format!("should be a json path under {}", prefix.trim_end_matches('.')),
            ));
        } else if prefix.is_empty() && !text.starts_with(".spec.") && !text.starts_with(".status.") {
            errs.push(Error::invalid(&at, text, "should be a json path under either .spec or .status"));
        }
    }
}

/// Problems that all versions share are reported once, at the field where v1beta1 had it.
#[derive(Clone, Copy)]
struct Shared {
    subresources: bool,
    columns: bool,
}

impl Shared {
    fn of(versions: &[Value]) -> Shared {
        let same =
            |f: &str| versions.iter().all(|v| v.get(f) == versions.first().and_then(|first| first.get(f)));
        Shared { subresources: same("subresources"), columns: same("additionalPrinterColumns") }
    }
}

fn subresources(errs: &mut ErrorList, path: &Path, v: &Value) {
    if v.at("subresources").has("scale") {
        scale(errs, &path.child("subresources").child("scale"), v.at("subresources").at("scale"));
    }
}

fn columns(errs: &mut ErrorList, path: &Path, v: &Value) {
    for (i, c) in v.list("additionalPrinterColumns").iter().enumerate() {
        column(errs, &path.child("additionalPrinterColumns").index(i), c);
    }
}

fn version(errs: &mut ErrorList, path: &Path, v: &Value, shared: Shared) {
    let name = v.text("name");
    joined(errs, &path.child("name"), name, validation::is_dns1035_label(name), "");
    if let Some(warning) = v.opt_text("deprecationWarning") {
        let at = path.child("deprecationWarning");
        let mut bad = |text: &str| errs.push(Error::invalid(&at, warning, text));
        if !v.flag("deprecated") {
            bad("can only be set for deprecated versions");
        }
        if warning.len() > 256 {
            bad("must be <= 256 characters long");
        }
        if warning.is_empty() {
            bad("must not be an empty string");
        }
        if let Some((i, _)) = warning.char_indices().find(|(_, c)| !kaji_meta::text::is_printable(*c)) {
            bad(&format!(
                "must only contain printable UTF-8 characters; non-printable character found at index {i}"
            ));
        }
    }
    if !shared.subresources {
        subresources(errs, path, v);
    }
    if !shared.columns {
        columns(errs, path, v);
    }
}

fn versions(errs: &mut ErrorList, spec: &Value) {
    let (path, list) = (spec_path("versions"), spec.list("versions"));
    for (i, _) in list.iter().enumerate().filter(|(_, v)| !v.at("schema").has("openAPIV3Schema")) {
        errs.push(Error::required(&path.index(i).child("schema").child("openAPIV3Schema"), ""));
    }
    let shared = Shared::of(list);
    list.iter().enumerate().for_each(|(i, v)| version(errs, &path.index(i), v, shared));
    let mut bad = |text: &str| errs.push(Error::invalid(&path, spec.at("versions").clone(), text));
    if list.iter().enumerate().any(|(i, v)| list[..i].iter().any(|o| o.text("name") == v.text("name"))) {
        bad("must contain unique version names");
    }
    if list.iter().filter(|v| v.flag("storage")).count() != 1 {
        bad("must have exactly one version marked as storage version");
    }
}

fn conversion(errs: &mut ErrorList, spec: &Value, old: Option<&Value>) {
    let (c, path) = (spec.at("conversion"), spec_path("conversion"));
    if c.is_null() {
        return;
    }
    check::required_one_of(errs, &path.child("strategy"), c.text("strategy"), &["None", "Webhook"]);
    let webhook = c.at("webhook");
    // Upstream's internal names of the fields.
    let (config, versions) = (path.child("webhookClientConfig"), path.child("conversionReviewVersions"));
    if c.text("strategy") != "Webhook" {
        const UNSET: &str = "should not be set when strategy is not set to Webhook";
        rules::frozen(errs, &config, !webhook.has("clientConfig"), UNSET);
        rules::frozen(errs, &versions, webhook.list("conversionReviewVersions").is_empty(), UNSET);
        return;
    }
    if webhook.has("clientConfig") {
        client(errs, &config, webhook.at("clientConfig"));
    } else {
        errs.push(Error::required(&config, "required when strategy is set to Webhook"));
    }
    // Those that no server of this age could use are refused, unless they were there before.
    let usable = |c: &Value| {
        let mut all = c.at("webhook").strings("conversionReviewVersions").peekable();
        all.peek().is_none() || all.any(|v| ["v1", "v1beta1"].contains(&v))
    };
    let strict = old.is_none_or(|o| usable(o.at("conversion")));
    review_versions(errs, &versions, &webhook.strings("conversionReviewVersions").collect::<Vec<_>>());
    if strict && !usable(c) {
        let all = webhook.at("conversionReviewVersions").clone();
        errs.push(Error::invalid(&versions, all, "must include at least one of v1, v1beta1"));
    }
}

fn review_versions(errs: &mut ErrorList, path: &Path, all: &[&str]) {
    if all.is_empty() {
        errs.push(Error::required(path, ""));
    }
    for (i, version) in all.iter().enumerate() {
        if all[..i].contains(version) {
            errs.push(Error::invalid(&path.index(i), *version, "duplicate version"));
            continue;
        }
        for bad in validation::is_dns1035_label(version) {
            errs.push(Error::invalid(&path.index(i), *version, bad));
        }
    }
}

fn stored_versions(errs: &mut ErrorList, object: &Value) {
    let (path, stored) = (Path::new("status").child("storedVersions"), object.at("status"));
    let storage = object.at("spec").list("versions").iter().find(|v| v.flag("storage"));
    if stored.list("storedVersions").is_empty() {
        let all = stored.at("storedVersions").clone();
        return errs.push(Error::invalid(&path, all, "must have at least one stored version"));
    }
    for (i, v) in stored.strings("storedVersions").enumerate() {
        if !object.at("spec").list("versions").iter().any(|s| s.text("name") == v) {
            let text = format!(
                "missing from spec.versions; {v} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {v} and removes {v} from status.storedVersions"
            );
            errs.push(Error::invalid(&path.index(i), v, text));
        }
    }
    if let Some(s) = storage.map(|s| s.text("name"))
        && !stored.strings("storedVersions").any(|v| v == s)
    {
        let text = format!("must have the storage version {s}");
        errs.push(Error::invalid(&path, stored.at("storedVersions").clone(), text));
    }
}

fn validate(object: &Value, old: Option<&Value>) -> ErrorList {
    let (mut errs, spec) = (vec![], object.at("spec"));
    let (group, plural) = (spec.text("group"), spec.at("names").text("plural"));
    let name = object::name(object);
    // Without a name nothing else is checked.
    if !name.is_empty() && name != format!("{plural}.{group}") {
        let text = r#"must be spec.names.plural+"."+spec.group"#;
        errs.push(Error::invalid(&Path::new("metadata").child("name"), object::name(object), text));
    }
    let path = spec_path("group");
    let bad = validation::is_dns1123_subdomain(group);
    if group.is_empty() {
        errs.push(Error::required(&path, ""));
    } else if !bad.is_empty() {
        errs.push(Error::invalid(&path, group, bad.join(",")));
    } else if !group.contains('.') {
        errs.push(Error::invalid(&path, group, "should be a domain with at least one dot"));
    }
    check::required_one_of(&mut errs, &spec_path("scope"), spec.text("scope"), &["Cluster", "Namespaced"]);
    if spec.flag("preserveUnknownFields") && !old.is_some_and(|o| o.at("spec").flag("preserveUnknownFields"))
    {
        let text = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errs.push(Error::invalid(&spec_path("preserveUnknownFields"), true, text));
    }
    versions(&mut errs, spec);
    names(&mut errs, spec.at("names"), &spec_path("names"), true);
    let (list, path) = (spec.list("versions"), Path::new("spec"));
    let shared = Shared::of(list);
    if let Some(v) = list.first().filter(|_| shared.subresources) {
        subresources(&mut errs, &path, v);
    }
    if let Some(v) = list.first().filter(|_| shared.columns) {
        columns(&mut errs, &path, v);
    }
    conversion(&mut errs, spec, old.map(|o| o.at("spec")));
    stored_versions(&mut errs, object);
    errs
}

fn established(object: &Value) -> bool {
    conditions::is_true(object.at("status"), "Established")
}

/// What an established definition may not change.
fn frozen(errs: &mut ErrorList, new: &Value, old: &Value) {
    let (n, o) = (new.at("spec"), old.at("spec"));
    check::immutable(errs, &spec_path("group"), n.at("group"), o.at("group"));
    let path = spec_path("names").child("plural");
    check::immutable(errs, &path, n.at("names").at("plural"), o.at("names").at("plural"));
    if established(old) {
        check::immutable(errs, &spec_path("scope"), n.at("scope"), o.at("scope"));
        let path = spec_path("names").child("kind");
        check::immutable(errs, &path, n.at("names").at("kind"), o.at("names").at("kind"));
    }
}

/// The storage version belongs to the stored ones.
fn store_version(object: &mut Value) {
    let storage = object.at("spec").list("versions").iter().find(|v| v.flag("storage"));
    let Some(name) = storage.map(|v| v.text("name").to_owned()) else { return };
    let status = ensure_object(object, "status");
    if !status.strings("storedVersions").any(|v| v == name) {
        let mut all = status.list("storedVersions").to_vec();
        all.push(name.into());
        put(status, "storedVersions", all);
    }
}

impl Hooks for Definitions {
    fn deletion(&self) -> &dyn DeletionHooks {
        self
    }

    fn default(&self, _version: &str, object: &mut Value) {
        let spec = ensure_object(object, "spec");
        let names = ensure_object(spec, "names");
        let kind = names.text("kind").to_owned();
        default_text(names, "singular", &kind.to_lowercase());
        if !kind.is_empty() {
            default_text(names, "listKind", &format!("{kind}List"));
        }
        set_default(spec, "conversion", || json!({"strategy": "None"}));
        if let Some(service) =
            spec.pointer_mut("/conversion/webhook/clientConfig/service").filter(|s| s.is_object())
        {
            set_default(service, "port", || 443.into());
        }
        if object.at("status").list("storedVersions").is_empty() {
            store_version(object);
        }
    }

    fn prepare_create(&self, _ctx: &Ctx<'_>, object: &mut Value) {
        put(object, "status", json!({}));
        store_version(object);
    }

    fn validate_create(&self, _ctx: &Ctx<'_>, object: &Value) -> ErrorList {
        let mut errs = validate(object, None);
        if let Some(deep) = &self.deep {
            errs.extend(deep(object, None));
        }
        errs
    }

    fn prepare_update(&self, ctx: &Ctx<'_>, new: &mut Value, old: &Value) {
        if ctx.subresource.is_empty() {
            copy_field(new, old, "status");
            store_version(new);
        }
    }

    fn validate_update(&self, ctx: &Ctx<'_>, new: &Value, old: &Value) -> ErrorList {
        let mut errs = vec![];
        if ctx.subresource == "status" {
            names(
                &mut errs,
                new.at("status").at("acceptedNames"),
                &Path::new("status").child("acceptedNames"),
                false,
            );
            return errs;
        }
        errs.extend(validate(new, Some(old)));
        if let Some(deep) = &self.deep {
            errs.extend(deep(new, Some(old)));
        }
        frozen(&mut errs, new, old);
        errs
    }

    /// Formats that are not recognized, but for those that the stored definition has already.
    fn warnings(&self, ctx: &Ctx<'_>, new: &Value, old: Option<&Value>) -> Vec<String> {
        if !ctx.subresource.is_empty() {
            return vec![];
        }
        let before = old.map(formats_of).unwrap_or_default();
        let mut formats = formats_of(new);
        formats.retain(|f| !before.contains(f));
        formats.iter().map(|f| format!("unrecognized format {}", kaji_meta::text::quote(f))).collect()
    }

    fn row(&self, _version: &str, object: &Value, _now: jiff::Timestamp) -> Vec<Value> {
        created::row(object)
    }
}

impl DeletionHooks for Definitions {
    fn marks_timestamp_only(&self) -> bool {
        true
    }

    fn first_delete_ignores_propagation(&self) -> bool {
        true
    }

    fn mark_deleted(&self, ctx: &Ctx<'_>, object: &mut Value) {
        let meta = ensure_object(object, "metadata");
        if !meta.strings("finalizers").any(|f| f == CLEANUP_FINALIZER) {
            let mut all = meta.list("finalizers").to_vec();
            all.push(CLEANUP_FINALIZER.into());
            put(meta, "finalizers", all);
        }
        let condition = json!({
            "type": "Terminating",
            "status": "True",
            "reason": "InstanceDeletionPending",
            "message": "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
            "lastTransitionTime": kaji_meta::Time::new(ctx.now).to_string(),
        });
        let status = ensure_object(object, "status");
        match list_mut(status, "conditions").iter_mut().find(|c| c.text("type") == "Terminating") {
            Some(c) => *c = condition,
            None => {
                let mut all = status.list("conditions").to_vec();
                all.push(condition);
                put(status, "conditions", all);
            }
        }
    }

    /// Every deletion begins with a mark; the finalizer it adds is what later deletions wait for.
    fn deletion_waits(&self, object: &Value) -> bool {
        object::deletion_timestamp(object).is_none()
    }
}

/// The formats in the schemas of a definition that are not recognized.
fn formats_of(definition: &Value) -> Vec<String> {
    let mut formats = vec![];
    for version in definition.at("spec").list("versions") {
        kaji_schema::validate::unrecognized_formats(version.at("schema").at("openAPIV3Schema"), &mut formats);
    }
    let mut found = std::collections::BTreeSet::new();
    formats.retain(|f| found.insert(f.clone()));
    formats
}

/// The definition of CustomResourceDefinitions.
pub fn def(deps: &Deps) -> ResourceDef {
    let hooks = Definitions { deep: deps.validate_crd.clone() };
    ResourceDef::builtin(
        "apiextensions.k8s.io",
        "v1",
        "CustomResourceDefinition",
        "customresourcedefinitions",
        Scope::Cluster,
        created::COLUMNS,
        hooks,
    )
    .storage_prefix("apiextensions.k8s.io/customresourcedefinitions")
    .metadata_checks(&[metadata::GENERAL_UPDATE], &[metadata::GENERAL_UPDATE])
    .short(&["crd", "crds"])
    .category(&["api-extensions"])
    .with_generation()
    .conditional_update_only()
    .sub(&[SubresourceDef::status()])
}

#[cfg(test)]
mod tests;
