//! What is measured, what it is compared with, and how it is shown: a table for people, JSON for programs. Pure.
//!
//! The reference figures are of kube-apiserver 1.36 with etcd 3.6 on a machine like the one that Kaji is developed on;
//! the aims are Kaji's own.

use super::stats::{Unit, digits, grouped};
use serde_json::{Value, json};
use std::time::Duration;

/// How many objects, watchers and so on a run uses.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// What `--scale` said.
    pub scale: f64,
    /// Pods of about 4 kB for memory, GET and LIST.
    pub pods: usize,
    /// Creations one after the other, of each kind of object.
    pub serial: usize,
    /// ConfigMaps created by many clients.
    pub creates: usize,
    /// Watch connections; may be lowered by the limit on open files.
    pub watchers: usize,
    /// Objects created under the eyes of the watchers.
    pub events: usize,
    /// CustomResourceDefinitions.
    pub crds: usize,
    /// Pods to be scheduled.
    pub bound: usize,
}

impl Counts {
    /// The issue's counts times `scale`, never so small that nothing is measured.
    pub fn scaled(scale: f64) -> Counts {
        let count = |full: f64, least: usize| ((full * scale).round() as usize).max(least);
        Counts {
            scale,
            pods: count(50_000.0, 50),
            serial: count(1_000.0, 50),
            creates: count(20_000.0, 640),
            watchers: count(1_000.0, 5),
            events: 1_000,
            crds: count(500.0, 5),
            bound: count(10_000.0, 50),
        }
    }

    /// Whether figures that depend on a count can be compared with the reference.
    fn full(&self) -> bool {
        (self.scale - 1.0).abs() < 1e-9
    }

    fn fill(&self, label: &str) -> String {
        let number = |n: usize| grouped(n as i64);
        label
            .replace("{pods}", &number(self.pods))
            .replace("{watchers}", &number(self.watchers))
            .replace("{crds}", &number(self.crds))
            .replace("{bound}", &number(self.bound))
    }
}

/// Which way a figure should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Better {
    More,
    Less,
    /// It says what the load was.
    Neither,
}

/// One figure: what it is and what it is held against.
pub struct Measure {
    /// Its name in JSON.
    pub id: &'static str,
    label: &'static str,
    unit: Unit,
    reference: Option<f64>,
    aim: Option<f64>,
    better: Better,
    /// Whether the value depends on a count that `--scale` changes.
    sized: bool,
}

const fn less(id: &'static str, label: &'static str, unit: Unit, against: [f64; 2], sized: bool) -> Measure {
    Measure {
        id,
        label,
        unit,
        reference: known(against[0]),
        aim: known(against[1]),
        better: Better::Less,
        sized,
    }
}

const fn instructions(id: &'static str, label: &'static str) -> Measure {
    less(id, label, Unit::Count, [NONE, NONE], false)
}

const fn more(id: &'static str, label: &'static str, against: [f64; 2]) -> Measure {
    let [reference, aim] = against;
    Measure {
        id,
        label,
        unit: Unit::PerSecond,
        reference: known(reference),
        aim: known(aim),
        better: Better::More,
        sized: false,
    }
}

const fn known(value: f64) -> Option<f64> {
    if value.is_nan() { None } else { Some(value) }
}

/// Neither reference nor aim.
const NONE: f64 = f64::NAN;

