//! What flags say, with upstream's defaults and words. Source: apiserver `options.AuditOptions`.

use std::{path::PathBuf, time::Duration};

const VERSION: &str = "audit.k8s.io/v1";

/// When a request goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// At once; events are sent meanwhile, and lost when there are too many.
    Batch,
    /// When its event has been sent, or could not be.
    Blocking,
    /// When its event has been sent. If the first cannot be, it is refused.
    BlockingStrict,
}

impl Mode {
    const ALL: &str = "batch,blocking,blocking-strict";

    fn parse(plugin: &str, text: &str) -> Result<Mode, String> {
        match text {
            "batch" => Ok(Mode::Batch),
            "blocking" => Ok(Mode::Blocking),
            "blocking-strict" => Ok(Mode::BlockingStrict),
            _ => Err(format!("invalid audit {plugin} mode {text}, allowed modes are {:?}", Mode::ALL)),
        }
    }
}

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One line of text an event, which is not all of it.
    Legacy,
    /// One line of JSON an event.
    Json,
}

impl Format {
    const ALL: &str = "legacy,json";

    fn parse(text: &str) -> Result<Format, String> {
        match text {
            "legacy" => Ok(Format::Legacy),
            "json" => Ok(Format::Json),
            _ => Err(format!("invalid audit log format {text}, allowed formats are {:?}", Format::ALL)),
        }
    }
}

/// `--audit-*-mode`, `--audit-*-batch-*`
#[derive(Clone, Debug, PartialEq)]
pub struct BatchOptions {
    /// `batch`, `blocking` or `blocking-strict`.
    pub mode: String,
    /// Events that may wait.
    pub buffer_size: i64,
    /// Events in a batch.
    pub max_size: i64,
    /// How long an event waits for others to come.
    pub max_wait: Duration,
    /// Whether batches are paced.
    pub throttle_enable: bool,
    /// Batches a second.
    pub throttle_qps: f64,
    /// Batches at once after a pause.
    pub throttle_burst: i64,
}

/// `--audit-*-truncate-*`
#[derive(Clone, Debug, PartialEq)]
pub struct TruncateOptions {
    /// Whether sizes are limited.
    pub enabled: bool,
    /// Bytes of a batch.
    pub max_batch_size: u64,
    /// Bytes of an event.
    pub max_event_size: u64,
}

/// `--audit-log-*`
#[derive(Clone, Debug, PartialEq)]
pub struct LogOptions {
    /// The file, `-` for standard output; empty for no log.
    pub path: String,
    /// Days that old files are kept; 0 for ever.
    pub max_age: i64,
    /// How many old files are kept; 0 for all.
    pub max_backups: i64,
    /// Megabytes of a file; 0 for any size.
    pub max_size: i64,
    /// Whether old files are compressed.
    pub compress: bool,
    /// `json` or `legacy`.
    pub format: String,
    /// `audit.k8s.io/v1`
    pub version: String,
    /// How events get there.
    pub batch: BatchOptions,
    /// How large they may be.
    pub truncate: TruncateOptions,
}

/// `--audit-webhook-*`
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookOptions {
    /// A kubeconfig file; `None` for no webhook.
    pub config_file: Option<PathBuf>,
    /// The wait before the second try.
    pub initial_backoff: Duration,
    /// `audit.k8s.io/v1`
    pub version: String,
    /// How events get there.
    pub batch: BatchOptions,
    /// How large they may be.
    pub truncate: TruncateOptions,
}

/// Everything about audit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Without a policy nothing is recorded.
    pub policy_file: Option<PathBuf>,
    /// To a file.
    pub log: LogOptions,
    /// To a server.
    pub webhook: WebhookOptions,
}

impl Default for BatchOptions {
    /// A webhook's.
    fn default() -> Self {
        BatchOptions {
            mode: "batch".into(),
            buffer_size: 10_000,
            max_size: 400,
            max_wait: Duration::from_secs(30),
            throttle_enable: true,
            throttle_qps: 10.0,
            throttle_burst: 15,
        }
    }
}

