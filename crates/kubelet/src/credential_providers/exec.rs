//! Running a plug-in: a request on its standard input, a response on its standard output.
//!
//! Invariants: a run ends after a minute; what is read of it is bounded; a response is strict, and errors do not show it.
//!
//! Source: upstream's `CredentialProviderRequest` and `CredentialProviderResponse` of `credentialprovider.kubelet.k8s.io`.

use super::config::Provider;
use super::service_account::ServiceAccount;
use crate::metrics::{KubeletMetrics, families::CREDENTIAL_TIMES};
use kaji_containers::RegistryAuth;
use kaji_meta::duration;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::time::Instant;

/// The longest that a plug-in runs.
const LONGEST: Duration = Duration::from_secs(60);
/// Bytes of a response.
const RESPONSE: u64 = 1 << 20;
/// Bytes of what a plug-in says about a failure.
const COMPLAINT: u64 = 16 << 10;

/// What a response is kept by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) enum CacheKeyType {
    Image,
    Registry,
    Global,
}

/// What a plug-in answers.
#[derive(Debug, Clone)]
pub(super) struct Response {
    pub cache_key_type: CacheKeyType,
    /// `None`: as the configuration says.
    pub cache_duration: Option<Duration>,
    pub auth: BTreeMap<String, RegistryAuth>,
}

/// A program, and how it is run.
pub(super) struct Plugin {
    program: PathBuf,
    name: String,
    api_version: String,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    counts: Mutex<Counts>,
    times: Arc<KubeletMetrics>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    failed: u64,
    runs: u64,
}

impl Plugin {
    pub(super) fn new(programs: &Path, config: &Provider, times: Arc<KubeletMetrics>) -> Plugin {
        Plugin {
            program: programs.join(&config.name),
            name: config.name.clone(),
            api_version: config.api_version.clone(),
            arguments: config.args.clone(),
            environment: config.env.clone(),
            counts: Mutex::default(),
            times,
        }
    }

    /// Name, failures and runs.
    pub(super) fn counted(&self) -> (String, u64, u64) {
        let counts = *self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        (self.name.clone(), counts.failed, counts.runs)
    }

    /// Asks for the credentials of an image.
    pub(super) async fn run(
        &self,
        image: &str,
        account: Option<&ServiceAccount>,
    ) -> Result<Response, String> {
        let mut request =
            json!({"kind": "CredentialProviderRequest", "apiVersion": self.api_version, "image": image});
        if let Some(account) = account {
            request["serviceAccountToken"] = account.token.as_str().into();
            if !account.annotations.is_empty() {
                request["serviceAccountAnnotations"] = json!(account.annotations);
            }
        }
        let began = Instant::now();
        let output = match tokio::time::timeout(LONGEST, self.exchange(request.to_string())).await {
            Ok(output) => output,
            Err(_) => Err("context deadline exceeded: ".to_owned()),
        };
        {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            counts.runs += 1;
            counts.failed += u64::from(output.is_err());
        }
        self.times.observe(&CREDENTIAL_TIMES, &[("plugin_name", &self.name)], began.elapsed());
        let output = output.map_err(|error| {
            format!("error execing credential provider plugin {} for image {image}: {error}", self.name)
        })?;
        response(&output, &self.api_version)
    }

    async fn exchange(&self, request: String) -> Result<Vec<u8>, String> {
        let text = |error: std::io::Error| error.to_string();
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(text)?;
        let (mut input, output, complaint) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let write = async move {
            if let Some(input) = &mut input {
                // A plug-in may answer without reading to the end.
                let _ = input.write_all(request.as_bytes()).await;
            }
            drop(input);
        };
        let (_, output, complaint) = tokio::join!(write, read(output, RESPONSE), read(complaint, COMPLAINT));
        let status = child.wait().await.map_err(text)?;
        if !status.success() {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&complaint)));
        }
        match u64::try_from(output.len()) {
            Ok(length) if length < RESPONSE => Ok(output),
            _ => Err(format!("the response has more than {RESPONSE} bytes: ")),
        }
    }
}

