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
        default-scheduler None scores: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 | 1s 10s
        a Some(30) scores: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1; b Some(50) scores: TaintToleration=3 NodeAffinity=2 NodeResourcesFit=1 VolumeBinding=1 PodTopologySpread=2 InterPodAffinity=2 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 | 2s 20s
        default-scheduler None scores: NodeResourcesFit=7 | 1s 10s
        default-scheduler None scores: ImageLocality=5 | 1s 10s
        default-scheduler None scores: TaintToleration=3 NodeAffinity=2 VolumeBinding=1 DynamicResources=2 NodeResourcesBalancedAllocation=1 ImageLocality=1 NodeResourcesFit=1 | 1s 10s"#]].assert_eq(&lines.join("\n"));
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
        the scheduler configuration is invalid: profiles[0].pluginConfig[0].args.minCandidateNodesPercentage: Invalid value: 101: not in valid range [0, 100]
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
        the scheduler configuration is invalid: strict decoding error: unknown field "leaderElection.lease"
        the scheduler configuration is invalid: clientConnection.burst: Invalid value: -1: must be non-negative
        the scheduler configuration is invalid: json: cannot unmarshal string into Go struct field ClientConnectionConfiguration.clientConnection.qps of type float32
        the scheduler configuration is invalid: json: cannot unmarshal number into Go struct field KubeSchedulerConfiguration.clientConnection of type v1alpha1.ClientConnectionConfiguration
        the scheduler configuration is invalid: parallelism: Invalid value: 0: should be an integer value greater than zero
        the scheduler configuration is invalid: json: cannot unmarshal string into Go struct field KubeSchedulerConfiguration.parallelism of type int32
        the scheduler configuration is invalid: json: cannot unmarshal number into Go struct field KubeSchedulerConfiguration.enableProfiling of type bool
        the scheduler configuration is invalid: json: cannot unmarshal string into Go struct field KubeSchedulerConfiguration.podMaxBackoffSeconds of type int64
        the scheduler configuration is invalid: json: cannot unmarshal string into Go struct field KubeSchedulerConfiguration.percentageOfNodesToScore of type int32
        the scheduler configuration is invalid: strict decoding error: unknown field "healthzBindAddress"
        the scheduler configuration is invalid: json: cannot unmarshal string into Go struct field KubeSchedulerConfiguration.profiles of type []v1.KubeSchedulerProfile"#]].assert_eq(&lines.join("\n"));
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

/// Why a file is refused.
fn refused(rest: &str) -> String {
    show(rest).replace("the scheduler configuration is invalid: ", "")
}

