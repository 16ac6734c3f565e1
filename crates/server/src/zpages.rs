//! `/statusz` and `/flagz` of a component: which version runs since when, and the flags it runs with, as text or as an object of
//! the group `config.k8s.io`.
//!
//! Invariants:
//! - An object is given only to clients that name its kind and version; others get text, or 406.
//! - A flag's value that may be a secret is not shown ([`FlagValues::new`]).
//!
//! Source: KEP-4827 and KEP-4828; apiserver's `server/statusz`, `server/flagz`.

use crate::negotiate::{self, Clause};
use http::{HeaderMap, HeaderValue, Response, header};
use jiff::Timestamp;
use kaji_exposition::{GO_VERSION, MINOR, Process};
use kaji_meta::{Status, time::Clock};
use kaji_schema::yaml;
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

const TEXT: &str = "text/plain; charset=utf-8";
/// What is accepted, in the order of the refusal's text.
const OFFERED: [&str; 3] = ["application/json", "application/yaml", "text/plain"];
/// First segments of paths that are no pages for operators.
const NOT_DEBUGGING: [&str; 5] = ["/apis", "/api", "/openid", "/openapi", "/.well-known"];

/// The flags that a process runs with, those of their defaults too.
#[derive(Clone, Debug, Default)]
pub struct FlagValues(Arc<BTreeMap<String, String>>);

impl FlagValues {
    /// Flags: name without dashes, value, and whether the value is confidential, so that it is not shown.
    pub fn new(all: impl IntoIterator<Item = (String, String, bool)>) -> FlagValues {
        let shown =
            |(name, value, confidential)| (name, if confidential { "CLASSIFIED".to_owned() } else { value });
        FlagValues(Arc::new(all.into_iter().map(shown).collect()))
    }
}

/// The pages of a component.
#[derive(Clone)]
pub struct ZPages {
    component: &'static str,
    flags: FlagValues,
    started: Timestamp,
    clock: Arc<dyn Clock>,
}

/// A page, before it is a response.
#[derive(Debug, PartialEq, Eq)]
pub struct ZPage {
    /// The content type.
    pub content_type: &'static str,
    /// The version is deprecated.
    warning: Option<&'static str>,
    /// The text.
    pub body: String,
}

/// The form that a client takes.
#[derive(Clone, Copy)]
enum ZForm {
    Text,
    Object { version: &'static str, yaml: bool },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    kind: &'static str,
    api_version: String,
    metadata: BTreeMap<&'static str, &'static str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Statusz {
    #[serde(flatten)]
    header: Header,
    start_time: String,
    uptime_seconds: i64,
    go_version: &'static str,
    binary_version: String,
    emulation_version: String,
    paths: Vec<String>,
}

#[derive(Serialize)]
struct Flagz<'a> {
    #[serde(flatten)]
    header: Header,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    flags: &'a BTreeMap<String, String>,
}

impl ZPages {
    /// Of a component of this process, which has started now if the system does not tell. `clock` is the machine's.
    pub fn new(component: &'static str, flags: FlagValues, clock: Arc<dyn Clock>) -> ZPages {
        let started = Process::read().start.and_then(|seconds| Timestamp::from_second(seconds as i64).ok());
        ZPages { component, flags, started: started.unwrap_or_else(|| clock.now()), clock }
    }

