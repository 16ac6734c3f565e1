//! Tests of operators by faults: `kaji test`.
//!
//! A scenario is run without faults, twice: the requests that both have are the points at which faults are brought about, and what
//! differs between their final states is not compared. Then each fault has a run of its own, in a fork of the cluster as it was before
//! the operator, and the laws of [`run::Law`] are judged.
//!
//! - [`fault`]: the faults, and the points of a run at which they come about; [`call`] and [`record`]: the requests that points count.
//! - [`layer`]: the tower layer that brings faults about; [`listener`]: the port of the operator's process, with the layer in front.
//! - [`scenario`]: the file of a scenario; [`plan`]: which faults are tried, and the file of a plan.
//! - [`cluster`], [`operator`], [`api`]: the cluster of a run, the process, the API past the layer.
//! - [`control`]: clusters that the tests of a suite share, with forks, faults and clocks, by HTTP: `kaji envtest serve`.
//! - [`run`]: one run; [`state`]: its final state, comparable; [`explore`]: all runs; [`report`]: JUnit, JSON, timelines.
//!
//! What a seed fixes is which points are tried when there are more than the limit, and which faults are combined. It does not fix the
//! operator's threads, clock and randomness, nor the server's generated names: a run with the same plan may take another course.

pub mod api;
pub mod call;
pub mod cluster;
pub mod control;
pub mod explore;
pub mod fault;
pub mod layer;
pub mod listener;
pub mod operator;
pub mod plan;
pub mod record;
pub mod report;
pub mod run;
pub mod scenario;
pub mod state;
