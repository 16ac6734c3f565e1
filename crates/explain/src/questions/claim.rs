//! A claim that is not bound: its class, its provisioner, and the volume that is nearest to fulfilling it.

use crate::{
    case::{Case, uses_claim},
    names::nearest,
    paths::path,
    reader::Found,
    report::{Cause, Sort},
};
use kaji_meta::{
    object::{self, str_at, strs_at},
    quantity::Quantity,
};
use serde_json::Value;

const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Why the claim is not bound.
pub async fn causes(case: &Case<'_>) -> Vec<Cause> {
    causes_for(case, None).await
}

/// The same, asked for a pod that uses the claim.
pub async fn causes_for(case: &Case<'_>, pod: Option<&Value>) -> Vec<Cause> {
    let phase = str_at(case.object, &["status", "phase"]);
    if phase == "Bound" || object::deletion_timestamp(case.object).is_some() {
        return vec![];
    }
    let summary = match pod {
        Some(_) => format!("its claim {} is not bound", case.name()),
        None => "it is not bound".to_owned(),
    };
    let mut cause = Cause::new(Sort::Volume, summary);
    if phase == "Lost" {
        let volume = str_at(case.object, &["spec", "volumeName"]);
        return vec![
            cause
                .known(format!("its volume {volume} does not exist any more"))
                .fix("restore the volume, or make a new claim"),
        ];
    }
    if let Some(event) = case
        .event(&[
            "ProvisioningFailed",
            "FailedBinding",
            "WaitForFirstConsumer",
            "WaitForPodScheduled",
            "ExternalProvisioning",
            "VolumeMismatch",
        ])
        .await
    {
        cause = cause.known(event);
    }
    let classes = case.reader.list("/apis/storage.k8s.io/v1/storageclasses").await.unwrap_or_default();
    let class = object::at(case.object, &["spec", "storageClassName"]).and_then(Value::as_str);
    match class {
        None => {
            let cause = cause.known("it names no storage class");
            let default =
                classes.iter().any(|class| object::annotation(class, DEFAULT_CLASS) == Some("true"));
            if default {
                return vec![cause.inferred("the default class is written into it soon")];
            }
            let cause = cause.known("no storage class is the default one");
            vec![
                nearest_volume(case, cause, "")
                    .await
                    .fix("name a storageClassName, or make a class the default one"),
            ]
        }
        Some("") => vec![
            nearest_volume(
                case,
                cause.known("its storage class is \"\": it takes existing volumes alone"),
                "",
            )
            .await,
        ],
        Some(name) => vec![of_class(case, cause, name, &classes, pod).await],
    }
}

async fn of_class(
    case: &Case<'_>,
    cause: Cause,
    name: &str,
    classes: &[Value],
    pod: Option<&Value>,
) -> Cause {
    let Some(class) = classes.iter().find(|class| object::name(class) == name) else {
        let cause =
            nearest_volume(case, cause.known(format!("storage class {name} does not exist")), name).await;
        let cause = match nearest(name, classes.iter().map(object::name)) {
            Some(near) if cause.nearest.is_none() => cause.nearest(format!("storage class {near}")),
            _ => cause,
        };
        return cause.fix(
            "correct storageClassName (a claim's class is immutable: make a new claim), or create the class",
        );
    };
    let provisioner = str_at(class, &["provisioner"]);
    if str_at(class, &["volumeBindingMode"]) == "WaitForFirstConsumer" {
        let cause =
            cause.known(format!("class {name} binds when the first pod that uses the claim is scheduled"));
        let user = match pod {
            Some(pod) => Some(object::name(pod).to_owned()),
            None => user(case).await,
        };
        let Some(user) = user else {
            return cause.known("no pod uses it").fix("nothing is wrong: create a pod that uses it");
        };
        let selected = object::annotation(case.object, "volume.kubernetes.io/selected-node");
        return match selected {
            None => cause
                .inferred(format!("pod {user} uses it, and has no node yet"))
                .fix(format!("kaji why pod/{user} -n {}", case.namespace())),
            Some(node) => cause.known(format!("node {node} was chosen for it")).inferred(format!(
                "the provisioner {provisioner} has not made a volume: it fails, is slow or does not run"
            )),
        };
    }
    if provisioner == NO_PROVISIONER {
        return nearest_volume(case, cause.known(format!("class {name} has no provisioner")), name)
            .await
            .fix("create a PersistentVolume of this class");
    }
    let drivers = case.reader.list("/apis/storage.k8s.io/v1/csidrivers").await;
    let cause = cause.known(format!("class {name} leaves it to the provisioner {provisioner}"));
    let installed = drivers
        .as_ref()
        .is_some_and(|drivers| drivers.iter().any(|driver| object::name(driver) == provisioner));
    match (drivers, installed) {
        (Some(_), false) => cause
            .known(format!("there is no CSIDriver {provisioner}"))
            .inferred("the provisioner is not installed")
            .fix(format!("install the driver {provisioner}, or use another class")),
        _ => cause
            .inferred("the provisioner fails, is slow or does not run")
            .fix(format!("look at the logs of the provisioner {provisioner}")),
    }
}

