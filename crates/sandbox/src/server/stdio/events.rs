//! What a session tells, in the words of the API.

use codeagent_interceptor::ClosedStep;
use codeagent_stdio::{
    ErrorReport, Event as Told, ExternalModification, Recovery, StepCompleted, StepSummary,
    UndoVersionMismatch, Warning, limit_paths,
};

use crate::server::hub::Heard;
use crate::session::Event;

pub(super) fn translate(heard: &Heard<'_>) -> Option<Told> {
    match heard {
        Heard::Session(event) => of_session((*event).clone()),
        Heard::Question(question) => {
            Some(Told::SafeguardTriggered(crate::server::desk::triggered(question)))
        }
    }
}

fn of_session(event: Event) -> Option<Told> {
    Some(match event {
        Event::Recovery { directory, report } => Told::Recovery(Recovery {
            directory,
            step_id: report.step,
            rolled_back: report.rolled_back,
            paths_restored: report.restored,
            paths_removed: report.removed,
            left: report.left,
            set_aside: report.set_aside,
            problem: report.problem,
        }),
        Event::AmbientStep { directory, closed: ClosedStep::Recorded { step, .. } } => {
            let step = StepSummary::new(directory, step, vec![]);
            Told::StepCompleted(StepCompleted { request_id: None, step })
        }
        Event::ExternalModification { directory, paths, barrier } => {
            let (paths, path_count) = limit_paths(paths);
            Told::ExternalModification(ExternalModification {
                directory,
                paths,
                path_count,
                barrier_id: barrier.map(|barrier| barrier.id),
            })
        }
        Event::Started { isolation, passed_over } => {
            let lines: Vec<String> = passed_over
                .into_iter()
                .map(|(better, reason)| format!("{better} isolation cannot be had: {reason}"))
                .collect();
            if lines.is_empty() {
                return None;
            }
            let message = format!("commands run with {isolation} isolation; {}", lines.join("; "));
            warning("isolation", message, None)
        }
        Event::Evicted { directory, steps } => {
            let message = format!("{} old steps were dropped to make room", steps.len());
            warning("undo_evicted", message, Some(directory))
        }
        Event::StepUnprotected { directory, step, reason } => {
            let message = format!("step {step} cannot be undone: {reason}");
            let Told::Warning(told) = warning("step_unprotected", message, Some(directory)) else {
                return None;
            };
            Told::Warning(Warning { step_id: Some(step), ..told })
        }
        Event::VersionMismatch { directory, found, expected } => {
            Told::UndoVersionMismatch(UndoVersionMismatch { directory, found, expected })
        }
        Event::WorkerLost { directory } => Told::Error(ErrorReport {
            code: codeagent_common::ErrorCode::NotServed,
            message: format!("the process that keeps the history of {directory} has died"),
            hint: Some(
                "the next request starts another, which takes back what was unfinished".into(),
            ),
        }),
        Event::Warning { directory, message } => warning("undo", message, directory),
        Event::NetworkRefused { message, .. } => warning("network_refused", message, None),
        // Their requests tell of them, and questions come by another way.
        Event::Stopped
        | Event::AmbientStep { .. }
        | Event::CommandStarted { .. }
        | Event::CommandEnded { .. }
        | Event::SafeguardTriggered { .. }
        | Event::SafeguardAnswered { .. } => return None,
    })
}

fn warning(code: &str, message: String, directory: Option<String>) -> Told {
    Told::Warning(Warning {
        code: code.to_owned(),
        message,
        step_id: None,
        directory,
        paths: vec![],
    })
}
