//! A plugin that fails, or rejects every pod, at one extension point.

use crate::{
    framework::{
        Bind, BindContext, Binding, Cycle, CycleState, Filter, NodeStatuses, Nomination, Outcome, Permission,
        Permit, Plugin, Points, PostFilter, PostFiltered, PreBind, PreFilter, PreFiltered, PreScore,
        PreScored, Profile, ProfileConfig, Reserve, Status, profile::Weighted,
    },
    pod_info::PodInfo,
    snapshot::NodeInfo,
};
use futures_util::future::BoxFuture;
use std::{sync::Arc, time::Duration};

struct Answering {
    point: &'static str,
    status: Status,
}

/// A profile of the plugin. Pods wait for a permit at `WaitOnPermit`, and for ever at `Timeout`.
pub fn profile(point: &'static str, status: Status) -> Profile {
    let plugin = Arc::new(Answering { point, status });
    let points = Points::of(&plugin)
        .pre_filter(&plugin)
        .filter(&plugin)
        .post_filter(&plugin)
        .pre_score(&plugin)
        .reserve(&plugin)
        .permit(&plugin)
        .pre_bind(&plugin)
        .bind(&plugin);
    Profile::new(ProfileConfig::default(), vec![Weighted { points, weight: 1 }])
}

impl Answering {
    fn answer<T>(&self, point: &str, otherwise: T) -> Outcome<T> {
        if self.point == point { Err(self.status.clone()) } else { Ok(otherwise) }
    }
}

impl Plugin for Answering {
    fn name(&self) -> &'static str {
        "Answering"
    }
}

impl PreFilter for Answering {
    fn pre_filter(&self, _cycle: &Cycle<'_>, _state: &mut CycleState) -> Outcome<PreFiltered> {
        self.answer("PreFilter", PreFiltered::AllNodes)
    }
}

impl Filter for Answering {
    fn filter(&self, _cycle: &Cycle<'_>, _state: &CycleState, _node: &NodeInfo) -> Outcome {
        match self.point {
            "PostFilter" => Err(Status::unschedulable("no")),
            _ => self.answer("Filter", ()),
        }
    }
}

impl PostFilter for Answering {
    fn post_filter(
        &self,
        _profile: &Profile,
        _cycle: &Cycle<'_>,
        _state: &CycleState,
        _statuses: &NodeStatuses,
    ) -> PostFiltered {
        PostFiltered {
            nomination: Nomination::Keep,
            victims: vec![],
            candidates: vec![],
            writes: vec![],
            status: self.answer("PostFilter", ()),
        }
    }
}

impl PreScore for Answering {
    fn pre_score(
        &self,
        _cycle: &Cycle<'_>,
        _state: &mut CycleState,
        _nodes: &[Arc<NodeInfo>],
    ) -> Outcome<PreScored> {
        self.answer("PreScore", PreScored::Scored)
    }
}

impl Reserve for Answering {
    fn reserve(&self, _cycle: &Cycle<'_>, _state: &mut CycleState, _node: &str) -> Outcome {
        self.answer("Reserve", ())
    }

    fn unreserve(&self, _pod: &PodInfo, _state: &mut CycleState, _node: &str) {}
}

impl Permit for Answering {
    fn permit(&self, _cycle: &Cycle<'_>, _state: &mut CycleState, _node: &str) -> Outcome<Permission> {
        match self.point {
            "WaitOnPermit" => Ok(Permission::Wait(Duration::from_secs(60))),
            "Timeout" => Ok(Permission::Wait(Duration::ZERO)),
            _ => self.answer("Permit", Permission::Allow),
        }
    }

    fn permitted<'a>(&'a self, _pod: &'a Arc<PodInfo>, _node: &'a str) -> BoxFuture<'a, Outcome> {
        match self.point {
            "Timeout" => Box::pin(std::future::pending()),
            _ => Box::pin(std::future::ready(self.answer("WaitOnPermit", ()))),
        }
    }
}

impl PreBind for Answering {
    fn pre_bind<'a>(
        &'a self,
        _context: &'a BindContext,
        _state: &'a mut CycleState,
    ) -> BoxFuture<'a, Outcome> {
        Box::pin(std::future::ready(self.answer("PreBind", ())))
    }
}

impl Bind for Answering {
    fn bind<'a>(
        &'a self,
        _context: &'a BindContext,
        _state: &'a CycleState,
    ) -> BoxFuture<'a, Outcome<Binding>> {
        Box::pin(std::future::ready(self.answer("Bind", Binding::Bound)))
    }
}
