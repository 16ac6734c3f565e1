//! What a cluster promises, tested over its API: one program, one module for each subject.
//!
//! Modules share the process and run side by side: a test changes no environment variable, working directory or other
//! state of the process, and what it counts belongs to its own cluster.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::too_many_lines,
    reason = "test code: a panic is a failure, a skipped test is reported, a table is long"
)]

mod admission;
mod agent;
mod aggregation;
mod audit;
mod authn;
mod authorization;
mod basics;
mod batches;
mod certificates;
mod common;
mod components;
mod connect;
mod console;
mod control_loops;
mod conversion;
mod custom_resources;
mod decisions;
mod definitions;
mod encryption;
mod envtest;
mod escalation;
mod etcd;
mod examples;
mod flow_control;
mod forks;
mod garbage;
mod history;
mod kube_rs;
mod kubelets;
mod lifecycles;
mod limits;
mod migration;
mod monitoring;
mod object_feeds;
mod panics;
mod policies;
mod published;
mod python;
mod rbac;
mod refusals;
mod reloads;
mod requests;
mod resource_metrics;
mod restart;
mod service_account_tokens;
mod several_servers;
mod shutdown;
mod simulation;
mod snapshots;
mod tokens;
mod traces;
mod watches;
mod webhooks;
mod why;
