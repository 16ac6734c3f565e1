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
fn what_has_no_effect_is_refused() {
    let lines = [
        show("extenders: [{urlPrefix: http://x}]\n"),
        show("leaderElection: {leaderElect: true}\n"),
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
        the scheduler configuration is invalid: extenders: this scheduler does not support the field
        the scheduler configuration is invalid: leaderElection: this scheduler does not support the field
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
        the scheduler configuration is invalid: it must be a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1
        true"#]].assert_eq(&lines.join("\n"));
}