    /// `/statusz`. `paths` are all that the component serves.
    ///
    /// # Errors
    /// 406 for a client that takes neither text nor an object of a version that there is.
    pub fn statusz<'a>(
        &self,
        headers: &HeaderMap,
        paths: impl IntoIterator<Item = &'a str>,
    ) -> Result<ZPage, Status> {
        let form = negotiated(headers, "Statusz")?;
        let version = format!("1.{MINOR}");
        let (paths, uptime) =
            (folders(paths), (self.clock.now().as_second() - self.started.as_second()).max(0));
        Ok(match form {
            ZForm::Text => {
                let started = self.started.strftime("%a %b %e %H:%M:%S UTC %Y");
                let (hours, minutes, seconds) = (uptime / 3600, uptime / 60 % 60, uptime % 60);
                let mut body = self.heading("statusz");
                body += &format!(
                    "\nStarted: {started}\nUp: {hours} hr {minutes:02} min {seconds:02} sec\n\
                     Go version: {GO_VERSION}\nBinary version: {version}\nEmulation version: {version}\n"
                );
                if !paths.is_empty() {
                    body += &format!("Paths: {}", paths.join(" "));
                }
                ZPage { content_type: TEXT, warning: None, body: body + "\n" }
            }
            ZForm::Object { version: api_version, yaml } => {
                let header = self.header("Statusz", api_version);
                let statusz = Statusz {
                    header,
                    start_time: self.started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
                    uptime_seconds: uptime,
                    go_version: GO_VERSION,
                    binary_version: version.clone(),
                    emulation_version: version,
                    paths,
                };
                object(&statusz, api_version, yaml, "statusz")?
            }
        })
    }

    /// `/flagz`.
    ///
    /// # Errors
    /// 406, as of [`statusz`](Self::statusz).
    pub fn flagz(&self, headers: &HeaderMap) -> Result<ZPage, Status> {
        let flags = &*self.flags.0;
        Ok(match negotiated(headers, "Flagz")? {
            ZForm::Text => {
                let mut body = self.heading("flagz");
                for (name, value) in flags {
                    body += &format!("{name}={value}\n");
                }
                ZPage { content_type: TEXT, warning: None, body }
            }
            ZForm::Object { version, yaml } => {
                object(&Flagz { header: self.header("Flagz", version), flags }, version, yaml, "flagz")?
            }
        })
    }

    fn heading(&self, page: &str) -> String {
        format!(
            "\n{} {page}\nWarning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
             guarantees and is for debugging purposes only.\n",
            self.component
        )
    }

    fn header(&self, kind: &'static str, version: &str) -> Header {
        let metadata = BTreeMap::from([("name", self.component)]);
        Header { kind, api_version: format!("config.k8s.io/{version}"), metadata }
    }
}

impl ZPage {
    /// Puts the deprecation, if there is one, into a response's headers.
    pub fn warn<B>(&self, response: &mut Response<B>) {
        if let Some(warning) = self.warning {
            response.headers_mut().insert(header::WARNING, HeaderValue::from_static(warning));
        }
    }
}

/// The first segments of paths, each once and in order, those of the API aside.
fn folders<'a>(paths: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let first = |path: &'a str| path.strip_prefix('/')?.split('/').next().filter(|first| !first.is_empty());
    let all: BTreeSet<String> =
        paths.into_iter().filter_map(first).map(|first| format!("/{first}")).collect();
    all.into_iter().filter(|folder| !NOT_DEBUGGING.contains(&folder.as_str())).collect()
}

/// The form of the first clause that can be met.
fn negotiated(headers: &HeaderMap, kind: &str) -> Result<ZForm, Status> {
    let accept = headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accept.trim().is_empty() {
        return Ok(ZForm::Text);
    }
    let clauses = negotiate::clauses(accept);
    let form = clauses.iter().find_map(|clause| form(clause, kind));
    form.ok_or_else(|| Status::not_acceptable_types(&OFFERED))
}

fn form(clause: &Clause<'_>, kind: &str) -> Option<ZForm> {
    let Some(asked) = clause.param("as").filter(|asked| !asked.is_empty()) else {
        // Without a kind there is no object.
        return matches!(clause.media, "text/plain" | "text/*" | "*/*").then_some(ZForm::Text);
    };
    let yaml = match clause.media {
        "application/json" | "application/*" | "*/*" => false,
        "application/yaml" => true,
        _ => return None,
    };
    let version = match clause.param("v")? {
        "v1beta1" => "v1beta1",
        "v1alpha1" => "v1alpha1",
        _ => return None,
    };
    (asked == kind && clause.param("g") == Some("config.k8s.io")).then_some(ZForm::Object { version, yaml })
}