impl Default for TruncateOptions {
    fn default() -> Self {
        TruncateOptions { enabled: false, max_batch_size: 10 << 20, max_event_size: 100 << 10 }
    }
}

impl Default for LogOptions {
    fn default() -> Self {
        LogOptions {
            path: String::new(),
            max_age: 366,
            max_backups: 100,
            max_size: 100,
            compress: false,
            format: "json".into(),
            version: VERSION.into(),
            batch: BatchOptions {
                mode: "blocking".into(),
                // A file gains nothing from batches.
                max_size: 1,
                max_wait: Duration::ZERO,
                throttle_enable: false,
                throttle_qps: 0.0,
                throttle_burst: 0,
                ..BatchOptions::default()
            },
            truncate: TruncateOptions::default(),
        }
    }
}

impl Default for WebhookOptions {
    fn default() -> Self {
        WebhookOptions {
            config_file: None,
            initial_backoff: Duration::from_secs(10),
            version: VERSION.into(),
            batch: BatchOptions::default(),
            truncate: TruncateOptions::default(),
        }
    }
}

impl Options {
    /// What is wrong with them.
    pub fn validate(&self) -> Vec<String> {
        let mut errors = vec![];
        if !self.log.path.is_empty() {
            let log = &self.log;
            errors.extend(common("log", &log.batch, &log.truncate, &log.version));
            errors.extend(log.format().err());
            for (flag, value) in
                [("maxage", log.max_age), ("maxbackup", log.max_backups), ("maxsize", log.max_size)]
            {
                if value < 0 {
                    errors.push(format!("--audit-log-{flag} {value} can't be a negative number"));
                }
            }
        }
        if self.webhook.config_file.is_some() {
            let webhook = &self.webhook;
            errors.extend(common("webhook", &webhook.batch, &webhook.truncate, &webhook.version));
        }
        errors
    }
}

impl LogOptions {
    /// How events are written.
    ///
    /// # Errors
    /// In upstream's words, for an unknown format.
    pub fn format(&self) -> Result<Format, String> {
        Format::parse(&self.format)
    }
}

impl BatchOptions {
    /// When requests go on. `plugin` is for the message.
    ///
    /// # Errors
    /// In upstream's words, for an unknown mode.
    pub fn mode(&self, plugin: &str) -> Result<Mode, String> {
        Mode::parse(plugin, &self.mode)
    }

    fn check(&self, plugin: &str) -> Result<(), String> {
        if self.mode(plugin)? != Mode::Batch {
            return Ok(());
        }
        let positive = |what: &str, value: f64| match value > 0.0 {
            true => Ok(()),
            false => Err(format!("invalid audit batch {plugin} {what} {value}, must be a positive number")),
        };
        positive("buffer size", self.buffer_size as f64)?;
        positive("max batch size", self.max_size as f64)?;
        if self.throttle_enable {
            positive("throttle QPS", self.throttle_qps)?;
            positive("throttle burst", self.throttle_burst as f64)?;
        }
        Ok(())
    }
}

impl TruncateOptions {
    fn check(&self, plugin: &str) -> Result<(), String> {
        let (event, batch) = (self.max_event_size, self.max_batch_size);
        if event == 0 {
            let text = "must be a positive number";
            return Err(format!("invalid audit truncate {plugin} max event size {event}, {text}"));
        }
        if batch < event {
            let text = format!("must be greater than max event size ({event})");
            return Err(format!("invalid audit truncate {plugin} max batch size {batch}, {text}"));
        }
        Ok(())
    }
}

fn common(plugin: &str, batch: &BatchOptions, truncate: &TruncateOptions, version: &str) -> Vec<String> {
    let mut errors: Vec<String> = vec![];
    errors.extend(batch.check(plugin).err());
    errors.extend(truncate.check(plugin).err());
    if version != VERSION {
        errors.push(format!("invalid group version, allowed versions are [{VERSION:?}]"));
    }
    errors
}