async fn user(case: &Case<'_>) -> Option<String> {
    let pods = case.all_beside("v1", "pods").await?;
    pods.iter().find(|pod| uses_claim(pod, case.name())).map(|pod| object::name(pod).to_owned())
}

/// The volume that lacks least for the claim.
async fn nearest_volume(case: &Case<'_>, cause: Cause, class: &str) -> Cause {
    let volume = str_at(case.object, &["spec", "volumeName"]);
    if !volume.is_empty() {
        return match case.reader.get(&path("v1", "", "persistentvolumes", volume)).await {
            Found::Absent => cause.known(format!("its volumeName {volume} is no PersistentVolume")),
            Found::Object(volume) => cause.nearest(differences(case.object, &volume, class).join("; ")),
            Found::Unreadable => cause,
        };
    }
    let Some(volumes) = case.reader.list("/api/v1/persistentvolumes").await else { return cause };
    let compared = volumes.iter().map(|volume| (differences(case.object, volume, class), volume));
    match compared.min_by_key(|(differences, _)| differences.len()) {
        None => cause.known("there is no PersistentVolume"),
        Some((differences, volume)) if differences.is_empty() => cause.inferred(format!(
            "volume {} fits: the volume controller has not bound it yet, or does not run",
            object::name(volume)
        )),
        Some((differences, volume)) => {
            cause.nearest(format!("volume {}: {}", object::name(volume), differences.join("; ")))
        }
    }
}

/// What a volume lacks for a claim.
fn differences(claim: &Value, volume: &Value, class: &str) -> Vec<String> {
    let mut differences = vec![];
    let of_volume = str_at(volume, &["spec", "storageClassName"]);
    if of_volume != class {
        differences.push(format!("its class is \"{of_volume}\", not \"{class}\""));
    }
    let (asked, has) = (
        str_at(claim, &["spec", "resources", "requests", "storage"]),
        str_at(volume, &["spec", "capacity", "storage"]),
    );
    if let (Ok(a), Ok(b)) = (Quantity::parse(asked), Quantity::parse(has))
        && b < a
    {
        differences.push(format!("it has {has}, less than {asked}"));
    }
    let modes: Vec<&str> = strs_at(volume, &["spec", "accessModes"]).collect();
    for mode in strs_at(claim, &["spec", "accessModes"]).filter(|mode| !modes.contains(mode)) {
        differences.push(format!("its access modes are {}, without {mode}", modes.join(", ")));
    }
    let bound = object::at(volume, &["spec", "claimRef"]);
    if let Some(bound) = bound.filter(|bound| str_at(bound, &["uid"]) != object::uid(claim)) {
        let (namespace, name) = (str_at(bound, &["namespace"]), str_at(bound, &["name"]));
        if (namespace, name) != (object::namespace(claim), object::name(claim))
            || !str_at(bound, &["uid"]).is_empty()
        {
            differences.push(format!("it is bound to {namespace}/{name}"));
        }
    }
    let phase = str_at(volume, &["status", "phase"]);
    if matches!(phase, "Released" | "Failed") {
        differences.push(format!("it is {phase}"));
    }
    differences
}
