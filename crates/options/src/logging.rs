//! Logs on standard error, filtered by `KAJI_LOG`: as lines of text, or with `--logging-format=json` as upstream's JSON.
//!
//! Invariant: an entry is one line; `ts`, `caller`, `msg` and `v` (`err` of errors) come first, as in upstream's.
//!
//! Source: component-base's `logs/json`.

use clap::{Args, ValueEnum};
use serde_json::Value;
use std::{
    fmt::{self, Write as _},
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    EnvFilter,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Writer},
    },
    registry::LookupSpan,
};

/// How logs are written.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct LoggingFlags {
    /// How logs are written to standard error.
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t, hide_short_help = true)]
    pub logging_format: LoggingFormat,
}

/// The formats of logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LoggingFormat {
    /// A line of text an entry.
    #[default]
    Text,
    /// A JSON object an entry, with the members of Kubernetes' components.
    Json,
}

/// The logs of this process.
#[derive(Debug)]
pub struct Logging(Arc<AtomicBool>);

impl Logging {
    /// Logs from now on, as text. Entries are those that `KAJI_LOG` selects, or else `usual`.
    pub fn start(usual: &str) -> Logging {
        let json = Arc::new(AtomicBool::new(false));
        let filter = EnvFilter::try_from_env("KAJI_LOG").unwrap_or_else(|_| EnvFilter::new(usual));
        let format = Formatter { json: json.clone(), text: Format::default() };
        // Colours are for terminals: logs of services and of clusters in the background are files.
        let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        let logs = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours);
        logs.with_writer(std::io::stderr).event_format(format).init();
        Logging(json)
    }

    /// Writes entries so from now on.
    pub fn set(&self, flags: LoggingFlags) {
        self.0.store(flags.logging_format == LoggingFormat::Json, Ordering::Relaxed);
    }
}

struct Formatter {
    json: Arc<AtomicBool>,
    text: Format,
}

impl<S, N> FormatEvent<S, N> for Formatter
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if !self.json.load(Ordering::Relaxed) {
            return self.text.format_event(context, writer, event);
        }
        let metadata = event.metadata();
        let mut fields = Fields::default();
        event.record(&mut fields);
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let place = metadata.file().zip(metadata.line());
        writeln!(writer, "{}", fields.entry(since.as_nanos() as f64 / 1e6, place, *metadata.level()))
    }
}

/// The fields of an entry.
#[derive(Default)]
struct Fields {
    message: String,
    error: Option<String>,
    others: Vec<(&'static str, Value)>,
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = format!("{value:?}");
        match field.name() {
            "message" => self.message = text,
            "error" => self.error = Some(text),
            name => self.others.push((name, text.into())),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => value.clone_into(&mut self.message),
            "error" => self.error = Some(value.to_owned()),
            name => self.others.push((name, value.into())),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.others.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.others.push((field.name(), value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.others.push((field.name(), value.into()));
    }
}

impl Fields {
    /// The entry of a time in milliseconds since the epoch.
    fn entry(self, millis: f64, place: Option<(&str, u32)>, level: Level) -> String {
        let mut entry = format!("{{\"ts\":{millis}");
        // Writing to a String cannot fail.
        let mut member = |name: &str, value: Value| {
            let _ = write!(entry, ",{}:{value}", Value::from(name));
        };
        if let Some((file, line)) = place {
            member("caller", format!("{}:{line}", short(file)).into());
        }
        member("msg", self.message.into());
        if let Some(verbosity) = verbosity(level) {
            member("v", verbosity.into());
        }
        if let Some(error) = self.error {
            member("err", error.into());
        }
        for (name, value) in self.others {
            member(name, value);
        }
        entry.push('}');
        entry
    }
}

/// klog's verbosity, by its conventions; an error has none.
fn verbosity(level: Level) -> Option<u8> {
    match level {
        Level::ERROR => None,
        Level::WARN | Level::INFO => Some(0),
        Level::DEBUG => Some(4),
        Level::TRACE => Some(6),
    }
}

/// A file's name after its folder's, or its crate's.
fn short(file: &str) -> String {
    let mut names = file.rsplit(['/', '\\']).filter(|name| *name != "src");
    let (name, folder) = (names.next().unwrap_or_default(), names.next());
    folder.map_or_else(|| name.to_owned(), |folder| format!("{folder}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_have_upstreams_members() {
        let fields = |error: Option<&str>| Fields {
            message: "it \"is\"\nso".into(),
            error: error.map(str::to_owned),
            others: vec![("pod", "a/b".into()), ("count", 2.into()), ("ready", true.into())],
        };
        let place = Some(("crates/server/src/health.rs", 12));
        let entries = [
            fields(None).entry(1_771_234_567_890.25, place, Level::INFO),
            fields(Some("gone")).entry(0.5, place, Level::ERROR),
            fields(Some("gone")).entry(0.5, None, Level::WARN),
            Fields::default().entry(1.0, None, Level::DEBUG),
        ];
        expect_test::expect![[r#"
            {"ts":1771234567890.25,"caller":"server/health.rs:12","msg":"it \"is\"\nso","v":0,"pod":"a/b","count":2,"ready":true}
            {"ts":0.5,"caller":"server/health.rs:12","msg":"it \"is\"\nso","err":"gone","pod":"a/b","count":2,"ready":true}
            {"ts":0.5,"msg":"it \"is\"\nso","v":0,"err":"gone","pod":"a/b","count":2,"ready":true}
            {"ts":1,"msg":"","v":4}"#]]
        .assert_eq(&entries.join("\n"));
        for entry in &entries {
            assert!(serde_json::from_str::<Value>(entry).unwrap().is_object());
        }
    }

    #[test]
    fn events_are_written_as_asked() {
        #[derive(Clone, Default)]
        struct Buffer(Arc<std::sync::Mutex<Vec<u8>>>);
        impl std::io::Write for Buffer {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.lock().unwrap().extend(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let (buffer, json) = (Buffer::default(), Arc::new(AtomicBool::new(false)));
        let writer = buffer.clone();
        let logs = tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone());
        let logs = logs.event_format(Formatter { json: json.clone(), text: Format::default() }).finish();
        tracing::subscriber::with_default(logs, || {
            tracing::info!(pod = "a", "first");
            json.store(true, Ordering::Relaxed);
            let error = std::io::Error::other("no disk");
            tracing::error!(%error, code = 7_u16, "second");
        });
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].ends_with("first pod=\"a\"") && lines.len() == 2, "{text}");
        let entry: Value = serde_json::from_str(lines[1]).unwrap();
        assert_eq!(
            (&entry["msg"], &entry["err"], &entry["code"]),
            (&"second".into(), &"no disk".into(), &7.into())
        );
        assert!(entry["caller"].as_str().unwrap().starts_with("options/logging.rs:"), "{text}");
    }
}
