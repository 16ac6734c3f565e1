//! The control loop: from a `WebApp` to its host, deployment and service, and back to its status.

use crate::{
    hosts::Hosts,
    types::{WebApp, WebAppStatus},
};
use futures_util::StreamExt;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        apps::v1::{Deployment, DeploymentSpec},
        core::v1::{
            Container, ContainerPort, EnvVar, PodSpec, PodTemplateSpec, Service, ServicePort, ServiceSpec,
        },
    },
    apimachinery::pkg::{
        apis::meta::v1::{Condition, LabelSelector, Time},
        util::intstr::IntOrString,
    },
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams},
    runtime::{
        controller::{self, Action, Controller},
        events::{Event, EventType, Recorder, Reporter},
        finalizer::{self, finalizer},
        watcher,
    },
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

/// Holds an object until its host is given back.
pub const FINALIZER: &str = "apps.example.com/host";
/// The operator's name in managed fields and events.
pub const NAME: &str = "webapp-operator";

/// Why something could not be brought about; it is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused or did not answer.
    #[error(transparent)]
    Kube(#[from] kube::Error),
    /// Something on the way of the finalizer.
    #[error(transparent)]
    Finalizer(#[from] Box<finalizer::Error<Error>>),
}

/// What every run of the loop needs.
struct Context {
    client: Client,
    hosts: Hosts,
    recorder: Recorder,
}

/// Runs the loop until `stop`; work under way is finished.
pub async fn run(
    client: Client,
    hosts: Hosts,
    identity: String,
    stop: impl Future<Output = ()> + Send + Sync + 'static,
) {
    let reporter = Reporter { controller: NAME.into(), instance: Some(identity) };
    let context =
        Context { recorder: Recorder::new(client.clone(), reporter), client: client.clone(), hosts };
    Controller::new(Api::<WebApp>::all(client.clone()), watcher::Config::default())
        .owns(Api::<Deployment>::all(client.clone()), watcher::Config::default())
        .owns(Api::<Service>::all(client), watcher::Config::default())
        .graceful_shutdown_on(stop)
        .run(reconcile, retry, Arc::new(context))
        .for_each(async |outcome| {
            match outcome {
                // It is gone, and what it owned goes after it.
                Ok(_) | Err(controller::Error::ObjectNotFound(_)) => {}
                Err(error) => tracing::warn!(%error, "not done yet"),
            }
        })
        .await;
}

fn retry(_: Arc<WebApp>, _: &Error, _: Arc<Context>) -> Action {
    Action::requeue(Duration::from_secs(2))
}

async fn reconcile(app: Arc<WebApp>, context: Arc<Context>) -> Result<Action, Error> {
    let namespace = app.namespace().unwrap_or_default();
    let apps: Api<WebApp> = Api::namespaced(context.client.clone(), &namespace);
    finalizer(&apps, FINALIZER, app, async |event| match event {
        finalizer::Event::Apply(app) => context.apply(with_defaults(&app)).await,
        finalizer::Event::Cleanup(app) => context.clean_up(with_defaults(&app)).await,
    })
    .await
    .map_err(|error| Box::new(error).into())
}

fn with_defaults(app: &WebApp) -> WebApp {
    let mut app = app.clone();
    app.set_defaults();
    app
}

impl Context {
    /// Makes what there is what the spec says. The deployment and the service bring the loop back when they change.
    async fn apply(&self, app: WebApp) -> Result<Action, Error> {
        let namespace = app.namespace().unwrap_or_default();
        let host = app.spec.host.clone().unwrap_or_default();
        if let Err(holder) = self.hosts.claim(&host, &owner(&app)).await? {
            let message = format!("{host} belongs to {holder}");
            self.report(&app, None, "HostTaken", message).await?;
            // Nothing tells when it becomes free.
            return Ok(Action::requeue(Duration::from_secs(5)));
        }
        // What others set stays, but what is said here is as it is said.
        let params = PatchParams::apply(NAME).force();
        let services: Api<Service> = Api::namespaced(self.client.clone(), &namespace);
        services.patch(&app.name_any(), &params, &Patch::Apply(service(&app))).await?;
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &namespace);
        let made = deployments.patch(&app.name_any(), &params, &Patch::Apply(deployment(&app))).await?;
        let (wanted, ready) = (app.spec.replicas.unwrap_or_default(), ready_replicas(&made));
        let reason = if ready == wanted { "AllReplicasReady" } else { "WaitingForReplicas" };
        self.report(&app, Some(ready), reason, format!("{ready} of {wanted} replicas are ready")).await?;
        Ok(Action::await_change())
    }

    /// What garbage collection does not do: owned objects go by themselves.
    async fn clean_up(&self, app: WebApp) -> Result<Action, Error> {
        let host = app.spec.host.clone().unwrap_or_default();
        self.hosts.release(&host, &owner(&app)).await?;
        self.event(&app, EventType::Normal, "HostReleased", format!("{host} is free again")).await?;
        Ok(Action::await_change())
    }

    /// Writes the status, and an event when the condition's reason is another than before.
    async fn report(
        &self,
        app: &WebApp,
        replicas: Option<i32>,
        reason: &str,
        message: String,
    ) -> Result<(), Error> {
        let old = app.status.clone().unwrap_or_default();
        let ready = reason == "AllReplicasReady";
        let condition = condition(app, &old, ready, reason, &message);
        let news =
            old.conditions.iter().find(|c| c.type_ == "Ready").map(|c| &c.reason) != Some(&condition.reason);
        let status = WebAppStatus {
            observed_generation: app.meta().generation.unwrap_or_default(),
            ready_replicas: replicas.unwrap_or_default(),
            url: ready.then(|| format!("http://{}", app.spec.host.as_deref().unwrap_or_default())),
            conditions: vec![condition],
        };
        if status != old {
            let apps: Api<WebApp> =
                Api::namespaced(self.client.clone(), &app.namespace().unwrap_or_default());
            let patch =
                json!({"apiVersion": WebApp::api_version(&()), "kind": WebApp::kind(&()), "status": status});
            let params = PatchParams::apply(NAME).force();
            apps.patch_status(&app.name_any(), &params, &Patch::Apply(patch)).await?;
        }
        if news {
            let kind = if reason == "HostTaken" { EventType::Warning } else { EventType::Normal };
            self.event(app, kind, reason, message).await?;
        }
        Ok(())
    }

    async fn event(&self, app: &WebApp, type_: EventType, reason: &str, note: String) -> Result<(), Error> {
        let event = Event {
            type_,
            reason: reason.into(),
            note: Some(note),
            action: "Reconcile".into(),
            secondary: None,
        };
        Ok(self.recorder.publish(&event, &app.object_ref(&())).await?)
    }
}

