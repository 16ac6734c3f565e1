//! Flags of audit, with upstream's names and defaults.

use clap::Args;
use kaji_audit::{BatchOptions, LogOptions, Options, TruncateOptions, WebhookOptions};
use std::{path::PathBuf, time::Duration};

/// Upstream's flags about audit, with its defaults.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Audit")]
pub struct AuditFlags {
    /// The audit policy: which requests are recorded, and how much of them. Nothing is without it.
    #[arg(long, value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    /// The file that requests are recorded in; - for standard output.
    #[arg(long, value_name = "FILE", default_value = "", hide_default_value = true)]
    audit_log_path: String,
    /// json or legacy: a line of JSON, or of text, an event.
    #[arg(long, value_name = "FORMAT", default_value = "json")]
    audit_log_format: String,
    /// Megabytes after which the file is put aside; 0 for never.
    #[arg(long, value_name = "MB", default_value_t = 100, allow_negative_numbers = true)]
    audit_log_maxsize: i64,
    /// Days that files put aside are kept; 0 for ever.
    #[arg(long, value_name = "DAYS", default_value_t = 366, allow_negative_numbers = true)]
    audit_log_maxage: i64,
    /// How many files put aside are kept; 0 for all.
    #[arg(long, value_name = "N", default_value_t = 100, allow_negative_numbers = true)]
    audit_log_maxbackup: i64,
    /// Whether files put aside are compressed.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    audit_log_compress: bool,
    /// The version of events in the log.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1")]
    audit_log_version: String,
    /// When requests go on: batch (at once; events wait), blocking or blocking-strict (which refuses requests that cannot
    /// be recorded).
    #[arg(long, value_name = "MODE", default_value = "blocking")]
    audit_log_mode: String,
    /// Events that may wait. Batch mode only, as the next five.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    audit_log_batch_buffer_size: i64,
    /// Events in a batch.
    #[arg(long, value_name = "N", default_value_t = 1)]
    audit_log_batch_max_size: i64,
    /// How long an event waits for its batch to fill.
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = super::duration)]
    audit_log_batch_max_wait: Duration,
    /// Whether batches are paced.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    audit_log_batch_throttle_enable: bool,
    /// Batches a second.
    #[arg(long, value_name = "N", default_value_t = 0.0)]
    audit_log_batch_throttle_qps: f64,
    /// Batches at once after a pause.
    #[arg(long, value_name = "N", default_value_t = 0)]
    audit_log_batch_throttle_burst: i64,
    /// Whether events and batches that are too large are cut: first to an event without bodies, then away.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    audit_log_truncate_enabled: bool,
    /// Bytes of a batch.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_log_truncate_max_batch_size: u64,
    /// Bytes of an event.
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    audit_log_truncate_max_event_size: u64,
    /// A kubeconfig file that names a server which events are posted to.
    #[arg(long, value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// The wait before the second try to post events; further ones grow.
    #[arg(long, alias = "audit-webhook-batch-initial-backoff", value_name = "TIME", default_value = "10s", value_parser = super::duration)]
    audit_webhook_initial_backoff: Duration,
    /// The version of events that are posted.
    #[arg(long, value_name = "VERSION", default_value = "audit.k8s.io/v1")]
    audit_webhook_version: String,
    /// When requests go on: batch (at once; events wait), blocking or blocking-strict (which refuses requests that cannot
    /// be recorded).
    #[arg(long, value_name = "MODE", default_value = "batch")]
    audit_webhook_mode: String,
    /// Events that may wait. Batch mode only, as the next five.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    audit_webhook_batch_buffer_size: i64,
    /// Events in a batch.
    #[arg(long, value_name = "N", default_value_t = 400)]
    audit_webhook_batch_max_size: i64,
    /// How long an event waits for its batch to fill.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = super::duration)]
    audit_webhook_batch_max_wait: Duration,
    /// Whether batches are paced.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    audit_webhook_batch_throttle_enable: bool,
    /// Batches a second.
    #[arg(long, value_name = "N", default_value_t = 10.0)]
    audit_webhook_batch_throttle_qps: f64,
    /// Batches at once after a pause.
    #[arg(long, value_name = "N", default_value_t = 15)]
    audit_webhook_batch_throttle_burst: i64,
    /// Whether events and batches that are too large are cut: first to an event without bodies, then away.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    audit_webhook_truncate_enabled: bool,
    /// Bytes of a batch.
    #[arg(long, value_name = "BYTES", default_value_t = 10 << 20)]
    audit_webhook_truncate_max_batch_size: u64,
    /// Bytes of an event.
    #[arg(long, value_name = "BYTES", default_value_t = 100 << 10)]
    audit_webhook_truncate_max_event_size: u64,
}

impl From<AuditFlags> for Options {
    fn from(flags: AuditFlags) -> Options {
        Options {
            policy_file: flags.audit_policy_file,
            log: LogOptions {
                path: flags.audit_log_path,
                max_age: flags.audit_log_maxage,
                max_backups: flags.audit_log_maxbackup,
                max_size: flags.audit_log_maxsize,
                compress: flags.audit_log_compress,
                format: flags.audit_log_format,
                version: flags.audit_log_version,
                batch: BatchOptions {
                    mode: flags.audit_log_mode,
                    buffer_size: flags.audit_log_batch_buffer_size,
                    max_size: flags.audit_log_batch_max_size,
                    max_wait: flags.audit_log_batch_max_wait,
                    throttle_enable: flags.audit_log_batch_throttle_enable,
                    throttle_qps: flags.audit_log_batch_throttle_qps,
                    throttle_burst: flags.audit_log_batch_throttle_burst,
                },
                truncate: TruncateOptions {
                    enabled: flags.audit_log_truncate_enabled,
                    max_batch_size: flags.audit_log_truncate_max_batch_size,
                    max_event_size: flags.audit_log_truncate_max_event_size,
                },
            },
            webhook: WebhookOptions {
                config_file: flags.audit_webhook_config_file,
                initial_backoff: flags.audit_webhook_initial_backoff,
                version: flags.audit_webhook_version,
                batch: BatchOptions {
                    mode: flags.audit_webhook_mode,
                    buffer_size: flags.audit_webhook_batch_buffer_size,
                    max_size: flags.audit_webhook_batch_max_size,
                    max_wait: flags.audit_webhook_batch_max_wait,
                    throttle_enable: flags.audit_webhook_batch_throttle_enable,
                    throttle_qps: flags.audit_webhook_batch_throttle_qps,
                    throttle_burst: flags.audit_webhook_batch_throttle_burst,
                },
                truncate: TruncateOptions {
                    enabled: flags.audit_webhook_truncate_enabled,
                    max_batch_size: flags.audit_webhook_truncate_max_batch_size,
                    max_event_size: flags.audit_webhook_truncate_max_event_size,
                },
            },
        }
    }
}
