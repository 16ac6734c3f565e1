//! Content negotiation of resources, by the `Accept` header.
//! Source: Kubernetes API concepts, "Alternate representations of resources".

use kaji_engine::{Accept, Encoding, Form, MediaTypeOptions};

/// One clause of an `Accept` header.
#[derive(Debug, PartialEq)]
pub struct Clause<'a> {
    /// `application/json`, in lower case as sent.
    pub media: &'a str,
    /// Parameters without `q`.
    pub params: Vec<(&'a str, &'a str)>,
    quality: u16,
}

impl Clause<'_> {
    /// A parameter.
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params.iter().find(|(k, _)| *k == key).map(|(_, v)| *v)
    }
}

/// Clauses by preference: quality first, then what names a type, then order of appearance. At most 32 are looked at.
pub fn clauses(header: &str) -> Vec<Clause<'_>> {
    let mut clauses: Vec<Clause<'_>> = header
        .split(',')
        .take(32)
        .filter_map(|clause| {
            let mut parts = clause.split(';').map(str::trim);
            let media = parts.next().filter(|m| !m.is_empty())?;
            let mut quality = 1000;
            let mut params = vec![];
            for part in parts {
                let (key, value) = part.split_once('=').unwrap_or((part, ""));
                let value = value.trim_matches('"');
                if key == "q" {
                    quality = (value.parse::<f32>().unwrap_or(1.0).clamp(0.0, 1.0) * 1000.0) as u16;
                } else {
                    params.push((key, value));
                }
            }
            Some(Clause { media, params, quality })
        })
        .collect();
    clauses
        .sort_by_key(|c| (std::cmp::Reverse(c.quality), c.media.starts_with("*/"), c.media.ends_with("/*")));
    clauses
}

/// What upstream lists in its 406 of a resource.
pub const SUPPORTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

/// Negotiates a resource's answer. `None` is 406. A watch takes the same choice, though YAML has no event framing: the engine
/// refuses it then, as upstream does.
///
/// Which resource it is does not matter yet, so that custom resources, which have no protobuf form, come with what the
/// client takes instead.
pub fn accept(header: Option<&str>) -> Option<Accept> {
    let header = match header {
        None | Some("") => return Some(Accept::default()),
        Some(h) => h,
    };
    let clauses = clauses(header);
    let mut choices = clauses.iter().filter_map(|clause| Some((one(clause)?, clause)));
    let (MediaTypeOptions { form, encoding, meta_v1beta1 }, chosen) = choices.next()?;
    let pretty = chosen.param("pretty") == Some("1");
    let binary = |a: &MediaTypeOptions| a.encoding == Encoding::Protobuf && a.form == Form::Object;
    let fallback = choices.map(|(choice, _)| choice).find(|a| !binary(a));
    Some(Accept { form, encoding, meta_v1beta1, pretty, fallback, separate: false })
}

/// What a clause asks for. Source: `acceptMediaTypeOptions` of apiserver's `negotiation`, and `AllowsMediaTypeTransform`.
fn one(clause: &Clause<'_>) -> Option<MediaTypeOptions> {
    let encoding = match clause.media {
        "application/json" | "*/*" | "application/*" => Encoding::Json,
        "application/yaml" => Encoding::Yaml,
        "application/vnd.kubernetes.protobuf" => Encoding::Protobuf,
        _ => return None,
    };
    let streams = match clause.param("stream") {
        None | Some("") => true,
        stream => stream == Some("watch") && encoding != Encoding::Yaml,
    };
    if !streams || !matches!(clause.param("sv"), None | Some("" | "v1")) {
        return None;
    }
    // One of the three asks for another form, which the others have to complete.
    let form = match (clause.param("as"), clause.param("g"), clause.param("v")) {
        (None, None, None) => Form::Object,
        (Some("Table"), Some("meta.k8s.io"), Some("v1" | "v1beta1")) if encoding != Encoding::Protobuf => {
            Form::Table
        }
        (
            Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
            Some("meta.k8s.io"),
            Some("v1" | "v1beta1"),
        ) => Form::PartialMetadata,
        _ => return None,
    };
    let meta_v1beta1 = form != Form::Object && clause.param("v") == Some("v1beta1");
    Some(MediaTypeOptions { form, encoding, meta_v1beta1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(header: &str) -> String {
        match accept(Some(header)) {
            None => "406".into(),
            Some(a) => format!("{:?} {:?}{}", a.form, a.encoding, if a.pretty { " pretty" } else { "" }),
        }
    }

    #[test]
    fn clients_get_what_they_prefer() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(show(table), "Table Json");
        assert_eq!(show("application/vnd.kubernetes.protobuf,application/json"), "Object Protobuf");
        assert_eq!(
            show("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json"),
            "Object Json"
        );
        assert_eq!(show("application/json;q=0.5, application/yaml"), "Object Yaml");
        assert_eq!(
            show("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
            "PartialMetadata Json"
        );
        assert_eq!(show("application/vnd.kubernetes.protobuf"), "Object Protobuf");
        assert_eq!(show("application/cbor"), "406");
        assert_eq!(show("application/json;as=Other;g=meta.k8s.io;v=v1"), "406");
        assert_eq!(show("*/*"), "Object Json");
        assert_eq!(show("*/*, application/*, application/yaml"), "Object Yaml");
    }

    #[test]
    fn parameters_that_name_no_form_are_refused() {
        for header in [
            "application/json;g=meta.k8s.io;v=v1",
            "application/json;v=v1",
            "application/json;as=;g=meta.k8s.io;v=v1",
            "application/json;as=Table;g=k8s.io;v=v1",
            "application/json;as=Table;g=meta.k8s.io",
            "application/json;stream=other",
            "application/yaml;stream=watch",
            "application/json;sv=v2",
        ] {
            assert_eq!(show(header), "406", "{header}");
            assert_eq!(show(&format!("{header}, application/yaml")), "Object Yaml", "{header}");
        }
        assert_eq!(show("application/json;stream=watch;sv=v1;charset=utf-8"), "Object Json");
        assert_eq!(show("application/json;pretty=1"), "Object Json pretty");
        assert_eq!(show("application/json;pretty=true"), "Object Json");
    }

    #[test]
    fn what_custom_resources_get_instead() {
        let fallback = |header| accept(Some(header)).unwrap().fallback.map(|a| (a.form, a.encoding));
        assert_eq!(fallback("application/vnd.kubernetes.protobuf"), None);
        assert_eq!(
            fallback("application/vnd.kubernetes.protobuf,application/json"),
            Some((Form::Object, Encoding::Json))
        );
        assert_eq!(
            fallback("application/vnd.kubernetes.protobuf, application/cbor, application/yaml;q=0.1"),
            Some((Form::Object, Encoding::Yaml))
        );
    }
}