#[test]
fn fields_are_known_at_every_depth() {
    let config = |config: &str| refused(&format!("profiles:\n- pluginConfig: [{config}]\n"));
    let lines = [
        refused("profiles:\n- plugins: {filter: {disable: [{name: NodeName}]}}\n"),
        refused("profiles:\n- plugins: {filter: {enabled: [{name: NodeName, weigth: 1}]}, filters: {}}\n"),
        refused("profiles:\n- plugins: {filter: [{name: NodeName}]}\n"),
        refused("profiles:\n- plugins: {score: {enabled: [{name: NodeName, weight: high}]}}\n"),
        refused("extenders: [{urlPrefix: 'http://x', filterVerbs: f}]\n"),
        config("{name: NodeResourcesFit, arg: {}}"),
        config(
            "{name: NodeResourcesFit, args: {scoringStrategy: {requestedToCapacityRatio: {shape: [{Score: 2, Utilization: 1}]}}}}",
        ),
        config("{name: VolumeBinding, args: {x: 1}}, {name: NodeAffinity, args: {addedAffinity: {z: 1}}}"),
        config(
            "{name: DefaultPreemption, args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: InterPodAffinityArgs}}",
        ),
        config("{name: DefaultPreemption, args: {kind: NodeNameArgs}}"),
        config("{name: DefaultPreemption, args: {apiVersion: kubescheduler.config.k8s.io/v1beta3}}"),
        config("{name: InterPodAffinity, args: {hardPodAffinityWeight: heavy}}"),
        config("{name: PodTopologySpread, args: {defaultConstraints: [{maxSkew: '1'}]}}"),
        config("{name: DynamicResources, args: {filterTimeout: soon}}"),
        config("{name: NodeAffinity, args: 7}"),
        config("{name: NodeAffinity}, {name: NodeAffinity, args: {}}"),
        refused("profiles:\n- schedulerName: a\n- plugins: {}\n"),
        refused("profiles:\n- schedulerName: ''\n"),
        refused("profiles:\n- percentageOfNodesToScore: -1\n"),
        refused("profiles:\n- plugins: {filter: {enabled: [{}]}}\n"),
    ];
    expect_test::expect![[r#"
        strict decoding error: unknown field "profiles[0].plugins.filter.disable"
        strict decoding error: unknown field "profiles[0].plugins.filter.enabled[0].weigth", unknown field "profiles[0].plugins.filters"
        json: cannot unmarshal array into Go struct field Plugins.profiles.plugins.filter of type v1.PluginSet
        json: cannot unmarshal string into Go struct field Plugin.profiles.plugins.score.enabled.weight of type int32
        strict decoding error: unknown field "extenders[0].filterVerbs"
        strict decoding error: unknown field "profiles[0].pluginConfig[0].arg"
        strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin NodeResourcesFit: strict decoding error: unknown field "scoringStrategy.requestedToCapacityRatio.shape[0].Score", unknown field "scoringStrategy.requestedToCapacityRatio.shape[0].Utilization"
        strict decoding error: decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin VolumeBinding: strict decoding error: unknown field "x", decoding .profiles[0].pluginConfig[1]: strict decoding error: decoding args for plugin NodeAffinity: strict decoding error: unknown field "addedAffinity.z"
        decoding .profiles[0].pluginConfig[0]: args for plugin DefaultPreemption were not of type DefaultPreemptionArgs.kubescheduler.config.k8s.io, got InterPodAffinityArgs.kubescheduler.config.k8s.io
        decoding .profiles[0].pluginConfig[0]: decoding args for plugin DefaultPreemption: no kind "NodeNameArgs" is registered for version "kubescheduler.config.k8s.io/v1"
        decoding .profiles[0].pluginConfig[0]: decoding args for plugin DefaultPreemption: no kind "DefaultPreemptionArgs" is registered for version "kubescheduler.config.k8s.io/v1beta3"
        decoding .profiles[0].pluginConfig[0]: decoding args for plugin InterPodAffinity: json: cannot unmarshal string into Go struct field InterPodAffinityArgs.hardPodAffinityWeight of type int32
        decoding .profiles[0].pluginConfig[0]: decoding args for plugin PodTopologySpread: json: cannot unmarshal string into Go struct field TopologySpreadConstraint.defaultConstraints.maxSkew of type int32
        decoding .profiles[0].pluginConfig[0]: decoding args for plugin DynamicResources: filterTimeout: time: invalid duration "soon"
        decoding .profiles[0].pluginConfig[0]: decoding args for plugin NodeAffinity: json: cannot unmarshal number into Go value of type v1.NodeAffinityArgs
        profiles[0].pluginConfig[1]: Duplicate value: "NodeAffinity"
        profiles[1].schedulerName: Required value
        profiles[0].schedulerName: Required value
        profiles[0].percentageOfNodesToScore: Invalid value: -1: not in valid range [0-100]
        plugin "" does not exist"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn what_is_not_given_is_as_upstream_has_it() {
    for file in [
        "profiles: []\n",
        "profiles: [null]\n",
        "extenders:\n- {urlPrefix: 'http://x', filterVerb: null, weight: null, tlsConfig: null}\n",
        "profiles:\n- {plugins: null, pluginConfig: null}\n",
        "profiles:\n- {plugins: {filter: {enabled: null}}, pluginConfig: [{name: NodeAffinity, args: null}]}\n",
        "profiles:\n- pluginConfig: [{name: NodeResourcesFit, args: {kind: NodeResourcesFitArgs, scoringStrategy: {type: LeastAllocated, resources: [{name: cpu, weight: 0}]}}}]\n",
    ] {
        assert_eq!(show(file), show(""), "{file}");
    }
}

/// What is wrong with a plugin's arguments.
fn args(plugin: &str, args: &str) -> String {
    refused(&format!("profiles:\n- pluginConfig: [{{name: {plugin}, args: {args}}}]\n"))
        .replace("profiles[0].pluginConfig[0].args.", "")
}

#[test]
fn arguments_are_validated() {
    let lines = [
        args("DefaultPreemption", "{minCandidateNodesPercentage: 0, minCandidateNodesAbsolute: 0}"),
        args("DefaultPreemption", "{minCandidateNodesAbsolute: -1}"),
        args("InterPodAffinity", "{hardPodAffinityWeight: 101}"),
        args("NodeResourcesBalancedAllocation", "{resources: [{name: cpu}, {name: cpu, weight: 2}]}"),
        args("VolumeBinding", "{bindTimeoutSeconds: -1}"),
        args("VolumeBinding", "{shape: [{utilization: 50, score: 11}, {utilization: 40}]}"),
        args("DynamicResources", "{filterTimeout: -1s, bindingTimeout: 500ms}"),
    ];
    expect_test::expect![[r#"
        [minCandidateNodesPercentage: Invalid value: 0: cannot be zero at the same time as minCandidateNodesAbsolute, minCandidateNodesAbsolute: Invalid value: 0: cannot be zero at the same time as minCandidateNodesPercentage]
        minCandidateNodesAbsolute: Invalid value: -1: not in valid range [0, inf)
        hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]
        [resources[1].name: Duplicate value: "cpu", resources[1].weight: Invalid value: 2: must be 1]
        bindTimeoutSeconds: Invalid value: -1: invalid BindTimeoutSeconds, should not be a negative value
        [shape[1].utilization: Invalid value: 40: values must be sorted in increasing order, shape[0].score: Invalid value: 11: not in valid range [0, 10]]
        [filterTimeout: Invalid value: "-1s": must be zero or positive, bindingTimeout: Invalid value: "500ms": must be at least 1 second]"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn the_strategy_of_scores_is_validated() {
    let fit = |strategy: &str| args("NodeResourcesFit", &format!("{{scoringStrategy: {strategy}}}"));
    let lines = [
        args("NodeResourcesFit", "{ignoredResourceGroups: [a/b]}"),
        fit("{}"),
        fit("{type: Best}"),
        fit("{type: MostAllocated, resources: [{name: cpu, weight: 101}]}"),
        fit("{type: MostAllocated, requestedToCapacityRatio: {}}"),
        fit("{type: RequestedToCapacityRatio}"),
        fit("{type: RequestedToCapacityRatio, requestedToCapacityRatio: {}}"),
        fit(
            "{type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 50, score: 11}, {utilization: 40}]}}",
        ),
    ];
    expect_test::expect![[r#"
        initializing plugin "NodeResourcesFit": ignoredResourceGroups[0]: Invalid value: "a/b": resource group name can't contain '/'
        initializing plugin "NodeResourcesFit": scoringStrategy.type: Unsupported value: "": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"
        initializing plugin "NodeResourcesFit": scoringStrategy.type: Unsupported value: "Best": supported values: "LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"
        initializing plugin "NodeResourcesFit": scoringStrategy.resources[0].weight: Invalid value: 101: resource weight of cpu not in valid range (0, 100]
        initializing plugin "NodeResourcesFit": scoringStrategy.requestedToCapacityRatio: Forbidden: must be nil when type is not RequestedToCapacityRatio
        initializing plugin "NodeResourcesFit": scoringStrategy.requestedToCapacityRatio: Required value: must be specified when type is RequestedToCapacityRatio
        initializing plugin "NodeResourcesFit": scoringStrategy.requestedToCapacityRatio.shape: Required value: at least one point must be specified
        initializing plugin "NodeResourcesFit": [scoringStrategy.requestedToCapacityRatio.shape[1].utilization: Invalid value: 40: values must be sorted in increasing order, scoringStrategy.requestedToCapacityRatio.shape[0].score: Invalid value: 11: not in valid range [0, 10]]"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn default_constraints_are_validated() {
    let spread = |constraints: &str| {
        args("PodTopologySpread", &format!("{{defaultingType: List, defaultConstraints: [{constraints}]}}"))
    };
    let lines = [
        args("PodTopologySpread", "{defaultingType: Mine}"),
        args(
            "PodTopologySpread",
            "{defaultConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}]}",
        ),
        spread("{}"),
        spread("{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: Sometimes}"),
        spread(
            "{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, labelSelector: {}}, {maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}",
        ),
    ];
    expect_test::expect![[r#"
        defaultingType: Unsupported value: "Mine": supported values: "System", "List"
        defaultingType: Invalid value: "System": when .defaultConstraints are not empty
        [defaultConstraints[0].maxSkew: Invalid value: 0: not in valid range (0, inf), defaultConstraints[0].topologyKey: Required value: can not be empty, defaultConstraints[0].whenUnsatisfiable: Required value: can not be empty]
        defaultConstraints[0].whenUnsatisfiable: Unsupported value: "Sometimes": supported values: "DoNotSchedule", "ScheduleAnyway"
        [defaultConstraints[0].labelSelector: Forbidden: constraint must not define a selector, as they deduced for each pod, defaultConstraints[1]: Duplicate value: "{zone, DoNotSchedule}"]"#]]
    .assert_eq(&lines.join("\n"));
}

#[test]
fn added_affinity_is_validated() {
    let required = |term: &str| {
        let rule = "requiredDuringSchedulingIgnoredDuringExecution";
        args("NodeAffinity", &format!("{{addedAffinity: {{{rule}: {{nodeSelectorTerms: [{{}}, {term}]}}}}}}"))
            .replace(&format!("addedAffinity.{rule}.nodeSelectorTerms"), "TERMS")
    };
    let lines = [
        required("{matchExpressions: [{key: a, operator: Is}]}"),
        required("{matchExpressions: [{key: a, operator: In}, {key: a, operator: Gt, values: [b]}]}"),
        required("{matchFields: [{key: metadata.name, operator: Exists}]}"),
        required("{matchFields: [{key: metadata.name, operator: In, values: [a, b]}]}"),
        args(
            "NodeAffinity",
            "{addedAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{preference: {matchExpressions: [{}]}}, {weight: 1, preference: {matchExpressions: [{key: a, operator: Exists, values: [b]}]}}]}}",
        ),
    ];
    expect_test::expect![[r#"
        TERMS[1].matchExpressions[0].operator: Unsupported value: "Is": supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"
        [TERMS[1].matchExpressions[0].values: Invalid value: null: for 'in', 'notin' operators, values set can't be empty, TERMS[1].matchExpressions[1].values[0]: Invalid value: "b": for 'Gt', 'Lt' operators, the value must be an integer]
        TERMS[1].matchFields[0].operator: Unsupported value: "Exists": supported values: "In", "NotIn"
        TERMS[1].matchFields[0].values: Invalid value: ["a","b"]: must have one element
        addedAffinity.preferredDuringSchedulingIgnoredDuringExecution[1].matchExpressions[0].values: Invalid value: ["b"]: values set must be empty for exists and does not exist"#]]
    .assert_eq(&lines.join("\n"));
}