fn object(value: &impl Serialize, version: &str, as_yaml: bool, page: &str) -> Result<ZPage, Status> {
    let internal = |error: serde_json::Error| Status::internal(error.to_string());
    let warning = (version == "v1alpha1").then_some(match page {
        "flagz" => "299 - \"This version of the flagz endpoint is deprecated. Please use a newer version.\"",
        _ => "299 - \"This version of the statusz endpoint is deprecated. Please use a newer version.\"",
    });
    let (content_type, body) = match as_yaml {
        true => ("application/yaml", yaml::document(&serde_json::to_value(value).map_err(internal)?)),
        false => ("application/json", serde_json::to_string(value).map_err(internal)? + "\n"),
    };
    Ok(ZPage { content_type, warning, body })
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use kaji_meta::ManualClock;

    fn pages() -> ZPages {
        let flags = [("port", "6443", false), ("token", "abc", true), ("audit-log-path", "", false)];
        let flags = flags.map(|(name, value, secret)| (name.to_owned(), value.to_owned(), secret));
        let started = "2026-01-02T03:04:05Z".parse().unwrap();
        let clock = Arc::new(ManualClock::new("2026-01-02T04:05:07Z".parse().unwrap()));
        ZPages { component: "apiserver", flags: FlagValues::new(flags), started, clock }
    }

    fn headers(accept: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_str(accept).unwrap())])
    }

    fn statusz(accept: &str) -> String {
        let paths = ["/apis/apps", "/livez", "/livez/ping", "/metrics", "/", "/api/v1", "/debug/x"];
        let page = pages().statusz(&headers(accept), paths);
        page.map_or_else(
            |status| format!("{} {}", status.code, status.message),
            |page| format!("{} {}\n{}", page.content_type, page.warning.unwrap_or("-"), page.body),
        )
    }

    #[test]
    fn shows_text_unless_a_kind_is_named() {
        expect![[r#"
            text/plain; charset=utf-8 -

            apiserver statusz
            Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.

            Started: Fri Jan  2 03:04:05 UTC 2026
            Up: 1 hr 01 min 02 sec
            Go version: none (rust)
            Binary version: 1.37
            Emulation version: 1.37
            Paths: /debug /livez /metrics
        "#]]
        .assert_eq(&statusz("*/*"));
        assert_eq!(statusz(""), statusz("text/plain"));
        assert_eq!(statusz("application/json, text/plain;q=0.5"), statusz("*/*"));
    }

    #[test]
    fn shows_an_object_of_the_named_version() {
        let object = "as=Statusz;g=config.k8s.io;v=";
        expect![[r#"
            application/json -
            {"kind":"Statusz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"apiserver"},"startTime":"2026-01-02T03:04:05Z","uptimeSeconds":3662,"goVersion":"none (rust)","binaryVersion":"1.37","emulationVersion":"1.37","paths":["/debug","/livez","/metrics"]}
        "#]]
        .assert_eq(&statusz(&format!("application/json;{object}v1beta1")));
        let old = statusz(&format!("application/yaml;{object}v1alpha1"));
        assert!(old.starts_with("application/yaml 299 - \"This version of the statusz"), "{old}");
        let refused =
            "406 only the following media types are accepted: application/json, application/yaml, text/plain";
        for accept in [
            "application/json".to_owned(),
            format!("application/json;{object}v2"),
            "application/json;as=Flagz;g=config.k8s.io;v=v1beta1".into(),
            "application/vnd.kubernetes.protobuf".into(),
        ] {
            assert_eq!(statusz(&accept), refused, "{accept}");
        }
    }

    #[test]
    fn shows_flags_but_no_secret() {
        let body = |accept: &str| pages().flagz(&headers(accept)).unwrap().body;
        assert!(body("*/*").ends_with("only.\naudit-log-path=\nport=6443\ntoken=CLASSIFIED\n"));
        expect![[r#"
            {"kind":"Flagz","apiVersion":"config.k8s.io/v1beta1","metadata":{"name":"apiserver"},"flags":{"audit-log-path":"","port":"6443","token":"CLASSIFIED"}}
        "#]]
        .assert_eq(&body("application/json;as=Flagz;g=config.k8s.io;v=v1beta1"));
    }
}