/// The owner that a claim of a host names.
fn owner(app: &WebApp) -> String {
    format!("{}/{}", app.namespace().unwrap_or_default(), app.name_any())
}

/// The condition `Ready`; its time is that of the last change of its status.
fn condition(app: &WebApp, old: &WebAppStatus, ready: bool, reason: &str, message: &str) -> Condition {
    let status = if ready { "True" } else { "False" };
    let since = old.conditions.iter().find(|c| c.type_ == "Ready" && c.status == status);
    Condition {
        type_: "Ready".into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: app.meta().generation,
        last_transition_time: since
            .map_or_else(|| Time(Timestamp::now()), |c| c.last_transition_time.clone()),
    }
}

/// How many copies of what is wanted now are ready; none while the deployment's own controller has not looked yet.
fn ready_replicas(deployment: &Deployment) -> i32 {
    let Some(status) = &deployment.status else { return 0 };
    if status.observed_generation < deployment.metadata.generation {
        return 0;
    }
    let (ready, updated) = (status.ready_replicas.unwrap_or(0), status.updated_replicas.unwrap_or(0));
    // While old copies are still there, some of the ready ones are theirs.
    if status.replicas.unwrap_or(0) > updated { 0 } else { ready }
}

fn labels(app: &WebApp) -> BTreeMap<String, String> {
    [("app.kubernetes.io/name".into(), app.name_any()), ("app.kubernetes.io/managed-by".into(), NAME.into())]
        .into()
}

fn metadata(app: &WebApp) -> ObjectMeta {
    ObjectMeta {
        name: Some(app.name_any()),
        namespace: app.namespace(),
        labels: Some(labels(app)),
        owner_references: Some(app.controller_owner_ref(&()).into_iter().collect()),
        ..ObjectMeta::default()
    }
}

fn deployment(app: &WebApp) -> Deployment {
    let container = Container {
        name: "web".into(),
        image: Some(app.spec.image.clone()),
        env: Some(vec![EnvVar { name: "HOST".into(), value: app.spec.host.clone(), ..EnvVar::default() }]),
        ports: app.spec.port.map(|port| {
            vec![ContainerPort {
                name: Some("http".into()),
                container_port: port,
                ..ContainerPort::default()
            }]
        }),
        ..Container::default()
    };
    Deployment {
        metadata: metadata(app),
        spec: DeploymentSpec {
            replicas: app.spec.replicas,
            selector: LabelSelector { match_labels: Some(labels(app)), ..LabelSelector::default() },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels(app)), ..ObjectMeta::default() }),
                spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            },
            ..DeploymentSpec::default()
        },
        status: None,
    }
}

fn service(app: &WebApp) -> Service {
    let port = ServicePort {
        name: Some("http".into()),
        port: 80,
        target_port: Some(IntOrString::String("http".into())),
        ..ServicePort::default()
    };
    Service {
        metadata: metadata(app),
        spec: Some(ServiceSpec {
            selector: Some(labels(app)),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}
