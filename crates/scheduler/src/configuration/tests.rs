//! Files that are understood, and those that are refused.

use super::*;

fn file(rest: &str) -> String {
    format!("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n{rest}")
}

fn show(rest: &str) -> String {
    let configuration = match Configuration::parse(&file(rest), kaji_meta::Features::default()) {
        Ok(configuration) => configuration,
        Err(error) => return error.to_string(),
    };
    let profile = |profile: &Profile| {
        let weighted = profile.plugins.iter().filter(|p| p.points.score.is_some());
        let weighted: Vec<_> = weighted.map(|p| format!("{}={}", p.points.plugin.name(), p.weight)).collect();
        let percent = profile.config.percentage_of_nodes_to_score;
        let name = &profile.config.scheduler_name;
        format!("{name} {percent:?} scores: {}", weighted.join(" "))
    };
    let profiles: Vec<String> = configuration.profiles.iter().map(profile).collect();
    let backoffs = configuration.backoffs;
    format!("{} | {:?} {:?}", profiles.join("; "), backoffs.initial, backoffs.max)
}

#[test]
fn profiles_name_their_plugins_and_weights() {
    let lines = [
        show(""),
        show(
            "percentageOfNodesToScore: 30\npodInitialBackoffSeconds: 2\npodMaxBackoffSeconds: 20\nprofiles:\n- schedulerName: a\n- schedulerName: b\n  percentageOfNodesToScore: 50\n",
        ),
        show(
            "profiles:\n- plugins:\n    multiPoint:\n      disabled: [{name: '*'}]\n      enabled: [{name: PrioritySort}, {name: DefaultBinder}, {name: NodeResourcesFit, weight: 7}]\n",
        ),
        show(
            "profiles:\n- plugins:\n    score:\n      disabled: [{name: '*'}]\n      enabled: [{name: ImageLocality, weight: 5}]\n",
        ),
        show(
            "profiles:\n- plugins: {multiPoint: {disabled: [{name: NodeResourcesFit}, {name: InterPodAffinity}, {name: PodTopologySpread}]}, score: {enabled: [{name: NodeResourcesFit}]}}\n  pluginConfig:\n  - name: NodeResourcesFit\n    args: {scoringStrategy: {type: MostAllocated}}\n",
        ),
    ];
    expect_test::expect![[r#"
        default-scheduler None scores: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 | 1s 10s
        a Some(30) scores: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1; b Some(50) scores: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 | 2s 20s
        default-scheduler None scores: NodeResourcesFit=7 | 1s 10s
        default-scheduler None scores: ImageLocality=5 | 1s 10s
        default-scheduler None scores: TaintToleration=3 NodeAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 NodeResourcesFit=1 | 1s 10s"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn what_is_not_understood_is_refused() {
    let lines = [
        show("percentageOfNodesToScore: 101\n"),
        show("podMaxBackoffSeconds: 0\n"),
        show("podInitialBackoffSeconds: 20\n"),
        show("profiles:\n- schedulerName: a\n- schedulerName: a\n"),
        show("profiles:\n- plugins: {filter: {enabled: [{name: Mine}]}}\n"),
        show("profiles:\n- plugins: {filter: {enabled: [{name: DefaultBinder}]}}\n"),
        show("profiles:\n- plugins: {bind: {disabled: [{name: DefaultBinder}]}}\n"),
        show("profiles:\n- plugins: {queueSort: {disabled: [{name: '*'}]}}\n"),
        show(
            "profiles:\n- pluginConfig: [{name: DefaultPreemption, args: {minCandidateNodesPercentage: 101}}]\n",
        ),
        show("profiles:\n- pluginConfig: [{name: NodeName, args: {x: 1}}]\n"),
        Configuration::parse("kind: Pod", kaji_meta::Features::default()).unwrap_err().to_string(),
        Configuration::parse("a: b: c", kaji_meta::Features::default()).is_err().to_string(),
    ];
    expect_test::expect![[r#"
        the scheduler configuration is invalid: percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]
        the scheduler configuration is invalid: podMaxBackoffSeconds: Invalid value: 0: must be greater than 0
        the scheduler configuration is invalid: podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds
        the scheduler configuration is invalid: duplicate profile with scheduler name "a"
        the scheduler configuration is invalid: plugin "Mine" does not exist
        the scheduler configuration is invalid: plugin "DefaultBinder" does not extend Filter plugin
        the scheduler configuration is invalid: at least one bind plugin is needed for profile with scheduler name "default-scheduler"
        the scheduler configuration is invalid: only one queue sort plugin required for profile with scheduler name "default-scheduler", but got 0
        the scheduler configuration is invalid: initializing plugin "DefaultPreemption": minCandidateNodesPercentage: Invalid value: 101: not in valid range
        the scheduler configuration is invalid: initializing plugin "NodeName": plugin NodeName takes no arguments
        the scheduler configuration is invalid: no kind "Pod" is registered for version "": expected KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1
        true"#]].assert_eq(&lines.join("\n"));
}

/// What a file says of the process.
fn process(rest: &str) -> String {
    match Configuration::parse(&file(rest), kaji_meta::Features::default()) {
        Err(error) => error.to_string(),
        Ok(Configuration { process, .. }) => {
            let (election, connection) = (&process.leader_election, &process.client_connection);
            let times = (election.lease_duration, election.renew_deadline, election.retry_period);
            format!(
                "{:?} {times:?} {:?}/{:?} | {:?} {:?} {:?} | {}",
                election.leader_elect,
                election.resource_namespace,
                election.resource_name,
                connection.kubeconfig,
                connection.qps,
                connection.burst,
                process.warnings.join("; ")
            )
        }
    }
}

#[test]
fn fields_of_the_process_are_in_force_or_warned_about() {
    let lines = [
        process(""),
        process(
            "leaderElection: {leaderElect: true, leaseDuration: 30s, renewDeadline: 20s, retryPeriod: 0s, resourceLock: leases, resourceName: name, resourceNamespace: ''}\nclientConnection: {kubeconfig: /k, qps: 20, burst: 40, contentType: application/json, acceptContentTypes: ''}\n",
        ),
        process(
            "parallelism: 16\nenableProfiling: true\nenableContentionProfiling: true\ndelayCacheUntilActive: false\nclientConnection: {contentType: application/vnd.kubernetes.protobuf, qps: -1, burst: 0}\n",
        ),
        process("enableProfiling: false\nenableContentionProfiling: true\ndelayCacheUntilActive: true\n"),
        process("leaderElection: {leaderElect: false, leaseDuration: 1s, resourceLock: endpoints}\n"),
        process("leaderElection: {leaseDuration: 10s}\n"),
        process("leaderElection: {retryPeriod: -1s}\n"),
        process("leaderElection: {retryPeriod: often}\n"),
        process("leaderElection: {resourceLock: endpoints}\n"),
        process("leaderElection: {lease: 10s}\n"),
        process("clientConnection: {burst: -1}\n"),
        process("clientConnection: {qps: fast}\n"),
        process("clientConnection: 7\n"),
        process("parallelism: 0\n"),
        process("parallelism: many\n"),
        process("enableProfiling: 3\n"),
        process("podMaxBackoffSeconds: soon\n"),
        process("percentageOfNodesToScore: half\n"),
        process("healthzBindAddress: x\n"),
        process("profiles: x\n"),
    ];
    expect_test::expect![[r#"
        None (None, None, None) None/None | None None None | 
        Some(true) (Some(30s), Some(20s), None) None/Some("name") | Some("/k") Some(20.0) Some(40) | 
        None (None, None, None) None/None | None Some(-1.0) None | clientConnection.contentType "application/vnd.kubernetes.protobuf" has no effect: requests and responses are application/json; parallelism has no effect: one thread decides on pods; enableProfiling has no effect: there is no /debug/pprof; enableContentionProfiling has no effect: there is no /debug/pprof; delayCacheUntilActive has no effect: caches are always filled when the process leads
        None (None, None, None) None/None | None None None | 
        Some(false) (Some(1s), None, None) None/None | None None None | 
        the scheduler configuration is invalid: leaderElection.leaseDuration: Invalid value: 10s: must be greater than `RenewDeadline`
        the scheduler configuration is invalid: leaderElection.retryPeriod: Invalid value: -1s: must be greater than zero
        the scheduler configuration is invalid: leaderElection.retryPeriod: time: invalid duration "often"
        the scheduler configuration is invalid: leaderElection.resourceLock: Invalid value: "endpoints": resourceLock value must be "leases"
        the scheduler configuration is invalid: unknown field `lease`, expected one of `leaderElect`, `leaseDuration`, `renewDeadline`, `retryPeriod`, `resourceLock`, `resourceName`, `resourceNamespace`
        the scheduler configuration is invalid: clientConnection.burst: Invalid value: -1: must be non-negative
        the scheduler configuration is invalid: invalid type: string "fast", expected f64
        the scheduler configuration is invalid: invalid type: integer `7`, expected struct RawConnection
        the scheduler configuration is invalid: parallelism: Invalid value: 0: should be an integer value greater than zero
        the scheduler configuration is invalid: invalid type: string "many", expected i32
        the scheduler configuration is invalid: invalid type: integer `3`, expected a boolean
        the scheduler configuration is invalid: podMaxBackoffSeconds: "soon" is no whole number
        the scheduler configuration is invalid: percentageOfNodesToScore: "half" is no whole number
        the scheduler configuration is invalid: healthzBindAddress: this scheduler does not support the field
        the scheduler configuration is invalid: profiles: must be a list"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn the_points_of_placements_are_known_and_empty() {
    let plugins = |sets: &str| show(&format!("profiles:\n- plugins: {{{sets}}}\n"));
    assert_eq!(plugins("placementGenerate: {}, placementScore: {enabled: []}"), show(""));
    let lines = [
        plugins("placementScore: {enabled: [{name: NodeResourcesFit}]}"),
        plugins("placementGenerate: {enabled: [{name: Mine}]}"),
    ];
    expect_test::expect![[r#"
        the scheduler configuration is invalid: plugin "NodeResourcesFit" does not extend PlacementScore plugin
        the scheduler configuration is invalid: plugin "Mine" does not exist"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn extenders_are_of_all_profiles_and_hide_resources_from_them() {
    let configuration = Configuration::parse(
        &file(
            "extenders: [{urlPrefix: 'http://x', filterVerb: f, managedResources: [{name: a.b/c, ignoredByScheduler: true}, {name: a.b/d}]}]\nprofiles:\n- schedulerName: a\n- schedulerName: b\n  pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [x.y/z]}}]\n",
        ),
        kaji_meta::Features::default(),
    )
    .unwrap();
    assert!(configuration.profiles.iter().all(Profile::is_extended));
    assert_eq!(configuration.extenders.ignored_resources(), ["a.b/c"]);
    assert!(!Configuration::new(kaji_meta::Features::default()).unwrap().profiles[0].is_extended());
    assert_eq!(
        ignoring(json!({"ignoredResources": ["x.y/z"], "scoringStrategy": 1}), &["a.b/c"]),
        json!({"ignoredResources": ["a.b/c"], "scoringStrategy": 1})
    );
}