/// Everything that can be measured, in the order of the table: reference, then aim.
pub const MEASURES: &[Measure] = &[
    less("start", "start: exec to /readyz", Unit::Seconds, [3.2, 0.06], false),
    less("idle_memory", "memory, idle", Unit::Bytes, [520e6, 20e6], false),
    less("crds_served", "{crds} CRDs: created until all are served", Unit::Seconds, [35.0, 0.5], true),
    less("crds_memory", "{crds} CRDs: memory", Unit::Bytes, [2.2e9, NONE], true),
    less("crds_cost", "{crds} CRDs: memory on top of before", Unit::Bytes, [1.7e9, 30e6], true),
    less("crds_read_quiet_p50", "GET before the CRDs, p50", Unit::Seconds, [NONE, NONE], false),
    less("crds_read_p50", "GET while {crds} CRDs are created, p50", Unit::Seconds, [NONE, NONE], true),
    less("crds_read_quiet", "GET before the CRDs, p99", Unit::Seconds, [NONE, NONE], false),
    less("crds_read", "GET while {crds} CRDs are created, p99", Unit::Seconds, [NONE, NONE], true),
    less(
        "crds_read_most",
        "GET while {crds} CRDs are created, the slowest",
        Unit::Seconds,
        [NONE, NONE],
        true,
    ),
    more("pod_creates", "creates, 64 clients: pods of 4 kB", [705.0, 14e3]),
    less("pods_memory", "memory with {pods} pods (reference: 60,000)", Unit::Bytes, [2.16e9, NONE], true),
    more("gets", "GETs, 64 clients: pods", [1447.0, 43e3]),
    Measure {
        better: Better::Neither,
        ..less("list_bytes", "LIST of {pods} pods: length", Unit::Bytes, [196e6, NONE], true)
    },
    less("list", "LIST of {pods} pods: time", Unit::Seconds, [2.7, 0.18], true),
    less("list_memory", "LIST of {pods} pods: memory on top", Unit::Bytes, [NONE, NONE], true),
    less("lists", "eight such LISTs at once: time", Unit::Seconds, [43.0, 1.7], true),
    less("lists_memory", "eight such LISTs at once: memory on top", Unit::Bytes, [1.2e9, 8e6], true),
    less("serial_p50", "create, one client: ConfigMap, p50", Unit::Seconds, [3.0e-3, NONE], false),
    less("serial_p99", "create, one client: ConfigMap, p99", Unit::Seconds, [NONE, NONE], false),
    less("serial_pod_p50", "create, one client: pod of 4 kB, p50", Unit::Seconds, [3.0e-3, NONE], false),
    less("serial_pod_p99", "create, one client: pod of 4 kB, p99", Unit::Seconds, [NONE, NONE], false),
    more("creates", "creates, 64 clients: ConfigMaps of 1 kB", [705.0, 14e3]),
    more("watch_events", "watch: events to {watchers} watchers", [70e3, 700e3]),
    less("watch_lost", "watch: events lost", Unit::Count, [NONE, 0.0], false),
    more("bound", "{bound} pods: created and bound", [312.0, 6e3]),
    less("flood_get_quiet", "GET of a user alone, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_get_beside", "GET, another server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_get", "GET, this server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_get_ratio", "GET: this server by another", Unit::Ratio, [NONE, 2.0], false),
    less("flood_list_quiet", "LIST of a user alone, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_list_beside", "LIST, another server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_list", "LIST, this server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_list_ratio", "LIST: this server by another", Unit::Ratio, [NONE, 2.0], false),
    less("flood_create_quiet", "create of a user alone, p99", Unit::Seconds, [NONE, NONE], false),
    less(
        "flood_create_beside",
        "create, another server being flooded, p99",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    less("flood_create", "create, this server being flooded, p99", Unit::Seconds, [NONE, NONE], false),
    less("flood_create_ratio", "create: this server by another", Unit::Ratio, [NONE, 2.0], false),
    Measure { better: Better::Neither, ..more("flood_rate", "the flood, answered", [NONE, NONE]) },
    less(
        "cost_bare",
        "server CPU for a GET without flow control and audit",
        Unit::Seconds,
        [NONE, NONE],
        false,
    ),
    less("cost_fair", "server CPU for a GET: with flow control by without", Unit::Ratio, [NONE, NONE], false),
    less("cost_audit", "server CPU for a GET: with audit by without", Unit::Ratio, [NONE, NONE], false),
    instructions("instructions_get", "instructions: GET of a ConfigMap"),
    instructions("instructions_config_map", "instructions: create, one client, ConfigMap of 1 kB"),
    instructions("instructions_pod", "instructions: create, one client, pod of 4 kB"),
    instructions("instructions_config_maps", "instructions: create, 16 clients, ConfigMap of 1 kB"),
    instructions("instructions_pods", "instructions: create, 16 clients, pod of 4 kB"),
    instructions("instructions_event", "instructions: event to one of 50 watchers"),
];

/// A phase as it went.
#[derive(Debug)]
pub struct Phase {
    /// Its name, as in `--only`.
    pub name: &'static str,
    /// How long it took, with preparation and cleaning.
    pub took: Duration,
    /// Processor time of this program.
    pub generator: Option<Duration>,
    /// Processor time of the server.
    pub server: Option<Duration>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The figures so far.
#[derive(Debug)]
pub struct Report {
    /// The run's counts.
    pub counts: Counts,
    /// The server's `gitVersion`.
    pub version: String,
    values: Vec<(&'static str, f64)>,
    /// What the reader must know to judge the figures.
    pub notes: Vec<String>,
    /// The phases that ran.
    pub phases: Vec<Phase>,
}

impl Report {
    /// An empty report.
    pub fn new(counts: Counts) -> Report {
        Report { counts, version: String::new(), values: vec![], notes: vec![], phases: vec![] }
    }

    /// Records a figure of `MEASURES`.
    pub fn set(&mut self, id: &'static str, value: f64) {
        debug_assert!(MEASURES.iter().any(|m| m.id == id), "{id}");
        self.values.retain(|(known, _)| *known != id);
        self.values.push((id, value));
    }

    /// A figure that was recorded.
    pub fn value(&self, id: &str) -> Option<f64> {
        self.values.iter().find(|(known, _)| *known == id).map(|(_, value)| *value)
    }

    /// Records a length of time.
    pub fn time(&mut self, id: &'static str, value: Duration) {
        self.set(id, value.as_secs_f64());
    }

    /// Whether a phase failed.
    pub fn failed(&self) -> bool {
        self.phases.iter().any(|p| p.error.is_some())
    }

    fn rows(&self) -> impl Iterator<Item = (&'static Measure, f64)> {
        MEASURES.iter().filter_map(|m| {
            let value = self.values.iter().find(|(id, _)| *id == m.id)?.1;
            Some((m, value))
        })
    }

    /// How many times better than `against`.
    fn ratio(&self, measure: &Measure, value: f64, against: Option<f64>) -> Option<f64> {
        if measure.sized && !self.counts.full() {
            return None;
        }
        let (better, worse) = match measure.better {
            Better::More => (value, against?),
            Better::Less => (against?, value),
            Better::Neither => return None,
        };
        (worse > 0.0 && better >= 0.0).then(|| better / worse)
    }

    fn met(&self, measure: &Measure, value: f64) -> Option<bool> {
        if measure.sized && !self.counts.full() {
            return None;
        }
        let aim = measure.aim?;
        match measure.better {
            Better::More => Some(value >= aim),
            Better::Less => Some(value <= aim),
            Better::Neither => None,
        }
    }

    /// The table and what belongs under it.
    pub fn table(&self) -> String {
        let mut rows = vec![["measure", "measured", "upstream", "better by", "aim", ""].map(str::to_owned)];
        let mut show = |m: &Measure, value: f64| {
            let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
            let met = match self.met(m, value) {
                Some(true) => "met",
                Some(false) => "missed",
                None => "",
            };
            rows.push([
                self.counts.fill(m.label),
                m.unit.show(value),
                or_dash(m.reference.map(|r| m.unit.show(r))),
                or_dash(self.ratio(m, value, m.reference).map(|r| format!("{}x", digits(r)))),
                or_dash(m.aim.map(|a| m.unit.show(a))),
                met.to_owned(),
            ]);
        };
        self.rows().for_each(|(m, value)| show(m, value));
        let mut text = aligned(&rows);
        text.push('\n');
        let mut rows = vec![["phase", "took", "generator CPU", "server CPU", ""].map(str::to_owned)];
        let seconds = |d: Option<Duration>| d.map_or("-".into(), |d| Unit::Seconds.show(d.as_secs_f64()));
        rows.extend(self.phases.iter().map(|p| {
            let error = p.error.as_ref().map_or(String::new(), |e| format!("FAILED: {e}"));
            [p.name.into(), seconds(Some(p.took)), seconds(p.generator), seconds(p.server), error]
        }));
        text.push_str(&aligned(&rows));
        if !self.counts.full() {
            text.push_str(&format!(
                "\nscale {}: figures that depend on a count are not compared\n",
                self.counts.scale
            ));
        }
        for note in &self.notes {
            text.push_str(&format!("note: {note}\n"));
        }
        text
    }

    /// The same for programs; values are in seconds, bytes and per second.
    pub fn json(&self) -> Value {
        let measures: Vec<Value> = self
            .rows()
            .map(|(m, value)| {
                json!({
                    "id": m.id,
                    "label": self.counts.fill(m.label),
                    "unit": m.unit.name(),
                    "better": match m.better {
                        Better::More => Some("more"),
                        Better::Less => Some("less"),
                        Better::Neither => None,
                    },
                    "value": value,
                    "reference": m.reference,
                    "ratio": self.ratio(m, value, m.reference),
                    "aim": m.aim,
                    "met": self.met(m, value),
                })
            })
            .collect();
        let phases: Vec<Value> = self
            .phases
            .iter()
            .map(|p| {
                json!({
                    "name": p.name,
                    "seconds": p.took.as_secs_f64(),
                    "generatorCpuSeconds": p.generator.map(|d| d.as_secs_f64()),
                    "serverCpuSeconds": p.server.map(|d| d.as_secs_f64()),
                    "error": p.error,
                })
            })
            .collect();
        let counts = &self.counts;
        json!({
            "server": self.version,
            "scale": counts.scale,
            "counts": {
                "pods": counts.pods, "serial": counts.serial, "creates": counts.creates, "watchers": counts.watchers,
                "eventsPerWatcher": counts.events, "crds": counts.crds, "bound": counts.bound,
            },
            "measures": measures,
            "phases": phases,
            "notes": self.notes,
        })
    }
}

/// Columns as wide as they must be: the first and the last to the left, figures to the right.
fn aligned<const N: usize>(rows: &[[String; N]]) -> String {
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, cell) in row.iter().enumerate() {
            match i {
                0 => line.push_str(&format!("{cell:<width$}", width = widths[i])),
                i if i == N - 1 => line.push_str(&format!("  {cell}")),
                _ => line.push_str(&format!("  {cell:>width$}", width = widths[i])),
            }
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;
    use std::collections::BTreeSet;

    fn report(scale: f64) -> Report {
        let mut report = Report::new(Counts::scaled(scale));
        report.version = "v1.37.0".into();
        report.time("start", Duration::from_millis(58));
        report.set("idle_memory", 22.1e6);
        report.set("list", 0.9);
        report.set("lists_memory", -4e6);
        report.set("gets", 50_000.0);
        report.set("watch_lost", 0.0);
        report.set("serial_p99", 0.004_5);
        report.phases.push(Phase {
            name: "start",
            took: Duration::from_millis(60),
            generator: Some(Duration::from_millis(10)),
            server: None,
            error: None,
        });
        report.phases.push(Phase {
            name: "bound",
            took: Duration::from_secs(30),
            generator: None,
            server: Some(Duration::from_secs(2)),
            error: Some("no pod was bound".into()),
        });
        report.notes.push("a note".into());
        report
    }

    #[test]
    fn a_table() {
        expect![[r#"
            measure                                  measured  upstream  better by       aim
            start: exec to /readyz                      58 ms     3.2 s      55.2x     60 ms  met
            memory, idle                              22.1 MB    520 MB      23.5x     20 MB  missed
            GETs, 64 clients: pods                   50,000/s   1,447/s      34.6x  43,000/s  met
            LIST of 50,000 pods: time                  900 ms     2.7 s         3x    180 ms  missed
            eight such LISTs at once: memory on top     -4 MB    1.2 GB          -      8 MB  met
            create, one client: ConfigMap, p99         4.5 ms         -          -         -
            watch: events lost                              0         -          -         0  met

            phase   took  generator CPU  server CPU
            start  60 ms          10 ms           -
            bound   30 s              -         2 s  FAILED: no pod was bound
            note: a note
        "#]]
        .assert_eq(&report(1.0).table());
    }

    #[test]
    fn a_table_of_a_scaled_run() {
        expect![[r#"
            measure                                  measured  upstream  better by       aim
            start: exec to /readyz                      58 ms     3.2 s      55.2x     60 ms  met
            memory, idle                              22.1 MB    520 MB      23.5x     20 MB  missed
            GETs, 64 clients: pods                   50,000/s   1,447/s      34.6x  43,000/s  met
            LIST of 5,000 pods: time                   900 ms     2.7 s          -    180 ms
            eight such LISTs at once: memory on top     -4 MB    1.2 GB          -      8 MB
            create, one client: ConfigMap, p99         4.5 ms         -          -         -
            watch: events lost                              0         -          -         0  met

            phase   took  generator CPU  server CPU
            start  60 ms          10 ms           -
            bound   30 s              -         2 s  FAILED: no pod was bound

            scale 0.1: figures that depend on a count are not compared
            note: a note
        "#]]
        .assert_eq(&report(0.1).table());
    }

    #[test]
    fn json_for_programs() {
        let mut value = report(1.0).json();
        value["measures"].as_array_mut().unwrap().truncate(2);
        expect![[r#"
            {
              "counts": {
                "bound": 10000,
                "crds": 500,
                "creates": 20000,
                "eventsPerWatcher": 1000,
                "pods": 50000,
                "serial": 1000,
                "watchers": 1000
              },
              "measures": [
                {
                  "aim": 0.06,
                  "better": "less",
                  "id": "start",
                  "label": "start: exec to /readyz",
                  "met": true,
                  "ratio": 55.17241379310345,
                  "reference": 3.2,
                  "unit": "seconds",
                  "value": 0.058
                },
                {
                  "aim": 20000000.0,
                  "better": "less",
                  "id": "idle_memory",
                  "label": "memory, idle",
                  "met": false,
                  "ratio": 23.529411764705884,
                  "reference": 520000000.0,
                  "unit": "bytes",
                  "value": 22100000.0
                }
              ],
              "notes": [
                "a note"
              ],
              "phases": [
                {
                  "error": null,
                  "generatorCpuSeconds": 0.01,
                  "name": "start",
                  "seconds": 0.06,
                  "serverCpuSeconds": null
                },
                {
                  "error": "no pod was bound",
                  "generatorCpuSeconds": null,
                  "name": "bound",
                  "seconds": 30.0,
                  "serverCpuSeconds": 2.0
                }
              ],
              "scale": 1.0,
              "server": "v1.37.0"
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn ids_are_unique_and_later_values_win() {
        let ids: BTreeSet<_> = MEASURES.iter().map(|m| m.id).collect();
        assert_eq!(ids.len(), MEASURES.len());
        let mut report = report(1.0);
        report.set("gets", 1.0);
        assert_eq!(report.rows().find(|(m, _)| m.id == "gets").unwrap().1, 1.0);
        assert!(report.failed());
    }

    #[test]
    fn counts_never_vanish() {
        expect!["Counts { scale: 0.0001, pods: 50, serial: 50, creates: 640, watchers: 5, events: 1000, crds: 5, bound: 50 }"].assert_eq(&format!("{:?}", Counts::scaled(0.0001)));
    }
}