/// At most so many bytes of a stream. The rest is read and dropped, so that the writer is not held up.
async fn read(stream: Option<impl AsyncRead + Unpin>, most: u64) -> Vec<u8> {
    let mut bytes = vec![];
    if let Some(mut stream) = stream {
        // What was read until an error is judged like what was read until the end.
        let _ = (&mut stream).take(most).read_to_end(&mut bytes).await;
        let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
    }
    bytes
}

/// Reads a response. Its text may hold credentials, so errors do not quote it.
fn response(output: &[u8], api_version: &str) -> Result<Response, String> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "camelCase")]
    struct File {
        kind: String,
        #[serde(rename = "apiVersion")]
        _api_version: String,
        #[serde(default)]
        cache_key_type: String,
        cache_duration: Option<String>,
        auth: Option<BTreeMap<String, Auth>>,
    }
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Auth {
        username: String,
        password: String,
    }
    const WRONG: &str = "error decoding credential provider plugin response from stdout";
    let value: Value = serde_json::from_slice(output)
        .map_err(|_| "error reading GVK from response: couldn't get version/kind; json parse error")?;
    let actual = value["apiVersion"].as_str().unwrap_or_default();
    if actual != api_version {
        return Err(format!(
            "apiVersion from credential plugin response did not match expected apiVersion:{api_version}, actual apiVersion:{actual}"
        ));
    }
    let file: File = serde_json::from_value(value).map_err(|_| WRONG)?;
    if file.kind != "CredentialProviderResponse" {
        return Err(WRONG.to_owned());
    }
    let cache_key_type = match file.cache_key_type.as_str() {
        "Image" => CacheKeyType::Image,
        "Registry" => CacheKeyType::Registry,
        "Global" => CacheKeyType::Global,
        other => {
            return Err(format!("credential provider plugin did not return a valid cacheKeyType: {other}"));
        }
    };
    let cache_duration = match file.cache_duration.as_deref() {
        None => None,
        Some(text) => Some(duration::parse_non_negative(text).map_err(|_| WRONG)?),
    };
    let of = |auth: Auth| RegistryAuth {
        username: auth.username,
        password: auth.password,
        ..RegistryAuth::default()
    };
    let auth = file.auth.unwrap_or_default().into_iter().map(|(key, auth)| (key, of(auth))).collect();
    Ok(Response { cache_key_type, cache_duration, auth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_strict_and_errors_show_no_secret() {
        const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
        let of = |rest: &str| {
            let text = format!(r#"{{"kind": "CredentialProviderResponse", "apiVersion": "{V1}", {rest}}}"#);
            response(text.as_bytes(), V1)
        };
        let found =
            of(r#""cacheKeyType": "Registry", "cacheDuration": "1h30m0s", "auth": {"a": {"username": "u", "password": "p"}}"#)
                .unwrap();
        assert_eq!(
            (found.cache_key_type, found.cache_duration),
            (CacheKeyType::Registry, Some(Duration::from_secs(5400)))
        );
        assert_eq!(found.auth["a"].password, "p");
        assert_eq!(of(r#""cacheKeyType": "Image", "auth": null"#).unwrap().cache_duration, None);
        let errors = [
            of(r#""cacheKeyType": "Host", "auth": {}"#),
            of(r#""cacheKeyType": "Image", "auth": {"a": {"username": "u", "password": "p", "token": "hunter2"}}"#),
            of(r#""cacheKeyType": "Image", "cacheDuration": "soon""#),
            response(br#"{"kind": "CredentialProviderResponse", "apiVersion": "v2"}"#, V1),
            response(b"hunter2", V1),
            response(format!(r#"{{"kind": "X", "apiVersion": "{V1}"}}"#).as_bytes(), V1),
        ]
        .map(|outcome| outcome.unwrap_err());
        expect_test::expect![[r#"
            credential provider plugin did not return a valid cacheKeyType: Host
            error decoding credential provider plugin response from stdout
            error decoding credential provider plugin response from stdout
            apiVersion from credential plugin response did not match expected apiVersion:credentialprovider.kubelet.k8s.io/v1, actual apiVersion:v2
            error reading GVK from response: couldn't get version/kind; json parse error
            error decoding credential provider plugin response from stdout"#]]
        .assert_eq(&errors.join("\n"));
    }
}
